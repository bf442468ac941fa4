// Attention: values against train/cpu, and its rate.

#include <fmt/format.h>

#include <cmath>

#include "tools/gpu_check/compared.h"

namespace troupe::tools::gpu {
namespace {

using train::AttentionShape;
using train::Operators;
using Side = Compared::Side;

struct Case {
  std::int64_t batch, queries, keys, query_heads, key_heads, head_dim;
  // Queries, keys and values side by side in one matrix, as a model has them; else dense.
  bool packed;
  std::int64_t segment;  // tokens of a segment; 0: one
  double dropout = 0;
};

std::vector<Case> cases(const Bench& bench) {
  std::vector<Case> out = {
      {1, 1, 1, 1, 1, 16, false, 0},          {2, 7, 7, 4, 2, 16, true, 0},
      {1, 65, 65, 2, 2, 64, true, 0},         {2, 50, 50, 6, 2, 64, true, 13},
      {1, 130, 130, 7, 1, 64, true, 40},      {1, 33, 33, 3, 3, 80, false, 0},
      {2, 40, 40, 4, 2, 128, true, 0},        {1, 1, 77, 4, 2, 64, false, 0},  // the next token
      {1, 5, 70, 4, 4, 128, false, 0},        {1, 65, 65, 4, 2, 64, true, 0, 0.1},
      {2, 130, 130, 6, 2, 64, true, 37, 0.3}, {2, 40, 40, 4, 2, 128, true, 13, 0.1},
      {1, 33, 33, 3, 1, 256, false, 0, 0.5},
  };
  if (!bench.rehearsal()) {
    out.push_back({2, 1024, 1024, 14, 2, 64, true, 0});
    out.push_back({1, 2000, 2000, 4, 2, 128, true, 300});
    out.push_back({2, 1024, 1024, 14, 2, 64, true, 300, 0.1});
  }
  return out;
}

// Which sample a query is of, its segment, and where it stands there.
std::vector<std::int32_t> numbers_of_samples(const Case& c, bool places) {
  std::vector<std::int32_t> numbers;
  const std::int64_t length = c.segment ? c.segment : c.queries;
  for (std::int64_t i = 0; i < c.batch * c.queries; ++i) {
    const std::int64_t query = i % c.queries;
    numbers.push_back(static_cast<std::int32_t>(places ? query % length : query / length + 5 * i));
  }
  if (!places)
    for (std::size_t i = 1; i < numbers.size(); ++i)
      if (static_cast<std::int64_t>(i) % c.queries % length != 0) numbers[i] = numbers[i - 1];
  return numbers;
}

// What a token's segment begins at.
std::vector<std::int32_t> first_keys(const Case& c) {
  std::vector<std::int32_t> first;
  for (std::int64_t i = 0; i < c.batch * c.queries; ++i)
    first.push_back(static_cast<std::int32_t>(i % c.queries / c.segment * c.segment));
  return first;
}

Result<Compared::Difference> run_case(Compared& c, const Case& a) {
  const std::int64_t query_width = a.query_heads * a.head_dim, key_width = a.key_heads * a.head_dim;
  const std::int64_t width = a.packed ? query_width + 2 * key_width : 0;
  const std::int64_t tokens = a.batch * a.queries;
  const auto qkv = c.activation("q, k, v", a.packed ? tokens * width : 1);
  const auto q = c.activation("q", a.packed ? 1 : tokens * query_width);
  const auto k = c.activation("k", a.packed ? 1 : a.batch * a.keys * key_width);
  const auto v = c.activation("v", a.packed ? 1 : a.batch * a.keys * key_width);
  const auto out = c.activation("out", tokens * query_width);
  const auto log_sum_exp = c.floats("log_sum_exp", tokens * a.query_heads);
  const auto dout = c.activation("dout", tokens * query_width);
  const auto dqkv = c.activation("gradients of q, k, v", a.packed ? tokens * width : 1);
  const bool backward = a.queries == a.keys;
  const auto dq = c.activation("dq", a.packed || !backward ? 1 : tokens * query_width);
  const auto dk = c.activation("dk", a.packed || !backward ? 1 : tokens * key_width);
  const auto dv = c.activation("dv", a.packed || !backward ? 1 : tokens * key_width);
  const auto first = c.integers("first_key", a.segment ? first_keys(a) : std::vector{0});
  const auto samples = c.integers("samples", numbers_of_samples(a, false));
  const auto places = c.integers("places", numbers_of_samples(a, true));
  // Softmax and two products: what bf16 operands of tensor cores round adds up.
  return c.run(
      [=](Operators& o, const Side& t) {
        const std::int64_t key_stride = a.packed ? width : key_width;
        train::Dropout dropout = train::dropout_of(a.dropout);
        dropout.seed = 42, dropout.epoch = 3;
        dropout.site = train::dropout_site(train::DropoutPlace::kAttention, 2);
        dropout.samples = t.integers(samples), dropout.tokens = t.integers(places);
        const AttentionShape shape{
            .batch = a.batch,
            .query_length = a.queries,
            .key_length = a.keys,
            .query_heads = a.query_heads,
            .key_heads = a.key_heads,
            .head_dim = a.head_dim,
            .query_stride = a.packed ? width : query_width,
            .key_stride = key_stride,
            .key_batch_stride = a.keys * key_stride,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim))),
            .first_key = a.segment ? t.integers(first) : nullptr,
            .dropout = dropout};
        float* queries = a.packed ? t(qkv) : t(q);
        float* keys = a.packed ? t(qkv, query_width) : t(k);
        float* values = a.packed ? t(qkv, query_width + key_width) : t(v);
        o.attention_forward(shape, queries, keys, values, t(out), t(log_sum_exp));
        if (!backward) return;
        o.attention_backward(shape, queries, keys, values, t(out), t(log_sum_exp), t(dout),
                             a.packed ? t(dqkv) : t(dq), a.packed ? t(dqkv, query_width) : t(dk),
                             a.packed ? t(dqkv, query_width + key_width) : t(dv));
      },
      // A query that sees one key alone has no gradient, but for that rounding.
      {.f32 = 3e-5, .bf16 = 2e-2, .least = 0.1});
}

