#include "train/trainer/gemm_rate.h"

#include <algorithm>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kRows = 512;
// Beyond these a product's rate grows no more, and its operands need not be larger.
constexpr std::int64_t kWidthMax = 2048;
// The same of any device.
constexpr std::int64_t kDeviceRowsMax = 4096, kDeviceWidthMax = 8192;
constexpr int kTimedRuns = 4;
// Enough of timing for one shape: every trainer measures when it starts, after a death too.
constexpr double kBudgetSeconds = 0.01;

struct Shape {
  std::int64_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k); }
};

GemmProbe probe_of(const ModelConfig& config, std::int64_t rows, std::int64_t width_max) {
  const auto width = [&](std::int64_t value) {
    return std::clamp<std::int64_t>(value, 1, width_max);
  };
  return {rows, width(config.hidden_size), width(config.intermediate_size)};
}

std::int64_t widest(const GemmProbe& probe) { return std::max(probe.hidden, probe.inner); }

struct Operands {
  ConstElements a;
  const void* b;
  Elements c;
};

// Seconds of the fastest of a few runs, after one that warms caches and threads.
double best_seconds(Operators& operators, const Clock& clock, const Shape& shape,
                    Arithmetic arithmetic, const Operands& operands,
                    const std::function<void()>& settle) {
  const Gemm gemm{.m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .a = operands.a.data,
                  .a_type = operands.a.type,
                  .a_stride = shape.k,
                  .b = operands.b,
                  .b_type = arithmetic == Arithmetic::kBf16 ? DType::kBF16 : DType::kF32,
                  .b_stride = shape.k,
                  .transpose_b = true,  // as weights lie
                  .c = operands.c,
                  .c_stride = shape.n,
                  .arithmetic = arithmetic};
  operators.gemm(gemm);
  settle();
  double best = 0, spent = 0;
  for (int run = 0; run < kTimedRuns && spent < kBudgetSeconds; ++run) {
    const TimePoint begin = clock.now();
    operators.gemm(gemm);
    settle();
    const double seconds = std::chrono::duration<double>(clock.now() - begin).count();
    spent += seconds;
    if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
  }
  return best;
}

// Numbers of [−1, 1), in whichever type they are read: a product of zeros takes less power, and
// then less time.
void fill(Operators& operators, std::span<std::byte> memory) {
  constexpr std::size_t kPattern = 1 << 18;
  SeededRandom random(1);
  std::vector<std::uint16_t> pattern(kPattern);
  for (std::uint16_t& value : pattern)
    value = float_to_bf16(static_cast<float>(random.below(2048)) / 1024.0f - 1.0f);
  for (std::size_t at = 0; at < memory.size(); at += 2 * kPattern)
    operators.upload(pattern.data(), memory.data() + at,
                     std::min(2 * kPattern, memory.size() - at));
}

double best_rate(Operators& operators, const Clock& clock, const GemmProbe& probe,
                 Arithmetic arithmetic, const Operands& operands,
                 const std::function<void()>& settle) {
  double rate = 0;
  for (const Shape& shape :
       {Shape{probe.rows, probe.inner, probe.hidden}, Shape{probe.rows, probe.hidden, probe.inner},
        Shape{probe.rows, probe.hidden, probe.hidden}}) {
    const double seconds = best_seconds(operators, clock, shape, arithmetic, operands, settle);
    if (seconds > 0) rate = std::max(rate, shape.flops() / seconds);
  }
  return rate;
}

}  // namespace

GemmProbe gemm_probe(const ModelConfig& config, std::int64_t tokens) {
  return probe_of(config, std::clamp<std::int64_t>(tokens, 1, kDeviceRowsMax), kDeviceWidthMax);
}

std::int64_t GemmProbe::bytes() const {
  const std::int64_t width = widest(*this);
  return static_cast<std::int64_t>(sizeof(float)) * (2 * rows * width + width * width);
}

double measure_gemm_rate(Operators& operators, const Clock& clock, const ModelConfig& config,
                         Arithmetic arithmetic) {
  const GemmProbe probe = probe_of(config, kRows, kWidthMax);
  const std::int64_t width = widest(probe);
  // Nothing is subnormal or grows: products of such values run at full speed.
  std::vector<float> a(static_cast<std::size_t>(kRows * width), 0.5f);
  const auto weights_count = static_cast<std::size_t>(width * width);
  const bool bf16 = arithmetic == Arithmetic::kBf16;
  const std::vector<float> wide(bf16 ? 0 : weights_count, 0.25f);
  const std::vector<std::uint16_t> narrow(bf16 ? weights_count : 0, float_to_bf16(0.25f));
  const void* weights = bf16 ? static_cast<const void*>(narrow.data()) : wide.data();
  std::vector<float> c(static_cast<std::size_t>(kRows * width));
  return best_rate(operators, clock, probe, arithmetic, {a.data(), weights, c.data()}, [] {});
}

double measure_gemm_rate(Operators& operators, const Clock& clock, const GemmProbe& probe,
                         Arithmetic arithmetic, std::span<std::byte> memory,
                         const std::function<void()>& settle) {
  TROUPE_CHECK(static_cast<std::int64_t>(memory.size()) >= probe.bytes());
  const std::int64_t width = widest(probe);
  auto* floats = reinterpret_cast<float*>(memory.data());
  fill(operators, memory);
  const bool narrow = arithmetic == Arithmetic::kBf16 && operators.stores_bf16();
  const DType type = narrow ? DType::kBF16 : DType::kF32;  // of activations
  const Operands operands{
      {floats, type}, floats + 2 * probe.rows * width, {floats + probe.rows * width, type}};
  return best_rate(operators, clock, probe, arithmetic, operands, settle);
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
