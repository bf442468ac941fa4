// What the operators do besides computing: scratch, transfers, failures. Values: operators_test.

#include "train/cuda/operators/cuda_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "runtime/base/random.h"
#include "tests/train/cuda/device/device_fixture.h"
#include "train/cuda/operators/cuda_optimizer.h"
#include "train/model/initialize.h"
#include "train/model/model.h"
#include "train/optimizer/gradient_norm.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

std::vector<float> some_numbers(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> numbers(count);
  for (float& x : numbers) x = static_cast<float>(2.0 * random.unit() - 1.0);
  return numbers;
}

struct OperatorsFixture : DeviceFixture {
  explicit OperatorsFixture(std::int64_t scratch_bytes = 4 << 20, std::int64_t workspace = 64 << 10)
      : stream(CudaStream::create(device).value()),
        algorithms(std::in_place, device, workspace),
        memory(DeviceMemory::allocate(device, 64 << 20, "tensors", MemoryPurpose::kActivations)
                   .value()),
        scratch(DeviceMemory::allocate(device, scratch_bytes, "scratch", MemoryPurpose::kWorkspace)
                    .value()),
        operators(
            CudaOperators::create(*stream, *algorithms,
                                  scratch->bytes().first(static_cast<std::size_t>(scratch_bytes)))
                .value()) {}
  ~OperatorsFixture() {
    operators.reset();
    scratch.reset(), memory.reset(), algorithms.reset(), stream.reset();
  }
  float* floats(std::int64_t offset) { return reinterpret_cast<float*>(memory->data()) + offset; }

  std::optional<CudaStream> stream;
  std::optional<GemmAlgorithms> algorithms;
  std::optional<DeviceMemory> memory, scratch;
  std::unique_ptr<CudaOperators> operators;
};

TEST_CASE("uploads and downloads of several pieces arrive, in order with the work between") {
  OperatorsFixture f;
  const std::size_t count = 3'000'001;  // three pieces of 4 MiB, the last one odd
  const std::vector<float> values = some_numbers(count, 1);
  std::vector<float> other(count, 1.0f), back(count);
  float *a = f.floats(0), *b = f.floats(4'000'000), *c = f.floats(8'000'000);
  f.operators->upload(values.data(), a, count * sizeof(float));
  f.operators->upload(other.data(), b, count * sizeof(float));
  std::fill(other.begin(), other.end(), -5.0f);  // the upload has taken it
  f.operators->add(a, b, c, static_cast<std::int64_t>(count));
  f.operators->download(c, back.data(), count * sizeof(float));
  CHECK(std::equal(values.begin(), values.end(), back.begin(),
                   [](float x, float sum) { return x + 1.0f == sum; }));
  CHECK(f.operators->synchronize().ok());
}

TEST_CASE("pinned memory stays until what is copied from it has arrived") {
  OperatorsFixture f;
  const std::size_t bytes = 8 << 20;
  const std::vector<std::byte> values(bytes, std::byte{7});
  std::vector<std::byte> back(bytes);
  for (int i = 0; i < 20; ++i) {
    // Behind so much other work that the copies are still to come.
    f.operators->gelu_forward(f.floats(4'000'000), f.floats(8'000'000), 1 << 20);
    HostTransfer transfer = HostTransfer::create(*f.stream).value();
    HostTransfer moved = std::move(transfer);
    CHECK(moved.upload(values.data(), f.memory->data(), bytes).ok());
  }
  f.operators->download(f.memory->data(), back.data(), bytes);
  CHECK(back == values);
}

