// What follows a product in it (bias, GELU, GELU's gradient) against kernels of its own.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/random.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::Arithmetic;
using train::DType;
using train::Elements;
using train::Epilogue;
using train::Gemm;

// A linear layer as models have it: GPT-2's weights are [in, out], Qwen2.5's [out, in].
struct EpilogueLayer {
  const char* name;
  std::int64_t inputs, outputs;
  bool transposed_weights;
  Epilogue epilogue;
};
constexpr EpilogueLayer kEpilogueLayers[] = {
    {"Qwen2.5-0.5B's q, k, v + bias", 896, 1152, false, Epilogue::kBias},
    {"GPT-2's q, k, v + bias", 768, 2304, true, Epilogue::kBias},
    {"GPT-2's MLP + bias, GELU", 768, 3072, true, Epilogue::kBiasGelu},
    {"GPT-2's MLP + GELU's gradient", 768, 3072, false, Epilogue::kGeluGradient}};

// One product with all that it reads and writes, in memory of the device.
struct EpilogueProduct {
  Gemm gemm;
  const float* bias = nullptr;  // in fp32, for the kernel
  Elements sums, input;         // of the separate calls, and GELU's input as it was
  std::int64_t count = 0;
};

Result<Elements> random_elements(Gpu& gpu, DType type, std::int64_t count, std::uint64_t seed,
                                 float scale) {
  SeededRandom random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = scale * static_cast<float>(2.0 * random.unit() - 1.0);
  const auto bytes = static_cast<std::int64_t>(train::dtype_size(type)) * count;
  const Elements there(TROUPE_TRY(gpu.take(bytes)), type);
  std::vector<std::uint16_t> narrow;
  if (type == DType::kBF16) {
    narrow.resize(values.size());
    train::bf16_from_float(values.data(), narrow.data(), count);
  }
  gpu.operators->upload(narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data(),
                        there.data, static_cast<std::size_t>(bytes));
  return there;
}

// Sums of about `size`.
Result<EpilogueProduct> epilogue_product(Gpu& gpu, DType type, std::int64_t rows,
                                         const EpilogueLayer& layer, float size) {
  EpilogueProduct p;
  const std::int64_t k = layer.inputs, n = layer.outputs;
  const float spread = size / std::sqrt(static_cast<float>(k)) * 1.7f;
  const Elements a = TROUPE_TRY(random_elements(gpu, type, rows * k, 1, 1.0f)),
                 b = TROUPE_TRY(random_elements(gpu, type, n * k, 2, spread)),
                 bias = TROUPE_TRY(random_elements(gpu, type, n, 3, 1.0f));
  p.count = rows * n;
  p.input = TROUPE_TRY(random_elements(gpu, type, p.count, 4, 3.0f));
  const auto room = static_cast<std::int64_t>(train::dtype_size(type)) * p.count;
  p.sums = Elements(TROUPE_TRY(gpu.take(room)), type);
  p.gemm = {.m = rows,
            .n = n,
            .k = k,
            .a = a.data,
            .a_type = type,
            .a_stride = k,
            .b = b.data,
            .b_type = type,
            .b_stride = layer.transposed_weights ? n : k,
            .transpose_b = !layer.transposed_weights,
            .c = Elements(TROUPE_TRY(gpu.take(room)), type),
            .c_stride = n,
            .arithmetic = type == DType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kFp32,
            .epilogue = layer.epilogue};
  if (layer.epilogue == Epilogue::kGeluGradient) {
    p.gemm.gelu_input = p.input;
    return p;
  }
  p.gemm.bias = bias.data;
  // The same numbers in fp32.
  auto* wide = reinterpret_cast<float*>(TROUPE_TRY(gpu.take(n * 4)));
  p.bias = type == DType::kF32 ? static_cast<const float*>(bias.data) : wide;
  if (type == DType::kBF16)
    TROUPE_RETURN_IF_ERROR(
        gpu.device->status(gpu.table().convert(gpu.stream->get(), bias.data, TROUPE_CUDA_BF16, wide,
                                               TROUPE_CUDA_F32, n),
                           "widening a bias"));
  if (layer.epilogue == Epilogue::kBiasGelu)
    p.gemm.gelu_input = Elements(TROUPE_TRY(gpu.take(room)), type);
  return p;
}