Check attention_values_check(Flavour flavour) {
  return {.name = fmt::format("attention/values {}", flavour_name(flavour)),
          .what =
              "causal attention and its gradients: grouped heads, segments, packed operands, "
              "more keys than queries, dropout of the weights",
          .seconds = 3,
          .run = [flavour](Bench& bench) -> Result<Figure> {
            WorstDifference worst;
            for (const Case& a : cases(bench)) {
              Gpu* gpu = TROUPE_TRY(bench.gpu());
              const std::string what = fmt::format(
                  "batch {}, {} queries, {} keys, {} of {} heads of {}{}{}{}", a.batch, a.queries,
                  a.keys, a.query_heads, a.key_heads, a.head_dim, a.packed ? ", packed" : "",
                  a.segment ? fmt::format(", segments of {}", a.segment) : "",
                  a.dropout > 0 ? fmt::format(", dropout of {}", a.dropout) : "");
              Compared compared(*gpu, flavour, bench.exact() && flavour == Flavour::kF32);
              const auto difference = run_case(compared, a);
              if (!difference.ok()) return difference.status().prefixed(what);
              worst.add(*difference, what);
            }
            return worst.figure();
          }};
}

// Of 1,024 tokens of Qwen2.5's heads.
Check attention_speed_check(Flavour flavour) {
  return {
      .name = fmt::format("attention/rate {}", flavour_name(flavour)),
      .what =
          "TFLOP/s of attention and of its gradients, rows of 1,024 tokens, heads of "
          "Qwen2.5-0.5B and 7B",
      .seconds = 2,
      .run = [flavour](Bench& bench) -> Result<Figure> {
        const int type = flavour == Flavour::kBf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
        const std::int64_t element = flavour == Flavour::kBf16 ? 2 : 4;
        std::string text;
        double flops_sum = 0, ms_sum = 0;
        for (const auto& [query_heads, key_heads, head_dim] :
             {std::tuple(14, 2, 64), std::tuple(28, 4, 128)}) {
          Gpu* gpu = TROUPE_TRY(bench.gpu());
          const std::int64_t batch = bench.rehearsal() ? 1 : 8,
                             length = bench.rehearsal() ? 16 : 1024;
          const std::int64_t query_width = query_heads * head_dim, key_width = key_heads * head_dim;
          const std::int64_t width = query_width + 2 * key_width, tokens = batch * length;
          TroupeCudaAttention shape{.batch = batch,
                                    .query_length = length,
                                    .key_length = length,
                                    .query_heads = query_heads,
                                    .key_heads = key_heads,
                                    .head_dim = head_dim,
                                    .query_stride = width,
                                    .key_stride = width,
                                    .key_batch_stride = length * width,
                                    .scale = 0.1f,
                                    .type = type};
          const auto take = [&](std::int64_t bytes) -> Result<std::byte*> {
            std::byte* at = TROUPE_TRY(gpu->take(bytes));
            TROUPE_RETURN_IF_ERROR(gpu->device->status(
                gpu->table().fill(gpu->stream->get(), at, 0x3c, bytes), "filling operands"));
            return at;
          };
          std::byte* qkv = TROUPE_TRY(take(tokens * width * element));
          std::byte* dqkv = TROUPE_TRY(take(tokens * width * element));
          std::byte* out = TROUPE_TRY(take(tokens * query_width * element));
          std::byte* dout = TROUPE_TRY(take(tokens * query_width * element));
          auto* statistics = reinterpret_cast<float*>(TROUPE_TRY(take(tokens * query_heads * 4)));
          std::byte* scratch = TROUPE_TRY(take(gpu->table().attention_scratch_bytes(&shape)));
          const auto at = [element](std::byte* base, std::int64_t i) { return base + i * element; };
          const int times = bench.rehearsal() ? 1 : 10;
          const double forward = TROUPE_TRY(gpu->milliseconds("attention", times, [&] {
            return gpu->table().attention_forward(
                gpu->stream->get(), &shape, qkv, at(qkv, query_width),
                at(qkv, query_width + key_width), out, statistics);
          }));
          const double backward = TROUPE_TRY(gpu->milliseconds("its gradients", times, [&] {
            return gpu->table().attention_backward(
                gpu->stream->get(), &shape, qkv, at(qkv, query_width),
                at(qkv, query_width + key_width), out, statistics, dout, dqkv,
                at(dqkv, query_width), at(dqkv, query_width + key_width), scratch);
          }));
          // Two products of half of the square; backward five.
          const double flops = 2.0 * static_cast<double>(batch * query_heads * head_dim) *
                               static_cast<double>(length) * static_cast<double>(length);
          text += fmt::format("{}{} heads of {}: {:.0f}, backward {:.0f}", text.empty() ? "" : "; ",
                              query_heads, head_dim, flops / forward / 1e9,
                              2.5 * flops / backward / 1e9);
          flops_sum += 3.5 * flops, ms_sum += forward + backward;
        }
        return Figure{.value = flops_sum / ms_sum / 1e9, .unit = "TFLOP/s", .text = text};
      }};
}

}  // namespace

void add_attention_checks(std::vector<Check>& checks) {
  for (const Flavour flavour : {Flavour::kF32, Flavour::kBf16})
    checks.push_back(attention_values_check(flavour));
}

void add_attention_rate_checks(std::vector<Check>& checks) {
  for (const Flavour flavour : {Flavour::kBf16, Flavour::kF32})
    checks.push_back(attention_speed_check(flavour));
}

}  // namespace troupe::tools::gpu
