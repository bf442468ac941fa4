// Models whose activations are bf16, over the tests' GPU: beside fp32 ones, and what they are
// stored in.

#include <algorithm>
#include <cmath>

#include "tests/train/cuda/device/device_fixture.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/model/activations.h"
#include "train/model/kv_cache.h"
#include "train/model/model.h"

namespace troupe::train::tests {
namespace {

using tools::gpu::Bench;
using tools::gpu::CountingBatch;
using tools::gpu::NamedConfig;
using tools::gpu::TrainedModel;
using tools::gpu::TrainOptions;

constexpr TrainOptions kBf16{.compute = DType::kBF16, .activations = DType::kBF16};
constexpr TrainOptions kBf16Products{.compute = DType::kBF16};

struct PassResult {
  double loss = 0;
  std::vector<float> gradients;
};

PassResult pass_of(TrainedModel& model, const ModelConfig& config, const MicroBatch& batch) {
  REQUIRE(model.set_parameters(tools::gpu::initial_parameters(config, model.layout(), 3), 0).ok());
  REQUIRE(model.zero_gradients().ok());
  const LossSum sum = model.forward_backward(batch, 0.0125f).value();
  return {sum.target_count > 0 ? sum.loss_sum / static_cast<double>(sum.target_count) : 0,
          model.gradients().value()};
}

PassResult pass_on_gpu(const ModelConfig& config, TrainOptions options, const MicroBatch& batch,
                       const TroupeCudaTable& table = troupe::tests::fake_cuda_table()) {
  troupe::tests::fake_cuda_reset();
  options.rows = batch.rows, options.length = batch.length;
  Bench bench(CudaLibrary::over(table), {.rehearsal = true});
  tools::gpu::Gpu* gpu = bench.gpu().value();
  return pass_of(*tools::gpu::gpu_model(config, options, *gpu).value(), config, batch);
}

PassResult pass_on_host(const ModelConfig& config, TrainOptions options, const MicroBatch& batch) {
  options.rows = batch.rows, options.length = batch.length;
  Bench bench(CudaLibrary::over(troupe::tests::fake_cuda_table()), {.rehearsal = true});
  Operators& host = *bench.gpu().value()->host;
  return pass_of(*tools::gpu::host_model(config, options, host).value(), config, batch);
}

// Of a tensor's greatest element, the worst of all tensors.
double gradient_difference(const ModelConfig& config, const PassResult& a, const PassResult& b) {
  const ParameterLayout layout(config);
  double worst = 0;
  for (const ParameterInfo& parameter : layout.parameters()) {
    const auto at = static_cast<std::size_t>(layout.flat_offset(parameter));
    double greatest = 1e-30, difference = 0;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(parameter.elements); ++i) {
      greatest = std::max<double>(greatest, std::abs(b.gradients[i]));
      const double here = std::abs(static_cast<double>(a.gradients[i]) - b.gradients[i]);
      difference = std::max(difference, std::isfinite(here) ? here : 1e30);
    }
    worst = std::max(worst, difference / greatest);
  }
  return worst;
}

// Two blocks' roundings of 2⁻⁹ each, of sums over 80 tokens.
constexpr double kLossTolerance = 1e-3, kGradientTolerance = 4e-2;

TEST_CASE("losses and gradients with bf16 activations are those of fp32 but for rounding") {
  for (const NamedConfig& named : tools::gpu::small_models(true))
    for (const bool segments : {false, true}) {
      CAPTURE(named.name);
      CAPTURE(segments);
      const CountingBatch batch(2, 40, named.config.vocab_size, 1, segments);
      const PassResult exact = pass_on_host(named.config, {}, batch.micro());
      const PassResult wide = pass_on_gpu(named.config, kBf16Products, batch.micro());
      const PassResult narrow = pass_on_gpu(named.config, kBf16, batch.micro());
      CHECK(std::abs(narrow.loss / exact.loss - 1) < kLossTolerance);
      CHECK(gradient_difference(named.config, narrow, exact) < kGradientTolerance);
      CHECK(gradient_difference(named.config, narrow, wide) > 1e-4);  // they do round
    }
}

TEST_CASE("what is computed again in bf16 has the bits of the first time") {
  for (const NamedConfig& named : tools::gpu::small_models(true)) {
    CAPTURE(named.name);
    const CountingBatch batch(2, 40, named.config.vocab_size, 1, true);
    TrainOptions options = kBf16;
    options.recompute = Recompute::kNothing;
    const PassResult kept = pass_on_gpu(named.config, options, batch.micro());
    for (const Recompute recompute : {Recompute::kCheapOperators, Recompute::kLayers}) {
      options.recompute = recompute;
      const PassResult again = pass_on_gpu(named.config, options, batch.micro());
      CHECK(again.loss == kept.loss);
      CHECK(again.gradients == kept.gradients);
    }
  }
}

// The head's gradient comes back to the tokens that have targets, by chunks of 2048 targets.
TEST_CASE("gradients of the head reach their tokens over several chunks, and no others") {
  // Learned positions: a gradient that is put elsewhere is another position's.
  const ModelConfig config =
      ModelConfig::parse(R"({"model_type": "gpt2", "vocab_size": 51, "n_embd": 32, "n_layer": 1,
          "n_head": 2, "n_positions": 64, "initializer_range": 0.05})",
                         "config.json")
          .value();
  const std::int64_t rows = 64, length = 40, tokens = rows * length;
  CountingBatch batch(rows, length, config.vocab_size, 1, false);
  const auto masked = [&](auto&& is_masked) {
    std::int64_t targets = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto at = static_cast<std::size_t>(i);
      batch.labels[at] = is_masked(i) ? kIgnoreLabel : batch.ids[at];
      targets += i % length != 0 && !is_masked(i);
    }
    return targets;
  };
  const auto agree = [&] {
    return gradient_difference(config, pass_on_gpu(config, kBf16, batch.micro()),
                               pass_on_gpu(config, kBf16Products, batch.micro())) <
           kGradientTolerance;
  };
  CHECK(masked([](std::int64_t) { return false; }) > 2048);
  CHECK(agree());
  CHECK(masked([](std::int64_t i) { return i < 50 || i % 7 == 3 || i > 2500; }) > 2048);
  CHECK(agree());
  CHECK(masked([](std::int64_t i) { return i != 777; }) == 1);
  CHECK(agree());
  CHECK(masked([](std::int64_t) { return true; }) == 0);
  const PassResult none = pass_on_gpu(config, kBf16, batch.micro());
  CHECK(std::all_of(none.gradients.begin(), none.gradients.end(), [](float g) { return g == 0; }));
}

