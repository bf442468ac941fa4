// Products of 8 bits: codes bit by bit, values, rates beside bf16's, losses beside bf16's.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/random.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/kernels/fp8.h"
#include "train/cuda/operators/fp8_products.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::Arithmetic;
using train::DType;
using train::Gemm;
using train::Narrow;
namespace cuda = train::cuda;

// The device, where it has 8 bits; kUnsupported where not.
Result<Gpu*> gpu_with_fp8(Bench& bench) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  TROUPE_RETURN_IF_ERROR(train::check_fp8(*gpu->device));
  return gpu;
}

std::vector<std::uint16_t> random_bf16_bits(std::int64_t count, std::uint64_t seed, float scale) {
  SeededRandom random(seed);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
  for (std::uint16_t& x : bits)
    x = train::float_to_bf16(scale * static_cast<float>(2.0 * random.unit() - 1.0));
  return bits;
}

std::uint32_t fp8_code_of(int format, float value) {
  return format == TROUPE_CUDA_E5M2 ? cuda::fp8_from_float<cuda::E5M2>(value)
                                    : cuda::fp8_from_float<cuda::E4M3>(value);
}

float held_in_fp8(int format, float value, const cuda::Fp8Scale& scale) {
  const std::uint32_t code = fp8_code_of(format, value * scale.scale);
  return scale.inverse * (format == TROUPE_CUDA_E5M2 ? cuda::float_from_fp8<cuda::E5M2>(code)
                                                     : cuda::float_from_fp8<cuda::E4M3>(code));
}

cuda::Fp8Scale fp8_scale_of(int format, const std::vector<std::uint16_t>& bits) {
  std::uint32_t greatest = 0;
  for (const std::uint16_t x : bits)
    greatest = std::max(greatest, static_cast<std::uint32_t>(x & 0x7fffu) << 16);
  return format == TROUPE_CUDA_E5M2 ? cuda::fp8_scale<cuda::E5M2>(greatest)
                                    : cuda::fp8_scale<cuda::E4M3>(greatest);
}

// Codes of one matrix that differ from the host's.
Result<std::int64_t> wrong_fp8_codes(Gpu& gpu, const TroupeCudaQuantize& q) {
  const std::vector<std::uint16_t> x = random_bf16_bits(q.rows * q.stride, 5, 1e-3f);
  const std::int64_t out_rows = q.transpose ? q.columns : q.rows;
  const std::int64_t inside = q.transpose ? q.rows : q.columns;
  std::byte* source = TROUPE_TRY(gpu.take(std::ssize(x) * 2));
  std::byte* out = TROUPE_TRY(gpu.take(out_rows * q.out_stride));
  auto* scales = reinterpret_cast<float*>(TROUPE_TRY(gpu.take(2 * sizeof(float))));
  std::byte* parts = TROUPE_TRY(gpu.take(gpu.table().quantize_scratch_bytes()));
  gpu.operators->upload(x.data(), source, x.size() * 2);
  TROUPE_RETURN_IF_ERROR(gpu.device->status(
      gpu.table().quantize(gpu.stream->get(), &q, source, out, scales, parts), "quantize"));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(out_rows * q.out_stride));
  float found[2];
  gpu.operators->download(out, codes.data(), codes.size());
  gpu.operators->download(scales, found, sizeof found);
  TROUPE_RETURN_IF_ERROR(gpu.operators->failure());
  // Between rows nothing counts.
  std::vector<std::uint16_t> dense;
  for (std::int64_t row = 0; row < q.rows; ++row)
    dense.insert(dense.end(), x.begin() + row * q.stride, x.begin() + row * q.stride + q.columns);
  const cuda::Fp8Scale scale = fp8_scale_of(q.format, dense);
  std::int64_t wrong = found[0] != scale.scale || found[1] != scale.inverse;
  for (std::int64_t row = 0; row < out_rows; ++row) {
    for (std::int64_t i = 0; i < q.out_stride; ++i) {
      const std::int64_t at = q.transpose ? i * q.columns + row : row * q.columns + i;
      const std::uint32_t expected =
          i < inside
              ? fp8_code_of(q.format,
                            train::bf16_to_float(dense[static_cast<std::size_t>(at)]) * scale.scale)
              : 0;
      wrong += codes[static_cast<std::size_t>(row * q.out_stride + i)] != expected;
    }
  }
  return wrong;
}