// What the model calls where nothing is fused: the result is in p.sums, but for GELU's gradient,
// which replaces p.input.
void separately(train::CudaOperators& o, const EpilogueProduct& p, Elements activated) {
  Gemm plain = p.gemm;
  plain.epilogue = Epilogue::kNone;
  plain.bias = nullptr, plain.gelu_input = {};
  plain.c = p.sums;
  o.gemm(plain);
  if (p.bias) o.add_bias(p.sums, p.gemm.n, p.bias, p.gemm.m, p.gemm.n);
  if (p.gemm.epilogue == Epilogue::kBiasGelu) o.gelu_forward(p.sums, activated, p.count);
  // And GELU again, for the gradient of the weights behind it.
  if (p.gemm.epilogue == Epilogue::kGeluGradient) o.gelu_backward(p.input, p.sums, p.sums, p.count);
}

std::vector<float> downloaded(Gpu& gpu, Elements from, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (from.type == DType::kF32) {
    gpu.operators->download(from.data, values.data(), values.size() * 4);
    return values;
  }
  std::vector<std::uint16_t> bits(values.size());
  gpu.operators->download(from.data, bits.data(), bits.size() * 2);
  train::float_from_bf16(bits.data(), values.data(), count);
  return values;
}

// Of the greatest of `expected`.
double greatest_difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double greatest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    greatest = std::max<double>(greatest, std::abs(expected[i]));
    const double here = std::abs(static_cast<double>(got[i]) - expected[i]);
    worst = std::max(worst, std::isfinite(here) ? here : 1e30);
  }
  return worst / greatest;
}

// Fused against separate, results and what backward keeps; nothing where the device does not fuse.
Result<std::optional<double>> epilogue_difference(Gpu& gpu, DType type, std::int64_t rows,
                                                  const EpilogueLayer& layer) {
  const EpilogueProduct p = TROUPE_TRY(epilogue_product(gpu, type, rows, layer, 1.5f));
  train::CudaOperators& o = *gpu.operators;
  if (!o.fuses(p.gemm)) {
    TROUPE_RETURN_IF_ERROR(o.failure());
    return std::optional<double>();
  }
  o.gemm(p.gemm);
  const std::vector<float> fused = downloaded(gpu, p.gemm.c, p.count);
  const bool gelu = layer.epilogue == Epilogue::kBiasGelu;
  std::vector<float> kept;
  if (gelu) kept = downloaded(gpu, p.gemm.gelu_input, p.count);
  // Into what was fused: it has been read.
  separately(o, p, p.gemm.c);
  const bool gradient = layer.epilogue == Epilogue::kGeluGradient;
  double worst = greatest_difference(fused, downloaded(gpu,
                                                       gelu       ? p.gemm.c
                                                       : gradient ? p.input
                                                                  : p.sums,
                                                       p.count));
  if (gelu) worst = std::max(worst, greatest_difference(kept, downloaded(gpu, p.sums, p.count)));
  TROUPE_RETURN_IF_ERROR(o.failure());
  return std::optional(worst);
}

EpilogueLayer small(EpilogueLayer layer, std::int64_t by) {
  layer.inputs /= by, layer.outputs /= by;
  return layer;
}

// fp32 sums in another order, and another's hyperbolic tangent; GELU by the error function would
// be 2e-4 beside. Of bf16 the separate way rounds more often.
constexpr double kFusedTolerance32 = 1e-4, kFusedTolerance16 = 1.6e-2;

