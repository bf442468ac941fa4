// Products: values against train/cpu, and the first algorithm's time against the best one's.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tools/gpu_check/compared.h"

namespace troupe::tools::gpu {
namespace {

using train::Arithmetic;
using train::DType;
using train::Gemm;
using train::Operators;
using Side = Compared::Side;

struct Sizes {
  std::int64_t m, n, k;
};

std::vector<Sizes> value_sizes(const Bench& bench) {
  std::vector<Sizes> sizes = {{1, 1, 1},    {3, 5, 7},      {1, 896, 896}, {64, 128, 64},
                              {33, 40, 90}, {130, 70, 300}, {17, 1152, 8}};
  if (!bench.rehearsal()) {
    sizes.push_back({512, 1216, 896});
    sizes.push_back({300, 896, 2432});
    sizes.push_back({64, 50257, 96});
  }
  return sizes;
}

enum class Values { kF32, kTf32, kBf16, kBf16Result };

const char* values_name(Values values) {
  switch (values) {
    case Values::kF32:
      return "fp32";
    case Values::kTf32:
      return "tf32";
    case Values::kBf16:
      return "bf16";
    case Values::kBf16Result:
      return "bf16 to bf16";
  }
  return "";
}

// What TF32 units take of an operand.
void round_to_tf32(float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    x[i] = std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
  }
}

// One product of all transpositions, accumulated or not; rows lie further apart than they are wide
// in some.
Result<Compared::Difference> product_case(Gpu& gpu, bool exact, Values values, const Sizes& s,
                                          bool ta, bool tb, bool accumulate, std::int64_t gap) {
  const bool bf16 = values == Values::kBf16 || values == Values::kBf16Result;
  // The CPU's bf16 products sum in an order of their own, by what types the operands have.
  const Flavour flavour = values == Values::kBf16Result ? Flavour::kBf16 : Flavour::kF32;
  Compared c(gpu, flavour, exact && !bf16);
  const std::int64_t a_stride = (ta ? s.m : s.k) + gap, b_stride = (tb ? s.k : s.n) + gap,
                     c_stride = s.n + gap;
  const std::int64_t a_count = (ta ? s.k : s.m) * a_stride, b_count = (tb ? s.n : s.k) * b_stride;
  const bool half_b = bf16 && !accumulate;  // weights are bf16, activations and gradients fp32
  const auto a = c.activation("a", a_count);
  const auto b = half_b ? c.bf16("b", b_count) : c.activation("b", b_count);
  const auto out = c.activation("c", s.m * c_stride);
  const bool tf32 = values == Values::kTf32;
  if (tf32) c.ignore(a), c.ignore(b);
  const auto call = [=](Operators& o, const Side& t) {
    if (tf32 && !t.on_device()) round_to_tf32(t(a), a_count), round_to_tf32(t(b), b_count);
    Gemm gemm{.m = s.m,
              .n = s.n,
              .k = s.k,
              .a = t(a),
              .a_stride = a_stride,
              .transpose_a = ta,
              .b = t(b),
              .b_type = half_b ? DType::kBF16 : DType::kF32,
              .b_stride = b_stride,
              .transpose_b = tb,
              .c = t(out),
              .c_stride = c_stride,
              .accumulate = accumulate,
              .arithmetic = bf16 ? Arithmetic::kBf16 : Arithmetic::kFp32};
    o.gemm(gemm);
  };
  // Sums of k terms of random signs, in another order; TF32 units may cut what they do not take.
  const double order = 2e-6 * std::sqrt(static_cast<double>(s.k)) + 1e-5;
  if (tf32) return c.run_on(*gpu.tf32_operators, call, {.f32 = 2e-3});
  return c.run(call, {.f32 = order});
}

Check product_values_check(Values values) {
  return {.name = fmt::format("products/values {}", values_name(values)),
          .what =
              "products of all transpositions, alone and added to, by strides, one row, odd "
              "sizes, against the CPU's",
          .seconds = 2,
          .run = [values](Bench& bench) -> Result<Figure> {
            WorstDifference worst;
            for (const Sizes& s : value_sizes(bench))
              for (int flags = 0; flags < 16; ++flags) {
                // Strides that are odd, and ones that are not.
                const std::int64_t gap = flags & 8 ? (s.k % 2 ? 3 : 8) : 0;
                Gpu* gpu = TROUPE_TRY(bench.gpu());
                const std::string what =
                    fmt::format("m={} n={} k={}{}{}{}{}", s.m, s.n, s.k, flags & 1 ? " aT" : "",
                                flags & 2 ? " bT" : "", flags & 4 ? " +=" : "",
                                gap ? fmt::format(" gaps of {}", gap) : "");
                const auto difference =
                    product_case(*gpu, bench.rehearsal(), values, s, (flags & 1) != 0,
                                 (flags & 2) != 0, (flags & 4) != 0, gap);
                if (!difference.ok()) return difference.status().prefixed(what);
                worst.add(*difference, what);
              }
            return worst.figure();
          }};
}

// A training step's products of a model.
struct Model {
  const char* name;
  std::int64_t hidden, qkv, inner, vocabulary;
};
constexpr Model kModels[] = {{"qwen2.5-0.5b", 896, 1152, 4864, 151936},
                             {"qwen2.5-7b", 3584, 4608, 18944, 152064}};

struct Rated {
  std::string name;
  TroupeCudaGemm gemm;
  double flops() const {
    return 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
           static_cast<double>(gemm.k);
  }
};

// A linear layer's three products: forward, gradient of its inputs, gradient of its weights.
void add_layer(std::vector<Rated>& out, const std::string& name, std::int64_t rows,
               std::int64_t inputs, std::int64_t outputs, int type, int arithmetic) {
  const auto one = [&](const char* kind, Sizes s, bool ta, bool tb) {
    out.push_back({name + " " + kind,
                   {.m = s.m,
                    .n = s.n,
                    .k = s.k,
                    .a_stride = ta ? s.m : s.k,
                    .b_stride = tb ? s.k : s.n,
                    .c_stride = s.n,
                    .a_type = type,
                    .b_type = type,
                    .c_type = TROUPE_CUDA_F32,
                    .transpose_a = ta,
                    .transpose_b = tb,
                    .accumulate = ta,
                    .arithmetic = arithmetic,
                    .alignment_bytes = 16}});
  };
  one("nt", {rows, outputs, inputs}, false, true);
  one("nn", {rows, inputs, outputs}, false, false);
  one("tn", {outputs, inputs, rows}, true, false);
}

std::vector<Rated> rated(const Bench& bench, const Model& m, int type, int arithmetic) {
  const std::int64_t shrink = bench.rehearsal() ? 56 : 1;
  const std::int64_t rows = bench.rehearsal() ? 32 : 8192;
  const auto size = [shrink](std::int64_t n) { return std::max<std::int64_t>(8, n / shrink); };
  std::vector<Rated> out;
  add_layer(out, "qkv", rows, size(m.hidden), size(m.qkv), type, arithmetic);
  add_layer(out, "gate+up", rows, size(m.hidden), size(2 * m.inner), type, arithmetic);
  add_layer(out, "down", rows, size(m.inner), size(m.hidden), type, arithmetic);
  add_layer(out, "logits", std::min<std::int64_t>(rows, 512), size(m.hidden), size(m.vocabulary),
            type, arithmetic);
  return out;
}

Check product_speed_check(const Model& model, Values values) {
  return {.name = fmt::format("products/rate {} {}", values_name(values), model.name),
          .what =
              "the algorithm that is taken against the fastest of the first eight, over a step's "
              "products; TFLOP/s of each",
          .seconds = values == Values::kF32 ? 10.0 : 4.0,
          .run = [model, values](Bench& bench) -> Result<Figure> {
            const bool bf16 = values == Values::kBf16;
            const int type = bf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
            const int arithmetic = bf16                      ? TROUPE_CUDA_COMPUTE_BF16
                                   : values == Values::kTf32 ? TROUPE_CUDA_COMPUTE_TF32
                                                             : TROUPE_CUDA_COMPUTE_F32;
            const std::int64_t element = bf16 ? 2 : 4;
            std::string text;
            double first_ms = 0, best_ms = 0, flops = 0;
            for (const Rated& product : rated(bench, model, type, arithmetic)) {
              Gpu* gpu = TROUPE_TRY(bench.gpu());
              const TroupeCudaGemm& g = product.gemm;
              std::byte* a = TROUPE_TRY(gpu->take(g.m * g.k * element));
              std::byte* b = TROUPE_TRY(gpu->take(g.k * g.n * element));
              std::byte* c = TROUPE_TRY(gpu->take(g.m * g.n * 4));
              // Bytes 0x3c: small numbers of either type, as products of real ones cost.
              for (const auto& [at, bytes] :
                   {std::pair(a, g.m * g.k * element), std::pair(b, g.k * g.n * element)})
                TROUPE_RETURN_IF_ERROR(gpu->device->status(
                    gpu->table().fill(gpu->stream->get(), at, 0x3c, bytes), "filling operands"));
              TROUPE_RETURN_IF_ERROR(gpu->device->status(
                  gpu->table().fill(gpu->stream->get(), c, 0, g.m * g.n * 4), "filling operands"));
              const auto timings = TROUPE_TRY(gpu->algorithms->time(
                  g, {.a = a, .b = b, .c = c, .workspace = gpu->workspace}, *gpu->stream,
                  bench.rehearsal() ? 3 : 8, bench.rehearsal() ? 1 : 5));
              double best = timings.front().milliseconds;
              for (const auto& timing : timings) best = std::min(best, timing.milliseconds);
              const double first = timings.front().milliseconds;
              first_ms += first, best_ms += best, flops += product.flops();
              text += fmt::format("{}{} {:.0f} TFLOP/s of {:.0f}", text.empty() ? "" : ", ",
                                  product.name, product.flops() / first / 1e9,
                                  product.flops() / best / 1e9);
            }
            return Figure{
                .value = 100 * best_ms / first_ms,
                .unit = "% of the fastest algorithms' rate",
                .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                .bar_value = 95,
                .text = fmt::format("{:.0f} TFLOP/s together: {}", flops / first_ms / 1e9, text)};
          }};
}

}  // namespace

void add_product_checks(std::vector<Check>& checks) {
  for (const Values values : {Values::kBf16, Values::kF32, Values::kTf32, Values::kBf16Result})
    checks.push_back(product_values_check(values));
}

void add_product_rate_checks(std::vector<Check>& checks) {
  for (const Values values : {Values::kBf16, Values::kTf32, Values::kF32})
    for (const Model& model : kModels) checks.push_back(product_speed_check(model, values));
}

}  // namespace troupe::tools::gpu