Result<Figure> check_fp8_codes(Bench& bench) {
  struct Size {
    std::int64_t rows, columns, gap;
  };
  std::int64_t wrong = 0, matrices = 0;
  std::vector<Size> sizes = {{1, 1, 0}, {7, 40, 3}, {65, 72, 8}, {130, 200, 0}};
  if (!bench.rehearsal()) sizes.push_back({1000, 4864, 0});
  for (const Size& s : sizes) {
    for (const int format : {TROUPE_CUDA_E4M3, TROUPE_CUDA_E5M2}) {
      for (const int transpose : {0, 1}) {
        Gpu* gpu = TROUPE_TRY(gpu_with_fp8(bench));
        const std::int64_t inside = transpose ? s.rows : s.columns;
        wrong += TROUPE_TRY(wrong_fp8_codes(*gpu, {.rows = s.rows,
                                                   .columns = s.columns,
                                                   .stride = s.columns + s.gap,
                                                   .type = TROUPE_CUDA_BF16,
                                                   .format = format,
                                                   .transpose = transpose,
                                                   .out_stride = (inside + 15) / 16 * 16}));
        ++matrices;
      }
    }
  }
  return Figure{.value = static_cast<double>(wrong),
                .unit = "codes and scales that are not the host's",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = fmt::format("{} matrices", matrices)};
}

// --- products of a linear layer: forward, gradient of its inputs, gradient of its weights

constexpr const char* kLayerProducts[] = {"forward", "input gradient", "weight gradient"};

Gemm layer_product(int kind, std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  Gemm g{.m = kind == 2 ? outputs : rows,
         .n = kind == 0 ? outputs : inputs,
         .k = kind == 0   ? inputs
              : kind == 1 ? outputs
                          : rows,
         .a_type = DType::kBF16,
         .transpose_a = kind == 2,
         .b_type = DType::kBF16,
         .transpose_b = kind == 0,
         .arithmetic = Arithmetic::kBf16,
         .narrow_a = kind == 0 ? Narrow::kValue : Narrow::kGradient,
         .narrow_b = Narrow::kValue};
  g.a_stride = g.transpose_a ? g.m : g.k;
  g.b_stride = g.transpose_b ? g.k : g.n;
  g.c_stride = g.n;
  return g;
}

// Of the greatest sum, the greatest difference from the same product of rounded operands in fp32.
Result<double> fp8_product_difference(Gpu& gpu, Gemm g) {
  const auto a = random_bf16_bits(g.m * g.k, 1, g.narrow_a == Narrow::kGradient ? 1e-5f : 2.0f);
  const auto b = random_bf16_bits(g.k * g.n, 2, 0.05f);
  const int a_format = g.narrow_a == Narrow::kGradient ? TROUPE_CUDA_E5M2 : TROUPE_CUDA_E4M3;
  const cuda::Fp8Scale a_scale = fp8_scale_of(a_format, a),
                       b_scale = fp8_scale_of(TROUPE_CUDA_E4M3, b);
  std::vector<float> a_held, b_held;
  for (const std::uint16_t x : a)
    a_held.push_back(held_in_fp8(a_format, train::bf16_to_float(x), a_scale));
  for (const std::uint16_t x : b)
    b_held.push_back(held_in_fp8(TROUPE_CUDA_E4M3, train::bf16_to_float(x), b_scale));
  std::vector<float> expected(static_cast<std::size_t>(g.m * g.n)), found(expected.size());
  Gemm host = g;
  host.a = a_held.data(), host.b = b_held.data(), host.c = expected.data();
  host.a_type = host.b_type = DType::kF32;
  host.arithmetic = Arithmetic::kFp32;
  gpu.host->gemm(host);
  std::byte* a_there = TROUPE_TRY(gpu.take(std::ssize(a) * 2));
  std::byte* b_there = TROUPE_TRY(gpu.take(std::ssize(b) * 2));
  std::byte* c_there = TROUPE_TRY(gpu.take(std::ssize(found) * 4));
  train::CudaOperators& o = *gpu.fp8_operators;
  o.upload(a.data(), a_there, a.size() * 2);
  o.upload(b.data(), b_there, b.size() * 2);
  g.a = a_there, g.b = b_there, g.c = reinterpret_cast<float*>(c_there);
  o.gemm(g);
  o.download(c_there, found.data(), found.size() * 4);
  TROUPE_RETURN_IF_ERROR(o.failure());
  double greatest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    greatest = std::max<double>(greatest, std::abs(expected[i]));
    const double here = std::abs(static_cast<double>(found[i]) - expected[i]);
    worst = std::max(worst, std::isfinite(here) ? here : 1e30);
  }
  return worst / greatest;
}

