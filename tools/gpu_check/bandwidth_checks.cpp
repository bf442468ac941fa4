// Operators that memory bounds, against the rate of copies.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/gpu_check/compared.h"

namespace troupe::tools::gpu {
namespace {

// What a launch works on: tokens of Qwen2.5-7B's width, in memory of the device.
struct Work {
  std::int64_t rows, width, count, classes;
  int type;
  std::int64_t element;
  // (rows, 2·width) each, of any type.
  std::byte *a, *b, *c, *d;
  float *weights, *statistics, *cosine, *sine;
  std::int32_t* ids;
  std::byte* scratch;
  TroupeCudaStream* stream;
};

struct Kernel {
  const char* name;
  // Times that it reads or writes (rows, width) elements of the type, and rows·width of fp32.
  double typed, fp32;
  std::function<int(const TroupeCudaTable&, const Work&)> launch;
};

std::vector<Kernel> kernels() {
  return {
      {"residual_rms_norm", 4, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.residual_rms_norm_forward(w.stream, w.type, w.a, w.b, w.weights, w.c, w.d,
                                            w.statistics, w.rows, w.width, 1e-5f);
       }},
      {"rms_norm_backward", 4, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.rms_norm_backward(w.stream, w.type, w.a, w.b, w.weights, w.statistics, w.c,
                                    w.weights + w.width, w.rows, w.width, w.scratch);
       }},
      {"swiglu", 3, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.swiglu_forward(w.stream, w.type, w.a, w.c, w.rows, w.width);
       }},
      {"swiglu_backward", 6, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.swiglu_backward(w.stream, w.type, w.a, w.b, w.c, w.rows, w.width);
       }},
      {"gelu", 2, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.gelu_forward(w.stream, w.type, w.a, w.c, w.count);
       }},
      {"add", 3, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.add(w.stream, w.type, w.a, w.b, w.c, w.count);
       }},
      {"rope", 2, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.rope(w.stream, w.type, w.a, w.width, w.ids, w.cosine, w.sine, w.rows,
                       w.width / 64, 64, 0);
       }},
      {"layer_norm", 2, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.layer_norm_forward(w.stream, w.type, w.a, w.weights, w.weights + w.width, w.c,
                                     w.statistics, w.statistics + w.rows, w.rows, w.width, 1e-5f);
       }},
      {"bias_backward", 1, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.bias_backward(w.stream, w.type, w.a, w.width, w.weights, w.rows, w.width,
                                w.scratch);
       }},
      {"embedding", 2, 0,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.embedding_forward(w.stream, w.ids, w.a, w.type, w.c, w.type, w.rows, w.width);
       }},
      {"convert to bf16", 0, 1.5,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.convert(w.stream, w.a, TROUPE_CUDA_F32, w.c, TROUPE_CUDA_BF16, w.count);
       }},
      {"tile_sums", 0, 1,
       [](const TroupeCudaTable& t, const Work& w) {
         return t.tile_sums_of_squares(w.stream, reinterpret_cast<const float*>(w.a), w.count,
                                       16384, reinterpret_cast<double*>(w.c));
       }},
      {"adamw", 6, 1,
       [](const TroupeCudaTable& t, const Work& w) {
         const TroupeCudaAdamW step{.beta1_rest = 0.1f,
                                    .beta2 = 0.999f,
                                    .beta2_rest = 0.001f,
                                    .step_size = 1e-3f,
                                    .root_correction = 0.5f,
                                    .epsilon = 1e-8f,
                                    .keep = 0.99f,
                                    .state_type = w.type};
         return t.adamw(w.stream, &step, w.a, reinterpret_cast<const float*>(w.b), w.c, w.d,
                        w.count, w.statistics);
       }},
  };
}

Result<Work> make_work(Gpu& gpu, const Bench& bench, Flavour flavour) {
  Work w{};
  w.rows = bench.rehearsal() ? 64 : 16384;
  w.width = bench.rehearsal() ? 128 : 3584;
  w.count = w.rows * w.width;
  w.type = flavour == Flavour::kBf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
  w.element = flavour == Flavour::kBf16 ? 2 : 4;
  w.stream = gpu.stream->get();
  const auto take = [&](std::int64_t bytes, int byte) -> Result<std::byte*> {
    std::byte* at = TROUPE_TRY(gpu.take(bytes));
    TROUPE_RETURN_IF_ERROR(
        gpu.device->status(gpu.table().fill(w.stream, at, byte, bytes), "filling operands"));
    return at;
  };
  const std::int64_t bytes = 2 * w.count * 4;
  for (std::byte** at : {&w.a, &w.b, &w.c, &w.d}) *at = TROUPE_TRY(take(bytes, 0x3c));
  w.weights = reinterpret_cast<float*>(TROUPE_TRY(take(2 * w.width * 4, 0x3c)));
  w.statistics = reinterpret_cast<float*>(TROUPE_TRY(take(2 * w.rows * 4, 0x3c)));
  w.cosine = reinterpret_cast<float*>(TROUPE_TRY(take(w.rows * 32 * 4, 0x3c)));
  w.sine = reinterpret_cast<float*>(TROUPE_TRY(take(w.rows * 32 * 4, 0x3c)));
  w.scratch = TROUPE_TRY(take(gpu.table().row_sum_scratch_bytes(w.rows, w.width), 0));
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < w.rows; ++i)
    ids.push_back(static_cast<std::int32_t>(i * 31 % w.rows));
  w.ids = reinterpret_cast<std::int32_t*>(TROUPE_TRY(take(w.rows * 4, 0)));
  gpu.operators->upload(ids.data(), w.ids, ids.size() * 4);
  TROUPE_RETURN_IF_ERROR(gpu.operators->failure());
  return w;
}