// Calls by type of their activations.
struct SeenTypes {
  int bf16 = 0, others = 0;
  void add(std::int32_t type) { ++(type == TROUPE_CUDA_BF16 ? bf16 : others); }
} seen_streams, seen_heads, seen_attention, seen_results, seen_embeddings, seen_conversions;

TEST_CASE("all that blocks store is bf16, gradients of parameters are not") {
  TroupeCudaTable table = troupe::tests::fake_cuda_table();
  table.residual_rms_norm_forward = [](TroupeCudaStream* stream, std::int32_t type, const void* x,
                                       const void* delta, const float* weight, void* sum, void* y,
                                       float* rstd, std::int64_t rows, std::int64_t width,
                                       float eps) {
    seen_streams.add(type);
    return troupe::tests::fake_cuda_table().residual_rms_norm_forward(
        stream, type, x, delta, weight, sum, y, rstd, rows, width, eps);
  };
  table.rope = [](TroupeCudaStream* stream, std::int32_t type, void* x, std::int64_t stride,
                  const std::int32_t* positions, const float* cosine, const float* sine,
                  std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                  std::int32_t backward) {
    seen_heads.add(type);
    return troupe::tests::fake_cuda_table().rope(stream, type, x, stride, positions, cosine, sine,
                                                 rows, heads, head_dim, backward);
  };
  table.attention_backward = [](TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                                const void* q, const void* k, const void* v, const void* out,
                                const float* log_sum_exp, const void* dout, void* dq, void* dk,
                                void* dv, void* scratch) {
    seen_attention.add(shape->type);
    return troupe::tests::fake_cuda_table().attention_backward(
        stream, shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv, scratch);
  };
  table.gemm = [](TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                  const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, void* c,
                  void* workspace, std::int64_t workspace_bytes) {
    seen_results.add(gemm->c_type);
    return troupe::tests::fake_cuda_table().gemm(stream, gemm, algorithm, a, b, c, workspace,
                                                 workspace_bytes);
  };
  table.embedding_forward = [](TroupeCudaStream* stream, const std::int32_t* ids,
                               const void* rows_of, std::int32_t table_type, void* out,
                               std::int32_t type, std::int64_t rows, std::int64_t width) {
    seen_embeddings.add(table_type), seen_embeddings.add(type);
    return troupe::tests::fake_cuda_table().embedding_forward(stream, ids, rows_of, table_type, out,
                                                              type, rows, width);
  };
  table.convert = [](TroupeCudaStream* stream, const void* from, std::int32_t from_type, void* to,
                     std::int32_t to_type, std::int64_t count) {
    seen_conversions.add(to_type);
    return troupe::tests::fake_cuda_table().convert(stream, from, from_type, to, to_type, count);
  };
  const ModelConfig config = tools::gpu::small_models(true)[0].config;  // 2 blocks, 4 products each
  const CountingBatch batch(2, 40, config.vocab_size, 1, false);
  TrainOptions options = kBf16;
  options.recompute = Recompute::kNothing;
  pass_on_gpu(config, options, batch.micro(), table);
  CHECK(seen_streams.bf16 == 2);
  CHECK(seen_streams.others == 0);
  CHECK(seen_heads.bf16 == 4);
  CHECK(seen_heads.others == 0);
  CHECK(seen_attention.bf16 == 2);
  CHECK(seen_attention.others == 0);
  CHECK(seen_results.bf16 == 8 + 9);    // forward, gradients of inputs
  CHECK(seen_results.others == 1 + 9);  // logits, gradients of weights
  // The model's, the head's inputs, and their gradients.
  CHECK(seen_embeddings.bf16 == 6);
  CHECK(seen_embeddings.others == 0);
  CHECK(seen_conversions.bf16 == 1);  // parameters, before the pass: operands are bf16 as they are
}

