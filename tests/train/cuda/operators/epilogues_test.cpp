// What follows products in them, over the tests' GPU: which products, their values beside separate
// kernels', and whole models with and without.

#include <cmath>
#include <optional>

#include "runtime/base/random.h"
#include "tests/train/cuda/device/device_fixture.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

using tools::gpu::Bench;
using tools::gpu::CountingBatch;
using tools::gpu::NamedConfig;
using tools::gpu::TrainOptions;
using troupe::tests::fake_cuda_calls;
using troupe::tests::FakeCudaOptions;

struct EpilogueFixture : DeviceFixture {
  explicit EpilogueFixture(const FakeCudaOptions& options = {}, const CudaOptions& cuda = {})
      : DeviceFixture(options),
        stream(CudaStream::create(device).value()),
        algorithms(std::in_place, device, 64 << 10),
        memory(DeviceMemory::allocate(device, 8 << 20, "tensors", MemoryPurpose::kActivations)
                   .value()),
        scratch(
            DeviceMemory::allocate(device, 4 << 20, "scratch", MemoryPurpose::kWorkspace).value()),
        operators(CudaOperators::create(*stream, *algorithms,
                                        scratch->bytes().first(std::size_t{4} << 20), cuda)
                      .value()) {}
  ~EpilogueFixture() {
    operators.reset();
    scratch.reset(), memory.reset(), algorithms.reset(), stream.reset();
  }
  // Memory of the device, `which` MiB from its beginning.
  Elements at(int which, DType type, std::int64_t offset = 0) {
    return Elements(memory->data() + (std::int64_t{which} << 20), type) + offset;
  }
  Elements random(int which, DType type, std::int64_t count) {
    SeededRandom random(static_cast<std::uint64_t>(which) + 1);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = static_cast<float>(2.0 * random.unit() - 1.0);
    std::vector<std::uint16_t> bits(values.size());
    bf16_from_float(values.data(), bits.data(), count);
    const Elements to = at(which, type);
    if (type == DType::kBF16)
      operators->upload(bits.data(), to.data, bits.size() * 2);
    else
      operators->upload(values.data(), to.data, values.size() * 4);
    return to;
  }
  std::vector<float> values(Elements from, std::int64_t count) {
    std::vector<float> got(static_cast<std::size_t>(count));
    std::vector<std::uint16_t> bits(got.size());
    if (from.type == DType::kF32) {
      operators->download(from.data, got.data(), got.size() * 4);
    } else {
      operators->download(from.data, bits.data(), bits.size() * 2);
      float_from_bf16(bits.data(), got.data(), count);
    }
    REQUIRE(operators->failure().ok());
    return got;
  }
  // c of (6, 24), its operands, bias and GELU's input.
  Gemm product(DType type, Epilogue epilogue) {
    Gemm g{.m = 6,
           .n = 24,
           .k = 32,
           .a = random(0, type, 6 * 32).data,
           .a_type = type,
           .a_stride = 32,
           .b = random(1, type, 24 * 32).data,
           .b_type = type,
           .b_stride = 32,
           .transpose_b = true,
           .c = at(2, type),
           .c_stride = 24,
           .arithmetic = type == DType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kFp32,
           .epilogue = epilogue};
    if (epilogue != Epilogue::kGeluGradient) g.bias = random(3, type, 24).data;
    if (epilogue != Epilogue::kBias) g.gelu_input = random(4, type, 6 * 24);
    return g;
  }

  std::optional<CudaStream> stream;
  std::optional<GemmAlgorithms> algorithms;
  std::optional<DeviceMemory> memory, scratch;
  std::unique_ptr<CudaOperators> operators;
};

constexpr Epilogue kAll[] = {Epilogue::kBias, Epilogue::kBiasGelu, Epilogue::kGeluGradient};