Check kernel_check(const Kernel& kernel, Flavour flavour) {
  return {.name = fmt::format("bandwidth/{} {}", kernel.name, flavour_name(flavour)),
          .what = "bytes that it must read and write a second, against copies'",
          .seconds = 0.3,
          .run = [kernel, flavour](Bench& bench) -> Result<Figure> {
            const double copies = TROUPE_TRY(bench.copy_rate());
            Gpu* gpu = TROUPE_TRY(bench.gpu());
            const Work work = TROUPE_TRY(make_work(*gpu, bench, flavour));
            const double ms =
                TROUPE_TRY(gpu->milliseconds(kernel.name, bench.rehearsal() ? 1 : 10,
                                             [&] { return kernel.launch(gpu->table(), work); }));
            const double bytes =
                (kernel.typed * static_cast<double>(work.element) + kernel.fp32 * 4) *
                static_cast<double>(work.count);
            const double rate = bytes / ms / 1e6;
            return Figure{.value = 100 * rate / copies,
                          .unit = "% of the copies' rate",
                          .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                          .bar_value = 85,
                          .text = fmt::format("{:.0f} of {:.0f} GB/s, {:.3f} ms for {} rows of {}",
                                              rate, copies, ms, work.rows, work.width)};
          }};
}

// Logits are fp32 and become their gradient, or give one in bf16.
Check cross_entropy_check(bool bf16) {
  return {.name = fmt::format("bandwidth/cross_entropy {}", bf16 ? "bf16" : "f32"),
          .what = "logits read, gradients written, against copies'",
          .seconds = 0.3,
          .run = [bf16](Bench& bench) -> Result<Figure> {
            const double copies = TROUPE_TRY(bench.copy_rate());
            Gpu* gpu = TROUPE_TRY(bench.gpu());
            const std::int64_t rows = bench.rehearsal() ? 8 : 1024,
                               classes = bench.rehearsal() ? 500 : 151936;
            auto* logits = reinterpret_cast<float*>(TROUPE_TRY(gpu->take(rows * classes * 4)));
            std::byte* gradient = TROUPE_TRY(gpu->take(rows * classes * 2));
            auto* labels = reinterpret_cast<std::int32_t*>(TROUPE_TRY(gpu->take(rows * 4)));
            auto* losses = reinterpret_cast<float*>(TROUPE_TRY(gpu->take(rows * 4)));
            gpu->operators->zero(logits, rows * classes);
            gpu->operators->zero(reinterpret_cast<float*>(labels), rows);
            TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
            const double ms =
                TROUPE_TRY(gpu->milliseconds("cross_entropy", bench.rehearsal() ? 1 : 10, [&] {
                  return gpu->table().cross_entropy(
                      gpu->stream->get(), logits, labels, losses, 0.1f, bf16 ? gradient : nullptr,
                      bf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32, rows, classes);
                }));
            const double bytes = static_cast<double>(rows * classes) * (bf16 ? 6 : 8);
            const double rate = bytes / ms / 1e6;
            return Figure{.value = 100 * rate / copies,
                          .unit = "% of the copies' rate",
                          .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                          .bar_value = 85,
                          .text = fmt::format("{:.0f} of {:.0f} GB/s, {:.3f} ms for {} rows of {}, "
                                              "each read once",
                                              rate, copies, ms, rows, classes)};
          }};
}

}  // namespace

void add_bandwidth_checks(std::vector<Check>& checks) {
  for (const Flavour flavour : {Flavour::kBf16, Flavour::kF32}) {
    for (const Kernel& kernel : kernels()) {
      // fp32 whatever the activations are: once.
      if (flavour == Flavour::kBf16 && kernel.typed == 0) continue;
      checks.push_back(kernel_check(kernel, flavour));
    }
    checks.push_back(cross_entropy_check(flavour == Flavour::kBf16));
  }
}

}  // namespace troupe::tools::gpu
