#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/attention_block.h"

namespace troupe::train::tests {
namespace {

struct Case {
  std::int64_t batch = 2, length = 70, heads = 4, key_heads = 2, dim = 6;
  bool segments = false;

  std::int64_t stride() const { return (heads + 2 * key_heads) * dim; }
  AttentionShape shape(const std::vector<std::int32_t>& first_key) const {
    AttentionShape s;
    s.batch = batch;
    s.query_length = s.key_length = length;
    s.query_heads = heads, s.key_heads = key_heads, s.head_dim = dim;
    s.query_stride = s.key_stride = stride();
    s.key_batch_stride = length * stride();
    s.scale = 0.7f;
    s.first_key = segments ? first_key.data() : nullptr;
    return s;
  }
  std::vector<std::int32_t> first_keys() const {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < batch * length; ++i)
      out.push_back(static_cast<std::int32_t>(i % length / 17 * 17));
    return out;
  }
};

struct Run {
  Vector out, lse, gradient;
};

Run run(const Case& c, const Vector& qkv, const Vector& dout, int threads) {
  OperatorFixture f(threads);
  const auto first_key = c.first_keys();
  const AttentionShape s = c.shape(first_key);
  const std::int64_t k = c.heads * c.dim, v = k + c.key_heads * c.dim;
  Run r{Vector(dout.size()), Vector(static_cast<std::size_t>(c.batch * c.heads * c.length)),
        Vector(qkv.size(), 9.0f)};
  f.operators->attention_forward(s, qkv.data(), qkv.data() + k, qkv.data() + v, r.out.data(),
                                 r.lse.data());
  f.operators->attention_backward(s, qkv.data(), qkv.data() + k, qkv.data() + v, r.out.data(),
                                  r.lse.data(), dout.data(), r.gradient.data(),
                                  r.gradient.data() + k, r.gradient.data() + v);
  return r;
}

// One output row in double.
std::vector<double> expected_row(const Case& c, const Vector& qkv, std::int64_t batch,
                                 std::int64_t t, std::int64_t head) {
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return static_cast<double>(
        qkv[static_cast<std::size_t>((batch * c.length + row) * c.stride() + column)]);
  };
  const std::int64_t key_head = head / (c.heads / c.key_heads);
  const std::int64_t k = (c.heads + key_head) * c.dim, v = k + c.key_heads * c.dim;
  std::vector<double> out(static_cast<std::size_t>(c.dim));
  double sum = 0;
  for (std::int64_t j = c.segments ? t / 17 * 17 : 0; j <= t; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) score += at(t, head * c.dim + d) * at(j, k + d);
    const double p = std::exp(score * 0.7f);
    sum += p;
    for (std::int64_t d = 0; d < c.dim; ++d) out[static_cast<std::size_t>(d)] += p * at(j, v + d);
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST_CASE("attention: heads of whole vectors, as models have them") {
  for (const std::int64_t dim : {16, 48, 64}) {
    for (const bool segments : {false, true}) {
      Case c;
      c.dim = dim, c.length = 133, c.segments = segments, c.key_heads = 4;
      CAPTURE(dim);
      CAPTURE(segments);
      Vector qkv = random_vector(c.batch * c.length * c.stride(), 1);
      for (float& x : qkv) x *= 0.3f;
      const Vector dout = random_vector(c.batch * c.length * c.heads * c.dim, 2);
      const Run r = run(c, qkv, dout, 3);
      for (std::int64_t t = 0; t < c.length; t += 11) {
        const auto expected = expected_row(c, qkv, 1, t, 3);
        for (std::int64_t d = 0; d < c.dim; ++d)
          CHECK(std::abs(r.out[static_cast<std::size_t>((c.length + t) * c.heads * c.dim +
                                                        3 * c.dim + d)] -
                         expected[static_cast<std::size_t>(d)]) < 1e-5);
      }
      check_gradient(qkv, r.gradient,
                     [&] { return inner_product(run(c, qkv, dout, 1).out, dout); });
    }
  }
}

TEST_CASE("attention: what a query does not see has no part in its result") {
  Case c;
  c.dim = 16, c.length = 100, c.segments = true;
  const std::int64_t k = c.heads * c.dim;
  Vector qkv = random_vector(c.batch * c.length * c.stride(), 1);
  const Vector dout(static_cast<std::size_t>(c.batch * c.length * c.heads * c.dim), 1.0f);
  const Run before = run(c, qkv, dout, 1);
  // Keys and values of all tokens but those of the segment 34 … 50 become large.
  for (std::int64_t row = 0; row < c.length; ++row)
    for (std::int64_t i = k; i < c.stride() && row / 17 != 2; ++i)
      qkv[static_cast<std::size_t>(row * c.stride() + i)] = 1e6f;
  const Run after = run(c, qkv, dout, 1);
  for (std::int64_t row = 34; row < 51; ++row)
    for (std::int64_t i = 0; i < k; ++i)
      CHECK(before.out[static_cast<std::size_t>(row * k + i)] ==
            after.out[static_cast<std::size_t>(row * k + i)]);
}

TEST_CASE("attention: values, gradients, and the same bits with two threads") {
  for (const std::int64_t length : {1, 7, 70, 150})
    for (const bool segments : {false, true}) {
      Case c;
      c.length = length, c.segments = segments;
      CAPTURE(length);
      CAPTURE(segments);
      Vector qkv = random_vector(c.batch * length * c.stride(), 1);
      const Vector dout = random_vector(c.batch * length * c.heads * c.dim, 2);
      const Run one = run(c, qkv, dout, 1), two = run(c, qkv, dout, 2);
      CHECK(one.out == two.out);
      CHECK(one.gradient == two.gradient);
      for (std::int64_t t = 0; t < length; t += 1 + length / 13) {
        const auto expected = expected_row(c, qkv, 1, t, 3);
        for (std::int64_t d = 0; d < c.dim; ++d)
          CHECK(one.out[static_cast<std::size_t>((length + t) * c.heads * c.dim + 3 * c.dim + d)] ==
                doctest::Approx(expected[static_cast<std::size_t>(d)]).epsilon(1e-4));
      }
      check_gradient(qkv, one.gradient,
                     [&] { return inner_product(run(c, qkv, dout, 1).out, dout); });
    }
}

TEST_CASE("attention: no block sees more keys than those of a sample and its own") {
  Case c;
  c.length = 1000;
  const auto first_key = c.first_keys();
  CHECK(AttentionBlock::keys_max(c.shape(first_key)) == 1000);
  c.segments = true;
  // 64 queries, up to 16 keys of a sample that began before, its first one's vector of 16.
  const std::int64_t keys = AttentionBlock::keys_max(c.shape(first_key));
  CHECK(keys > 64);
  CHECK(keys <= 64 + 16 + 15);
}

}  // namespace
}  // namespace troupe::train::tests