TEST_CASE("a product with an epilogue is that of separate kernels, but for roundings in between") {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Epilogue epilogue : kAll) {
      CAPTURE(dtype_name(type));
      CAPTURE(static_cast<int>(epilogue));
      EpilogueFixture f;
      const Gemm g = f.product(type, epilogue);
      CudaOperators& o = *f.operators;
      REQUIRE(o.fuses(g));
      o.gemm(g);
      const std::vector<float> fused = f.values(g.c, 6 * 24);
      std::vector<float> kept;
      if (epilogue == Epilogue::kBiasGelu) kept = f.values(g.gelu_input, 6 * 24);
      CHECK(fake_cuda_calls("gemm_fused") == 1);
      CHECK(fake_cuda_calls("gemm") == 0);

      Gemm plain = g;
      plain.epilogue = Epilogue::kNone;
      plain.bias = nullptr, plain.gelu_input = {};
      plain.c = f.at(5, type);
      o.gemm(plain);
      const Elements wide = f.at(6, DType::kF32);
      if (g.bias) {
        const std::vector<float> bias = f.values(f.at(3, type), 24);
        o.upload(bias.data(), wide.data, bias.size() * 4);
        o.add_bias(plain.c, 24, wide.fp32(), 6, 24);
      }
      Elements result = plain.c;
      if (epilogue == Epilogue::kBiasGelu)
        o.gelu_forward(plain.c, result = f.at(7, type), 6 * 24);
      else if (epilogue == Epilogue::kGeluGradient)
        o.gelu_backward(result = f.at(4, type), plain.c, nullptr, 6 * 24);
      const std::vector<float> expected = f.values(result, 6 * 24);
      const std::vector<float> sums = f.values(plain.c, 6 * 24);
      for (std::size_t i = 0; i < fused.size(); ++i) {
        if (type == DType::kF32)
          CHECK(fused[i] == expected[i]);
        else
          CHECK(std::abs(fused[i] - expected[i]) <= 0.04f);
        if (!kept.empty())
          CHECK(std::abs(kept[i] - sums[i]) <= (type == DType::kF32 ? 0.0f : 0.04f));
      }
    }
  }
}

TEST_CASE("operators fuse what lies at 16 bytes, has an algorithm and is of wide operands") {
  {
    EpilogueFixture f;
    for (const Epilogue epilogue : kAll) {
      const Gemm good = f.product(DType::kBF16, epilogue);
      CHECK(f.operators->fuses(good));
      Gemm other = good;
      other.c = good.c + 1;
      CHECK_FALSE(f.operators->fuses(other));
      other = good;
      if (good.bias) {
        other.bias = static_cast<const std::uint16_t*>(good.bias) + 4;
        CHECK_FALSE(f.operators->fuses(other));
        other = good;
      }
      // Rows of GELU's input that are no multiple of 8: the library has nothing, and is asked once.
      other.c_stride = 28;
      const bool gelu = epilogue != Epilogue::kBias;
      CHECK(f.operators->fuses(other) == !gelu);
      const std::int64_t asked = fake_cuda_calls("gemm_algorithms");
      CHECK(f.operators->fuses(other) == !gelu);
      CHECK(fake_cuda_calls("gemm_algorithms") == asked);
    }
    // fp32 operands that are rounded into scratch memory lie well there.
    Gemm wide = f.product(DType::kF32, Epilogue::kBias);
    wide.arithmetic = Arithmetic::kBf16;
    wide.a = static_cast<const float*>(wide.a) + 1;
    CHECK(f.operators->fuses(wide));
    wide.arithmetic = Arithmetic::kFp32;
    CHECK_FALSE(f.operators->fuses(wide));
    CHECK(f.operators->failure().ok());
  }
  {
    EpilogueFixture none({.epilogues = 0});
    for (const Epilogue epilogue : kAll)
      CHECK_FALSE(none.operators->fuses(none.product(DType::kBF16, epilogue)));
    CHECK(none.operators->failure().ok());
  }
  {  // GELU from Hopper on
    EpilogueFixture older({.compute_major = 8});
    for (const Epilogue epilogue : kAll)
      CHECK(older.operators->fuses(older.product(DType::kBF16, epilogue)) ==
            (epilogue == Epilogue::kBias));
  }
  {  // What is to be of 8 bits
    EpilogueFixture narrow({}, {.fp8 = true});
    Gemm g = narrow.product(DType::kBF16, Epilogue::kBias);
    CHECK(narrow.operators->fuses(g));
    g.narrow_a = g.narrow_b = Narrow::kValue;
    CHECK_FALSE(narrow.operators->fuses(g));
  }
}

TEST_CASE("a library that fails to name an algorithm for an epilogue is the operators' failure") {
  EpilogueFixture f;
  const Gemm g = f.product(DType::kBF16, Epilogue::kBias);
  troupe::tests::fake_cuda_inject(
      {.function = "gemm_algorithms", .code = TROUPE_CUDA_FAILED, .text = "no heuristics"});
  CHECK_FALSE(f.operators->fuses(g));
  CHECK(says(f.operators->failure(), "no heuristics"));
  CHECK(says(f.operators->failure(), "+bias"));
}

// --- whole models

struct PassOfModel {
  double loss = 0;
  std::vector<float> gradients;
  std::int64_t fused = 0, bias_kernels = 0, gelu_kernels = 0, gelu_gradients = 0;
};