Result<Figure> check_fp8_values(Bench& bench) {
  struct Size {
    std::int64_t rows, inputs, outputs;
  };
  std::vector<Size> sizes = {{1, 16, 16}, {21, 48, 64}, {80, 128, 96}};
  if (!bench.rehearsal()) sizes.push_back({513, 896, 4864});
  double worst = 0;
  std::string text;
  for (const Size& s : sizes) {
    for (int kind = 0; kind < 3; ++kind) {
      Gpu* gpu = TROUPE_TRY(gpu_with_fp8(bench));
      const double here = TROUPE_TRY(
          fp8_product_difference(*gpu, layer_product(kind, s.rows, s.inputs, s.outputs)));
      if (here < worst) continue;
      worst = here;
      text = fmt::format("worst: {} of {} rows, {} to {}", kLayerProducts[kind], s.rows, s.inputs,
                         s.outputs);
    }
  }
  // The units keep fewer bits than fp32 between the sums that cuBLASLt makes of theirs.
  return Figure{.value = worst,
                .unit = "of the greatest sum, the worst difference",
                .bar = Figure::Bar::kAtMost,
                .bar_value = bench.rehearsal() ? 1e-5 : 1e-3,
                .text = text};
}

// Qwen2.5's blocks: hidden, queries with keys and values, inner.
struct Fp8Model {
  const char* name;
  std::int64_t hidden, qkv, inner;
};
constexpr Fp8Model kFp8Models[] = {{"qwen2.5-0.5b", 896, 1152, 4864},
                                   {"qwen2.5-7b", 3584, 4608, 18944}};

Check fp8_rate_check(const Fp8Model& model) {
  return {
      .name = fmt::format("products/fp8 rate {}", model.name),
      .what =
          "a block's products in fp8, the rounding of their operands included, beside bf16's "
          "(8,192 tokens)",
      .seconds = 2,
      .run = [model](Bench& bench) -> Result<Figure> {
        const std::int64_t rows = bench.rehearsal() ? 32 : 8192;
        const auto size = [&](std::int64_t n) {
          return bench.rehearsal() ? (n / 896 + 1) * 16 : n;
        };
        const std::int64_t layers[][2] = {{size(model.hidden), size(model.qkv)},
                                          {size(model.hidden), size(model.hidden)},
                                          {size(model.hidden), size(2 * model.inner)},
                                          {size(model.inner), size(model.hidden)}};
        double ms[2] = {}, flops = 0;
        for (const auto& layer : layers) {
          for (int kind = 0; kind < 3; ++kind) {
            Gpu* gpu = TROUPE_TRY(gpu_with_fp8(bench));
            Gemm g = layer_product(kind, rows, layer[0], layer[1]);
            std::byte* a_there = TROUPE_TRY(gpu->take(g.m * g.k * 2));
            std::byte* b_there = TROUPE_TRY(gpu->take(g.k * g.n * 2));
            // Bytes 0x3c: small numbers, as products of real ones cost.
            for (const auto& [at, bytes] :
                 {std::pair(a_there, g.m * g.k * 2), std::pair(b_there, g.k * g.n * 2)})
              TROUPE_RETURN_IF_ERROR(gpu->device->status(
                  gpu->table().fill(gpu->stream->get(), at, 0x3c, bytes), "filling operands"));
            g.a = a_there, g.b = b_there;
            // Activations are bf16, gradients of weights fp32.
            std::byte* c_there = TROUPE_TRY(gpu->take(g.m * g.n * 4));
            if (kind == 2)
              g.c = reinterpret_cast<float*>(c_there);
            else
              g.c = reinterpret_cast<std::uint16_t*>(c_there);
            train::CudaOperators* const sides[] = {gpu->fp8_operators.get(), gpu->operators.get()};
            for (int side = 0; side < 2; ++side) {
              ms[side] += TROUPE_TRY(gpu->milliseconds("products", bench.rehearsal() ? 1 : 10, [&] {
                sides[side]->gemm(g);
                return TROUPE_CUDA_OK;
              }));
              TROUPE_RETURN_IF_ERROR(sides[side]->failure());
            }
            flops += 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) *
                     static_cast<double>(g.k);
          }
        }
        return Figure{.value = ms[1] / ms[0],
                      .unit = "times bf16's rate",
                      .text = fmt::format("fp8 {:.0f} TFLOP/s with its roundings, bf16 {:.0f}",
                                          flops / ms[0] / 1e9, flops / ms[1] / 1e9)};
      }};
}