TEST_CASE("a failure is kept, nothing runs after it and what is downloaded is no number") {
  OperatorsFixture f;
  float* x = f.floats(0);
  f.operators->zero(x, 100);
  troupe::tests::fake_cuda_inject(
      {.function = "gelu_forward", .code = TROUPE_CUDA_FAILED, .text = "an illegal address"});
  CHECK(f.operators->failure().ok());
  f.operators->gelu_forward(x, f.floats(1000), 100);
  f.operators->add(x, x, x, 100);
  f.operators->gemm({.m = 1,
                     .n = 1,
                     .k = 1,
                     .a = x,
                     .a_stride = 1,
                     .b = x,
                     .b_stride = 1,
                     .c = x,
                     .c_stride = 1});
  CHECK(troupe::tests::fake_cuda_calls("add") == 0);
  CHECK(troupe::tests::fake_cuda_calls("gemm") == 0);
  CHECK(says(f.operators->failure(), "gelu_forward: an illegal address"));
  CHECK(f.operators->synchronize().message() == f.operators->failure().message());
  std::vector<float> back(100, 1.0f);
  f.operators->download(x, back.data(), 400);
  CHECK(std::all_of(back.begin(), back.end(), [](float v) { return std::isnan(v); }));
}

TEST_CASE("an operator without a kernel is refused by name, before it is called and when it is") {
  OperatorsFixture f;
  CHECK(f.operators->supports(OperatorName::scale_columns));
  CHECK(f.operators->supports(OperatorName::gemm));
  CHECK_FALSE(f.operators->supports(OperatorName::add_column_products));
  CHECK(needs_operators(*f.operators, {OperatorName::scale_columns}, "DoRA").ok());
  const Status refused = needs_operators(
      *f.operators, {OperatorName::scale_columns, OperatorName::add_column_products}, "DoRA");
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(says(refused, "DoRA needs the operator add_column_products"));
  f.operators->add_column_products(f.floats(0), 8, f.floats(64), 8, f.floats(128), 4, 8);
  CHECK(f.operators->failure().code() == Code::kUnsupported);
  CHECK(says(f.operators->failure(), "no kernel of add_column_products"));
}

TEST_CASE("an address of the host is told, not computed with") {
  OperatorsFixture f;
  std::vector<float> host(100);
  f.operators->add(host.data(), f.floats(0), f.floats(100), 100);
  CHECK(says(f.operators->failure(), "add: a is not 400 bytes of the device"));
}

TEST_CASE("scratch that is too small is said with how much is needed") {
  OperatorsFixture f(1024, 0);
  const Gemm gemm{.m = 64,
                  .n = 64,
                  .k = 64,
                  .a = f.floats(0),
                  .a_stride = 64,
                  .b = f.floats(5000),
                  .b_stride = 64,
                  .c = f.floats(10000),
                  .c_stride = 64,
                  .arithmetic = Arithmetic::kBf16};
  f.operators->gemm(gemm);
  CHECK(f.operators->failure().code() == Code::kOutOfMemory);
  CHECK(
      says(f.operators->failure(), "gemm needs 8.0 KiB of scratch memory, and 1.0 KiB are there"));
  const auto meter = CudaOperators::meter(f.device->library(), 0);
  meter->gemm(gemm);
  CHECK(meter->scratch_needed() == 2 * 64 * 64 * 2);
  CHECK(meter->failure().ok());
}

ModelConfig small_config() {
  return ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 60, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "initializer_range": 0.05, "tie_word_embeddings": true})",
                            "config.json")
      .value();
}

TEST_CASE("a pass over a meter finds the scratch that the same pass takes") {
  OperatorsFixture f;
  const ModelConfig config = small_config();
  const std::int64_t workspace = 64 << 10;
  const auto meter = CudaOperators::meter(f.device->library(), workspace);
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  const MicroBatch batch{2, 4, ids, ids, {}, {}};
  const ActivationOptions options{.rows_max = 2, .length_max = 4};
  const auto pass = [&](Operators& operators, std::span<std::byte> activation_memory,
                        std::span<const float> parameters, std::span<float> gradients) {
    const auto model = make_model(config, operators);
    Activations activations(config, options, operators, activation_memory);
    ResidentUnits units(model->layout(), parameters, gradients);
    return model->forward_backward(batch, units, CrossEntropyLoss(), 0.1f, activations);
  };
  const std::size_t activation_bytes = Activations::bytes_needed(config, options);
  const std::size_t elements = static_cast<std::size_t>(ParameterLayout(config).total_elements());
  // Addresses that nobody may touch.
  auto* nowhere = reinterpret_cast<std::byte*>(4096);
  auto* nowhere_floats = reinterpret_cast<float*>(4096);
  REQUIRE(pass(*meter, {nowhere, activation_bytes}, {nowhere_floats, elements},
               {nowhere_floats, elements})
              .ok());
  CHECK(meter->scratch_needed() >= workspace);

  float* parameters = f.floats(0);
  f.operators->zero(parameters, static_cast<std::int64_t>(2 * elements));
  std::byte* activation_memory =
      f.memory->data() + (2 * elements * sizeof(float) + 255) / 256 * 256;
  const auto measured = pass(*f.operators, {activation_memory, activation_bytes},
                             {parameters, elements}, {parameters + elements, elements});
  REQUIRE(measured.ok());
  CHECK(f.operators->scratch_needed() == meter->scratch_needed());
  // Logits of zeros.
  CHECK(measured->loss_sum == doctest::Approx(6 * std::log(60.0)));

  // A failure inside of a pass is the pass's.
  troupe::tests::fake_cuda_inject({.function = "rope", .text = "an illegal instruction"});
  const auto failed = pass(*f.operators, {activation_memory, activation_bytes},
                           {parameters, elements}, {parameters + elements, elements});
  CHECK_FALSE(failed.ok());
  CHECK(says(failed.status(), "rope: an illegal instruction"));
}

