// Attention, block by block, against the CPU's.

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/attention.h"

namespace troupe::train::tests {
namespace {

struct AttentionCase {
  std::int64_t batch, query_length, key_length, query_heads, key_heads, head_dim;
  // Where each segment begins, of every batch row; empty: no first_key.
  std::vector<std::int64_t> segments;
  bool cache = false;  // keys of a batch row lie in a longer table
  double dropout = 0;
};

template <class T>
struct AttentionInputs {
  AttentionShape shape;
  std::vector<float> q, k, v;
  std::vector<std::int32_t> first_key, samples, places;

  explicit AttentionInputs(const AttentionCase& c) {
    // Rows hold more than the heads, as those of a joint projection do.
    const std::int64_t query_stride = c.query_heads * c.head_dim + 8;
    const std::int64_t key_stride = c.key_heads * c.head_dim + 16;
    const std::int64_t key_rows = c.key_length + (c.cache ? 5 : 0);
    q = random_held<T>(c.batch * c.query_length * query_stride, 1, 2.0f);
    k = random_held<T>(c.batch * key_rows * key_stride, 2, 2.0f);
    v = random_held<T>(c.batch * key_rows * key_stride, 3);
    if (!c.segments.empty()) {
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t t = 0; t < c.query_length; ++t) {
          std::int64_t first = 0;
          for (const std::int64_t begin : c.segments)
            if (begin + b <= t) first = begin + b;
          first_key.push_back(static_cast<std::int32_t>(first));
        }
    }
    shape = {.batch = c.batch,
             .query_length = c.query_length,
             .key_length = c.key_length,
             .query_heads = c.query_heads,
             .key_heads = c.key_heads,
             .head_dim = c.head_dim,
             .query_stride = query_stride,
             .key_stride = key_stride,
             .key_batch_stride = key_rows * key_stride,
             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
             .first_key = first_key.empty() ? nullptr : first_key.data(),
             .dropout = dropout_of(c.dropout)};
    for (std::int64_t i = 0; i < c.batch * c.query_length; ++i) {
      const std::int64_t t = i % c.query_length, past = c.key_length - c.query_length;
      const std::int64_t first = first_key.empty() ? 0 : first_key[static_cast<std::size_t>(i)];
      samples.push_back(static_cast<std::int32_t>(i / c.query_length * 1000 + first));
      places.push_back(static_cast<std::int32_t>(past + t - first));
    }
    shape.dropout.seed = 42, shape.dropout.epoch = 3;
    shape.dropout.site = dropout_site(DropoutPlace::kAttention, 7);
    shape.dropout.samples = samples.data(), shape.dropout.tokens = places.data();
  }
  std::size_t outputs() const {
    return static_cast<std::size_t>(shape.batch * shape.query_length * shape.query_heads *
                                    shape.head_dim);
  }
  std::size_t statistics() const {
    return static_cast<std::size_t>(shape.batch * shape.query_heads * shape.query_length);
  }
};

template <class T, class Tile>
void run_forward(const AttentionInputs<T>& in, std::vector<T>& out, std::vector<float>& lse) {
  const AttentionShape& s = in.shape;
  const auto q = stored<T>(in.q), k = stored<T>(in.k), v = stored<T>(in.v);
  const cuda::AttentionForward<T> a{
      q.data(),       k.data(),       v.data(),           out.data(),    lse.data(),  s.first_key,
      s.batch,        s.query_length, s.key_length,       s.query_heads, s.key_heads, s.head_dim,
      s.query_stride, s.key_stride,   s.key_batch_stride, s.scale};
  const bool drops = static_cast<bool>(s.dropout);
  // What no one wrote is no number.
  std::vector<float> memory(
      static_cast<std::size_t>(cuda::ForwardShared<Tile>::floats(s.head_dim, drops)),
      std::nanf(""));
  run_grid<cuda::AttentionBlock>(
      (s.query_length + Tile::kTileRows - 1) / Tile::kTileRows, s.query_heads, s.batch,
      [&](const auto& block) {
        if (drops)
          cuda::attention_forward_block<T, Tile>(block, memory.data(), a, s.dropout);
        else
          cuda::attention_forward_block<T, Tile>(block, memory.data(), a);
      });
}

template <class T, class Tile>
void run_backward(const AttentionInputs<T>& in, const std::vector<float>& out,
                  const std::vector<float>& dout, const std::vector<float>& lse, std::vector<T>& dq,
                  std::vector<T>& dk, std::vector<T>& dv) {
  const AttentionShape& s = in.shape;
  const auto q = stored<T>(in.q), k = stored<T>(in.k), v = stored<T>(in.v);
  const auto o = stored<T>(out), d = stored<T>(dout);
  std::vector<float> deltas(in.statistics(), std::nanf(""));
  const cuda::AttentionBackward<T> a{q.data(),       k.data(),      v.data(),           o.data(),
                                     d.data(),       lse.data(),    deltas.data(),      dq.data(),
                                     dk.data(),      dv.data(),     s.first_key,        s.batch,
                                     s.query_length, s.query_heads, s.key_heads,        s.head_dim,
                                     s.query_stride, s.key_stride,  s.key_batch_stride, s.scale};
  const bool drops = static_cast<bool>(s.dropout);
  cuda::DeltaShared shared{};
  run_grid<cuda::AttentionBlock>(
      (s.batch * s.query_length * s.query_heads + cuda::kDeltasPerBlock - 1) /
          cuda::kDeltasPerBlock,
      1, 1, [&](const auto& block) { cuda::attention_deltas_block<T>(block, shared, a); });
  std::vector<float> memory(
      static_cast<std::size_t>(cuda::BackwardShared<Tile>::floats(s.head_dim, drops)),
      std::nanf(""));
  const std::int64_t tiles = (s.query_length + Tile::kTileRows - 1) / Tile::kTileRows;
  run_grid<cuda::AttentionBlock>(tiles, s.key_heads, s.batch, [&](const auto& block) {
    if (drops)
      cuda::attention_keys_block<T, Tile>(block, memory.data(), a, s.dropout);
    else
      cuda::attention_keys_block<T, Tile>(block, memory.data(), a);
  });
  run_grid<cuda::AttentionBlock>(tiles, s.query_heads, s.batch, [&](const auto& block) {
    if (drops)
      cuda::attention_queries_block<T, Tile>(block, memory.data(), a, s.dropout);
    else
      cuda::attention_queries_block<T, Tile>(block, memory.data(), a);
  });
}

template <class T, class Forward, class Backward>
void test_attention(const AttentionCase& c) {
  CAPTURE(c.query_length);
  CAPTURE(c.key_length);
  CAPTURE(c.head_dim);
  const AttentionInputs<T> in(c);
  const CpuReference cpu;
  std::vector<float> expected(in.outputs()), lse(in.statistics());
  cpu->attention_forward(in.shape, in.q.data(), in.k.data(), in.v.data(), expected.data(),
                         lse.data());
  std::vector<T> out(in.outputs());
  std::vector<float> found_lse(in.statistics(), std::nanf(""));
  run_forward<T, Forward>(in, out, found_lse);
  check_close(widened(out), expected, rounding<T>());
  check_close(found_lse, lse, 3e-6);
  if (c.query_length != c.key_length) return;

  const auto dout = random_held<T>(static_cast<std::int64_t>(in.outputs()), 4);
  expected = widened(stored<T>(expected));
  auto dq = std::vector<float>(in.q.size(), 5.0f), dk = std::vector<float>(in.k.size(), 5.0f);
  auto dv = dk;
  cpu->attention_backward(in.shape, in.q.data(), in.k.data(), in.v.data(), expected.data(),
                          lse.data(), dout.data(), dq.data(), dk.data(), dv.data());
  // Beside the heads nothing is written.
  auto found_dq = stored<T>(std::vector<float>(dq.size(), 5.0f));
  auto found_dk = stored<T>(std::vector<float>(dk.size(), 5.0f));
  auto found_dv = found_dk;
  run_backward<T, Backward>(in, expected, dout, lse, found_dq, found_dk, found_dv);
  const double tolerance = sizeof(T) == 4 ? 1e-5 : 8e-3;
  check_close(widened(found_dq), dq, tolerance);
  check_close(widened(found_dk), dk, tolerance);
  check_close(widened(found_dv), dv, tolerance);
}

using SmallForward = cuda::AttentionTile<4, 4, 1>;
using SmallBackward = cuda::AttentionTile<4, 2, 1>;

TEST_CASE("kernels' attention is the CPU's: grouped queries, segments, strides") {
  test_attention<float, SmallForward, SmallBackward>({2, 5, 5, 4, 2, 16, {}});
  test_attention<float, SmallForward, SmallBackward>({1, 70, 70, 2, 1, 20, {}});
  test_attention<float, SmallForward, SmallBackward>({1, 135, 135, 1, 1, 12, {0, 40, 41, 90}});
  test_attention<float, SmallForward, SmallBackward>({2, 66, 66, 3, 3, 6, {0, 3, 64}});
  test_attention<Bf16, SmallForward, SmallBackward>({1, 70, 70, 4, 1, 16, {0, 33}});
}

TEST_CASE("kernels' attention drops out the weights that the CPU's does") {
  test_attention<float, SmallForward, SmallBackward>({2, 5, 5, 4, 2, 16, {}, false, 0.3});
  test_attention<float, SmallForward, SmallBackward>({1, 70, 70, 2, 1, 20, {}, false, 0.1});
  test_attention<float, SmallForward, SmallBackward>(
      {2, 135, 135, 2, 1, 12, {0, 40, 41, 90}, false, 0.5});
  test_attention<Bf16, SmallForward, SmallBackward>({1, 70, 70, 4, 1, 16, {0, 33}, false, 0.3});
  test_attention<float, SmallForward, SmallBackward>({2, 3, 75, 2, 2, 16, {}, true, 0.3});
  test_attention<float, cuda::AttentionTile<4, 4, 4>, cuda::AttentionTile<2, 2, 4>>(
      {1, 40, 40, 1, 1, 130, {0, 21}, false, 0.3});
}

TEST_CASE("kernels' attention reads behind a cache") {
  test_attention<float, SmallForward, SmallBackward>({2, 1, 70, 2, 2, 16, {}, true});
  test_attention<float, SmallForward, SmallBackward>({2, 3, 9, 2, 1, 8, {}, true});
}

TEST_CASE("kernels' attention of large heads") {
  test_attention<float, cuda::AttentionTile<4, 4, 2>, cuda::AttentionTile<4, 2, 2>>(
      {1, 67, 67, 2, 1, 96, {}});
  test_attention<float, cuda::AttentionTile<4, 4, 4>, cuda::AttentionTile<2, 2, 4>>(
      {1, 34, 34, 1, 1, 256, {}});
  test_attention<Bf16, cuda::AttentionTile<4, 4, 4>, cuda::AttentionTile<2, 2, 4>>(
      {1, 34, 34, 2, 1, 132, {0, 20}});
}

}  // namespace
}  // namespace troupe::train::tests