Result<Figure> check_epilogue_values(Bench& bench) {
  double worst = 0;
  std::string text, without;
  int cases = 0;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const EpilogueLayer& layer : kEpilogueLayers) {
      for (const std::int64_t rows : {1, 33, 512}) {
        Gpu* gpu = TROUPE_TRY(bench.gpu());
        const std::int64_t by = bench.rehearsal() ? 8 : rows == 512 ? 1 : 4;
        const std::string name =
            fmt::format("{}, {}, {} rows", layer.name, train::dtype_name(type), rows);
        const auto difference = epilogue_difference(
            *gpu, type, bench.rehearsal() ? std::min<std::int64_t>(rows, 40) : rows,
            small(layer, by));
        if (!difference.ok()) return difference.status().prefixed(name);
        if (!*difference) {
          without += (without.empty() ? "" : "; ") + name;
          continue;
        }
        ++cases;
        const double share =
            **difference / (type == DType::kF32 ? kFusedTolerance32 : kFusedTolerance16);
        if (share < worst && !text.empty()) continue;
        worst = share;
        text = fmt::format("{} of its greatest in {}", **difference, name);
      }
    }
  }
  if (cases == 0)
    return error(Code::kUnsupported, "nothing is fused with a product here: {}", without);
  return Figure{.value = worst,
                .unit = "of the tolerance",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 1,
                .text = fmt::format("{} products, worst: {}{}{}", cases, text,
                                    without.empty() ? "" : "; not fused: ", without)};
}

Result<Figure> check_epilogue_rate(Bench& bench) {
  double fused_ms = 0, separate_ms = 0;
  std::string text;
  const std::int64_t rows = bench.rehearsal() ? 32 : 8192;
  for (const EpilogueLayer& layer : kEpilogueLayers) {
    Gpu* gpu = TROUPE_TRY(bench.gpu());
    const EpilogueProduct p = TROUPE_TRY(epilogue_product(
        *gpu, DType::kBF16, rows, bench.rehearsal() ? small(layer, 8) : layer, 1.0f));
    train::CudaOperators& o = *gpu->operators;
    const int times = bench.rehearsal() ? 1 : 20;
    const Elements activated(TROUPE_TRY(gpu->take(p.count * 2)), DType::kBF16);
    const double separate = TROUPE_TRY(gpu->milliseconds(layer.name, times, [&] {
      separately(o, p, activated);
      return TROUPE_CUDA_OK;
    }));
    text += fmt::format("{}{}: ", text.empty() ? "" : "; ", layer.name);
    if (!o.fuses(p.gemm)) {
      TROUPE_RETURN_IF_ERROR(o.failure());
      text += fmt::format("not fused, {:.3f} ms", separate);
      continue;
    }
    const double fused = TROUPE_TRY(gpu->milliseconds(layer.name, times, [&] {
      o.gemm(p.gemm);
      if (layer.epilogue == Epilogue::kGeluGradient) o.gelu_forward(p.input, p.input, p.count);
      return TROUPE_CUDA_OK;
    }));
    TROUPE_RETURN_IF_ERROR(o.failure());
    fused_ms += fused, separate_ms += separate;
    text += fmt::format("{:.3f} ms of {:.3f}", fused, separate);
  }
  if (fused_ms == 0)
    return error(Code::kUnsupported, "nothing is fused with a product here: {}", text);
  return Figure{.value = separate_ms / fused_ms,
                .unit = "times the separate kernels' rate",
                .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                .bar_value = 1,
                .text = text};
}

}  // namespace

void add_epilogue_checks(std::vector<Check>& checks) {
  checks.push_back({"products/epilogues",
                    "bias, GELU and GELU's gradient in the product against kernels of their own", 1,
                    check_epilogue_values});
}

void add_epilogue_rate_checks(std::vector<Check>& checks) {
  checks.push_back({"products/epilogues rate",
                    "the time of a product with what follows it in it, and of both apart (8,192 "
                    "tokens)",
                    1, check_epilogue_rate});
}

}  // namespace troupe::tools::gpu
