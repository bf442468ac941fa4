#include "train/trainer/gemm_rate.h"

#include <algorithm>
#include <vector>

#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kRows = 512;
// Beyond these a product's rate grows no more, and its operands need not be larger.
constexpr std::int64_t kWidthMax = 2048;
constexpr int kTimedRuns = 4;
// Enough of timing for one shape: every trainer measures when it starts, after a death too.
constexpr double kBudgetSeconds = 0.01;

struct Shape {
  std::int64_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k); }
};

// Seconds of the fastest of a few runs, after one that warms caches and threads.
double best_seconds(Operators& operators, const Clock& clock, const Shape& shape,
                    Arithmetic arithmetic, std::vector<float>& a, const void* b,
                    std::vector<float>& c) {
  const Gemm gemm{.m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .a = a.data(),
                  .a_stride = shape.k,
                  .b = b,
                  .b_type = arithmetic == Arithmetic::kBf16 ? DType::kBF16 : DType::kF32,
                  .b_stride = shape.k,
                  .transpose_b = true,  // as weights lie
                  .c = c.data(),
                  .c_stride = shape.n,
                  .arithmetic = arithmetic};
  operators.gemm(gemm);
  double best = 0, spent = 0;
  for (int run = 0; run < kTimedRuns && spent < kBudgetSeconds; ++run) {
    const TimePoint begin = clock.now();
    operators.gemm(gemm);
    const double seconds = std::chrono::duration<double>(clock.now() - begin).count();
    spent += seconds;
    if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
  }
  return best;
}

}  // namespace

double measure_gemm_rate(Operators& operators, const Clock& clock, const ModelConfig& config,
                         Arithmetic arithmetic) {
  const auto width = [](std::int64_t value) {
    return std::clamp<std::int64_t>(value, 1, kWidthMax);
  };
  const std::int64_t hidden = width(config.hidden_size);
  const std::int64_t inner = width(config.intermediate_size);
  const std::int64_t widest = std::max(hidden, inner);
  // Nothing is subnormal or grows: products of such values run at full speed.
  std::vector<float> a(static_cast<std::size_t>(kRows * widest), 0.5f);
  const auto weights_count = static_cast<std::size_t>(widest * widest);
  const bool bf16 = arithmetic == Arithmetic::kBf16;
  const std::vector<float> wide(bf16 ? 0 : weights_count, 0.25f);
  const std::vector<std::uint16_t> narrow(bf16 ? weights_count : 0, float_to_bf16(0.25f));
  const void* weights = bf16 ? static_cast<const void*>(narrow.data()) : wide.data();
  std::vector<float> c(static_cast<std::size_t>(kRows * widest));
  double rate = 0;
  for (const Shape& shape :
       {Shape{kRows, inner, hidden}, Shape{kRows, hidden, inner}, Shape{kRows, hidden, hidden}}) {
    const double seconds = best_seconds(operators, clock, shape, arithmetic, a, weights, c);
    if (seconds > 0) rate = std::max(rate, shape.flops() / seconds);
  }
  return rate;
}

void warm_up_products() {
  Arena arena(1);
  const auto operators = make_cpu_operators(arena);
  constexpr std::int64_t kSize = 32;
  const std::vector<float> a(kSize * kSize, 0.5f);
  std::vector<float> c(kSize * kSize);
  // Small ones, in each way in which passes use them: forward, gradients of inputs and of weights.
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      operators->gemm({.m = kSize - 8,
                       .n = kSize - 8,
                       .k = 8,
                       .a = a.data(),
                       .a_stride = kSize,
                       .transpose_a = transpose_a,
                       .b = a.data(),
                       .b_stride = kSize,
                       .transpose_b = transpose_b,
                       .c = c.data(),
                       .c_stride = kSize,
                       .accumulate = transpose_a});
    }
  }
}

}  // namespace troupe::train