Result<std::vector<double>> fp8_losses_of(Gpu& gpu, const NamedConfig& named, bool fp8, int steps) {
  const TrainOptions options{.compute = DType::kBF16,
                             .activations = DType::kBF16,
                             .recompute = train::Recompute::kCheapOperators,
                             .fp8 = fp8};
  const auto model = TROUPE_TRY(gpu_model(named.config, options, gpu));
  TROUPE_RETURN_IF_ERROR(
      model->set_parameters(initial_parameters(named.config, model->layout(), 3), 0));
  std::vector<double> losses;
  for (int step = 1; step <= steps; ++step) {
    const CountingBatch batch(options.rows, options.length, named.config.vocab_size, step, false);
    TROUPE_RETURN_IF_ERROR(model->zero_gradients());
    const train::LossSum sum = TROUPE_TRY(model->forward_backward(
        batch.micro(), 1.0f / static_cast<float>(options.rows * (options.length - 1))));
    losses.push_back(sum.loss_sum / static_cast<double>(sum.target_count));
    [[maybe_unused]] const double norm =
        TROUPE_TRY(model->update({.learning_rate = 3e-3, .weight_decay = 0.01, .step = step}));
  }
  return losses;
}

Result<Figure> check_fp8_training(Bench& bench) {
  const int steps = bench.rehearsal() ? 8 : 30;
  double worst = 0, sum = 0, count = 0;
  std::string text;
  for (const NamedConfig& named : small_models(bench.rehearsal())) {
    Gpu* gpu = TROUPE_TRY(gpu_with_fp8(bench));
    const auto wide = TROUPE_TRY(fp8_losses_of(*gpu, named, false, steps));
    gpu = TROUPE_TRY(gpu_with_fp8(bench));
    const auto narrow = TROUPE_TRY(fp8_losses_of(*gpu, named, true, steps));
    if (!(narrow.back() < 0.97 * narrow.front()))
      return error(Code::kInternal, "{}: the loss in fp8 does not fall: {} and, {} steps later, {}",
                   named.name, narrow.front(), steps - 1, narrow.back());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double here = std::abs(narrow[i] / wide[i] - 1);
      worst = std::max(worst, here), sum += here, count += 1;
    }
    text += fmt::format("{}{} {:.4f} to {:.4f} (bf16 {:.4f})", text.empty() ? "" : ", ", named.name,
                        narrow.front(), narrow.back(), wide.back());
  }
  // Losses of small batches scatter: a single step's by some percent.
  return Figure{.value = 100 * sum / count,
                .unit = "% of bf16's loss, the mean difference",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 2,
                .text = fmt::format("worst step {:.1f} %; {}", 100 * worst, text)};
}

}  // namespace

void add_fp8_checks(std::vector<Check>& checks) {
  checks.push_back({"products/fp8 codes",
                    "scales and codes of matrices, turned round too, bit by bit", 2,
                    check_fp8_codes});
  checks.push_back({"products/fp8 values",
                    "a layer's products in fp8 against those of the rounded operands in fp32", 2,
                    check_fp8_values});
  for (const Fp8Model& model : kFp8Models) checks.push_back(fp8_rate_check(model));
  checks.push_back({"training/fp8",
                    "losses of small models of each family in fp8 beside bf16's, step by step", 5,
                    check_fp8_training});
}

}  // namespace troupe::tools::gpu