TEST_CASE("a type of activations that cannot be is refused by name") {
  DeviceFixture f;
  const auto on_gpu = CudaOperators::meter(f.device->library(), 0);
  ActivationOptions options{.compute = DType::kBF16, .type = DType::kBF16};
  CHECK(check_activation_type(options, *on_gpu).ok());
  options.compute = DType::kF32;
  CHECK(says(check_activation_type(options, *on_gpu),
             "activations in bf16 want products in bf16, not F32"));
  options.type = DType::kF16;
  CHECK(says(check_activation_type(options, *on_gpu), "activations are F32 or BF16, not F16"));

  // Text: its cache is fp32.
  const ModelConfig config = tools::gpu::small_models(true)[0].config;
  const auto model = make_model(config, *on_gpu);
  const ActivationOptions forward{
      .length_max = 8, .training = false, .compute = DType::kBF16, .type = DType::kBF16};
  // Addresses that nobody may touch.
  auto* nowhere = reinterpret_cast<std::byte*>(4096);
  Activations activations(config, forward, *on_gpu,
                          {nowhere, Activations::bytes_needed(config, forward)});
  const auto elements = static_cast<std::size_t>(model->layout().total_elements());
  ResidentUnits units(
      model->layout(),
      std::span<const std::uint16_t>(reinterpret_cast<std::uint16_t*>(nowhere), elements), {});
  KvCache cache(config, 8);
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  const std::vector<std::int32_t> ids = {1, 2};
  CHECK(says(model->decode(ids, cache, units, activations, logits),
             "text wants activations of type F32, not BF16"));
}

}  // namespace
}  // namespace troupe::train::tests