TEST_CASE("the optimizer's steps and norms are those of the host, bit by bit") {
  OperatorsFixture f;
  const std::int64_t count = 5000, tile = 1024, begin = 700;
  const ParameterGroups groups = {{900, {.decays = true}}, {3000, {}}, {9000, {.decays = true}}};
  const AdamWStep step{
      .learning_rate = 1e-3, .weight_decay = 0.1, .step = 3, .gradient_scale = 0.37f};
  std::vector<float> p = some_numbers(count, 1), g = some_numbers(count, 2),
                     m = some_numbers(count, 3), v = some_numbers(count, 4);
  for (float& x : v) x = x * x;
  const auto scratch =
      f.scratch->bytes().subspan(0, static_cast<std::size_t>(CudaOptimizer::scratch_bytes(8)));
  CudaOptimizer optimizer = CudaOptimizer::create(*f.stream, scratch).value();
  const auto at = [&](int i) { return f.floats(i * 8192); };
  const std::vector<float>* all[] = {&p, &g, &m, &v};
  for (int i = 0; i < 4; ++i) f.operators->upload(all[i]->data(), at(i), count * 4);

  const std::vector<double> sums = optimizer.tile_sums(at(1), count, tile).value();
  REQUIRE(sums.size() == 5);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto from = static_cast<std::size_t>(tile) * i;
    CHECK(sums[i] == tile_sum_of_squares(
                         std::span(g).subspan(from, std::min<std::size_t>(tile, g.size() - from))));
  }
  REQUIRE(optimizer.update(step, groups, begin, at(0), at(1), at(2), at(3), count).ok());
  std::vector<float> back[3] = {p, m, v};
  f.operators->download(at(0), back[0].data(), count * 4);
  f.operators->download(at(2), back[1].data(), count * 4);
  f.operators->download(at(3), back[2].data(), count * 4);
  adamw_update(step, groups, begin, p, g, m, v);
  CHECK(back[0] == p);
  CHECK(back[1] == m);
  CHECK(back[2] == v);

  // The same over a state of bf16.
  std::vector<std::uint16_t> half[3];
  for (int i = 0; i < 3; ++i) {
    half[i].resize(count);
    bf16_from_float(back[i].data(), half[i].data(), count);
    f.operators->upload(half[i].data(), at(i == 0 ? 0 : i + 1), count * 2);
  }
  const auto words = [&](int i) { return reinterpret_cast<std::uint16_t*>(at(i)); };
  REQUIRE(optimizer.update(step, groups, begin, words(0), at(1), words(2), words(3), count).ok());
  adamw_update(step, groups, begin, half[0], g, half[1], half[2]);
  std::vector<std::uint16_t> got(count);
  f.operators->download(at(0), got.data(), count * 2);
  CHECK(got == half[0]);
  f.operators->download(at(3), got.data(), count * 2);
  CHECK(got == half[2]);
}

}  // namespace
}  // namespace troupe::train::tests