PassOfModel pass_of_model(const NamedConfig& named, TrainOptions options,
                          const FakeCudaOptions& device = {}) {
  troupe::tests::fake_cuda_reset(device);
  Bench bench(CudaLibrary::over(troupe::tests::fake_cuda_table()), {.rehearsal = true});
  tools::gpu::Gpu* gpu = bench.gpu().value();
  const CountingBatch batch(2, 40, named.config.vocab_size, 1, false);
  options.rows = batch.rows, options.length = batch.length;
  const auto model = tools::gpu::gpu_model(named.config, options, *gpu).value();
  // Biases that are not the zeros a training begins with.
  std::vector<float> parameters = tools::gpu::initial_parameters(named.config, model->layout(), 3);
  for (const ParameterInfo& parameter : model->layout().parameters()) {
    if (!parameter.name.ends_with(".bias")) continue;
    const auto from = static_cast<std::size_t>(model->layout().flat_offset(parameter));
    for (std::size_t i = 0; i < static_cast<std::size_t>(parameter.elements); ++i)
      parameters[from + i] = 0.3f * std::sin(static_cast<float>(from + 3 * i));
  }
  REQUIRE(model->set_parameters(parameters, 0).ok());
  REQUIRE(model->zero_gradients().ok());
  const LossSum sum = model->forward_backward(batch.micro(), 0.0125f).value();
  return {sum.loss_sum / static_cast<double>(sum.target_count),
          model->gradients().value(),
          fake_cuda_calls("gemm_fused"),
          fake_cuda_calls("add_bias"),
          fake_cuda_calls("gelu_forward"),
          fake_cuda_calls("gelu_backward")};
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double greatest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    greatest = std::max<double>(greatest, std::abs(b[i]));
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return worst / greatest;
}

constexpr TrainOptions kNarrow{
    .compute = DType::kBF16, .activations = DType::kBF16, .recompute = Recompute::kNothing};

TEST_CASE("models with biases fuse them all, and compute what they compute apart") {
  const std::vector<NamedConfig> models = tools::gpu::small_models(true);
  for (const NamedConfig& named : models) {
    if (named.name == "qwen3") continue;  // no more biases than llama
    CAPTURE(named.name);
    const bool gpt2 = named.name == "gpt2", qwen2 = named.name == "qwen2.5";
    for (const bool bf16 : {false, true}) {
      CAPTURE(bf16);
      const TrainOptions options = bf16 ? kNarrow : TrainOptions{.recompute = Recompute::kNothing};
      const PassOfModel fused = pass_of_model(named, options);
      // Of 2 blocks: q, k, v, attention's output, the MLP's two and the gradient of its activation.
      CHECK(fused.fused == 2 * (gpt2 ? 5 : qwen2 ? 1 : 0));
      CHECK(fused.bias_kernels == 0);
      CHECK(fused.gelu_gradients == 0);
      CHECK(fused.gelu_kernels == (gpt2 ? 2 : 0));  // once more for the gradient of weights
      const PassOfModel apart = pass_of_model(named, options, {.epilogues = 0});
      CHECK(apart.fused == 0);
      CHECK(apart.bias_kernels == 2 * (gpt2 ? 4 : qwen2 ? 3 : 0));
      if (bf16) {
        CHECK(std::abs(fused.loss / apart.loss - 1) < 1e-3);
        CHECK(worst_difference(fused.gradients, apart.gradients) < 4e-2);
        CHECK((fused.gradients == apart.gradients) == !(gpt2 || qwen2));
      } else {
        CHECK(fused.loss == apart.loss);
        CHECK(fused.gradients == apart.gradients);
      }
    }
  }
}

// Keys of 24: their bias ends within 16 elements, and the values' begins behind them.
TEST_CASE("biases that do not lie one behind another keep their kernel") {
  const NamedConfig odd{
      "qwen2 of odd heads",
      ModelConfig::parse(
          R"({"model_type": "qwen2", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
              "initializer_range": 0.05, "tie_word_embeddings": true})",
          "config.json")
          .value()};
  const PassOfModel some = pass_of_model(odd, kNarrow);
  CHECK(some.fused == 0);
  CHECK(some.bias_kernels == 2 * 3);
  const PassOfModel none = pass_of_model(odd, kNarrow, {.epilogues = 0});
  CHECK(some.loss == none.loss);
  CHECK(some.gradients == none.gradients);
}

TEST_CASE("with epilogues, too, what is computed again has the bits of the first time") {
  const NamedConfig gpt2 = tools::gpu::small_models(true).at(2);
  // GELU in the product, its gradient apart; and the other way round.
  for (const unsigned epilogues :
       {1u << TROUPE_CUDA_EPILOGUE_BIAS_GELU, 1u << TROUPE_CUDA_EPILOGUE_GELU_GRADIENT}) {
    CAPTURE(epilogues);
    TrainOptions options = kNarrow;
    const PassOfModel kept = pass_of_model(gpt2, options, {.epilogues = epilogues});
    for (const Recompute recompute : {Recompute::kCheapOperators, Recompute::kLayers}) {
      options.recompute = recompute;
      const PassOfModel again = pass_of_model(gpt2, options, {.epilogues = epilogues});
      CHECK(again.loss == kept.loss);
      CHECK(again.gradients == kept.gradients);
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
