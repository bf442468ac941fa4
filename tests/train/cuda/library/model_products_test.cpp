// Whole models whose products are the library's own, over the stand-in of libcublasLt, and whose
// other operators are the tests' GPU's: every product that a model asks for, as it asks for it.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/base/environment.h"
#include "tests/train/cuda/library/products_fixture.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::tests {
namespace {

using tools::gpu::TrainOptions;
using train::DType;

// What the wrapped functions call, and how often they were.
struct WrappedProducts {
  const TroupeCudaTable* fake = nullptr;
  Products* products = nullptr;
  std::int64_t plain = 0, fused = 0, scaled = 0;
} wrapped;

// What the stream holds comes first: the stand-in computes at once.
int after(TroupeCudaStream* stream, std::int64_t& counted, auto&& product) {
  ++counted;
  if (const int code = wrapped.fake->stream_synchronize(stream)) return code;
  const int code = product(wrapped.products->table, &wrapped.products->stream);
  CHECK_MESSAGE(code == TROUPE_CUDA_OK, std::string(train::cuda::last_failure()));
  return code;
}

TroupeCudaTable with_products(const TroupeCudaTable& fake, Products& products) {
  wrapped = {.fake = &fake, .products = &products};
  TroupeCudaTable table = fake;
  table.gemm_algorithms = [](TroupeCudaContext*, const TroupeCudaGemm* gemm,
                             std::int64_t workspace_bytes, std::int32_t algorithms_max,
                             TroupeCudaAlgorithm* algorithms, std::int32_t* count) {
    Products& p = *wrapped.products;
    return p.table.gemm_algorithms(&p.context, gemm, workspace_bytes, algorithms_max, algorithms,
                                   count);
  };
  table.gemm = [](TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                  const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, void* c,
                  void* workspace, std::int64_t bytes) {
    return after(stream, wrapped.plain, [&](const TroupeCudaTable& t, TroupeCudaStream* own) {
      return t.gemm(own, gemm, algorithm, a, b, c, workspace, bytes);
    });
  };
  table.gemm_fused = [](TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                        const TroupeCudaAlgorithm* algorithm, const void* a, const void* b,
                        const void* bias, void* gelu_input, void* c, void* workspace,
                        std::int64_t bytes) {
    return after(stream, wrapped.fused, [&](const TroupeCudaTable& t, TroupeCudaStream* own) {
      return t.gemm_fused(own, gemm, algorithm, a, b, bias, gelu_input, c, workspace, bytes);
    });
  };
  table.gemm_scaled = [](TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                         const TroupeCudaAlgorithm* algorithm, const void* a, const float* a_scale,
                         const void* b, const float* b_scale, void* c, void* workspace,
                         std::int64_t bytes) {
    return after(stream, wrapped.scaled, [&](const TroupeCudaTable& t, TroupeCudaStream* own) {
      return t.gemm_scaled(own, gemm, algorithm, a, a_scale, b, b_scale, c, workspace, bytes);
    });
  };
  return table;
}

struct ModelPass {
  double loss = 0;
  std::vector<float> gradients;
};

ModelPass model_pass(const tools::gpu::NamedConfig& named, TrainOptions options,
                     const TroupeCudaTable& table) {
  tools::gpu::Bench bench(train::CudaLibrary::over(table), {.rehearsal = true});
  tools::gpu::Gpu* gpu = bench.gpu().value();
  const tools::gpu::CountingBatch batch(2, 20, named.config.vocab_size, 1, false);
  options.rows = batch.rows, options.length = batch.length;
  const auto model = tools::gpu::gpu_model(named.config, options, *gpu).value();
  std::vector<float> parameters = tools::gpu::initial_parameters(named.config, model->layout(), 3);
  // Biases begin as zeros.
  for (const train::ParameterInfo& parameter : model->layout().parameters())
    if (parameter.name.ends_with(".bias"))
      for (std::int64_t i = 0; i < parameter.elements; ++i)
        parameters[static_cast<std::size_t>(model->layout().flat_offset(parameter) + i)] =
            0.2f * std::sin(static_cast<float>(3 * i));
  REQUIRE(model->set_parameters(parameters, 0).ok());
  REQUIRE(model->zero_gradients().ok());
  const train::LossSum sum = model->forward_backward(batch.micro(), 0.025f).value();
  return {sum.loss_sum / static_cast<double>(sum.target_count), model->gradients().value()};
}

TEST_CASE("models' products by the library's own source are the tests' GPU's") {
  const char* bin = std::getenv("TROUPE_BIN_DIR");
  const auto fake = train::CudaLibrary::load(
                        MapEnvironment({{"TROUPE_CUDA_LIBRARY", std::string(bin ? bin : "bin") +
                                                                    "/libtroupe_cuda_fake.so"}}))
                        .value();
  struct Way {
    const char* name;
    TrainOptions options;
    double tolerance;  // of the greatest gradient: roundings that fall otherwise
  };
  const Way ways[] = {
      {"fp32", {}, 1e-5},
      {"bf16 products", {.compute = DType::kBF16}, 1e-2},
      {"bf16", {.compute = DType::kBF16, .activations = DType::kBF16}, 2e-2},
      {"fp8", {.compute = DType::kBF16, .activations = DType::kBF16, .fp8 = true}, 5e-2}};
  Products products;
  for (const auto& named : tools::gpu::small_models(true)) {
    if (named.name == "qwen3") continue;  // products as llama's
    for (const Way& way : ways) {
      CAPTURE(named.name);
      CAPTURE(std::string(way.name));
      const ModelPass expected = model_pass(named, way.options, fake->table());
      const ModelPass got = model_pass(named, way.options, with_products(fake->table(), products));
      CHECK(std::abs(got.loss / expected.loss - 1) < way.tolerance / 10);
      double greatest = 1e-30, worst = 0;
      for (std::size_t i = 0; i < got.gradients.size(); ++i) {
        greatest = std::max<double>(greatest, std::abs(expected.gradients[i]));
        const double here = std::abs(static_cast<double>(got.gradients[i]) - expected.gradients[i]);
        worst = std::max(worst, std::isfinite(here) ? here : 1e30);
      }
      CHECK(worst < way.tolerance * greatest);
      CHECK(wrapped.plain > 0);
      CHECK((wrapped.scaled > 0) == way.options.fp8);
      const bool biases = named.name == "gpt2" || named.name == "qwen2.5";
      CHECK((wrapped.fused > 0) == (biases && !way.options.fp8));
    }
  }
}

}  // namespace
}  // namespace troupe::tests
