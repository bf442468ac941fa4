// Training in bf16 beside training in fp32.

#include "tests/train/model/model_fixture.h"
#include "train/cpu/isa.h"
#include "train/optimizer/adamw.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

constexpr std::int64_t kBatchRows = 2, kBatchLength = 40, kBatchVocabulary = 60;
constexpr int kSteps = 25;

enum class State { kFp32, kBf16Compute, kPureBf16 };

ModelConfig tiny_config() {
  return ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 60, "hidden_size": 64,
      "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "initializer_range": 0.05, "tie_word_embeddings": true})",
                            "config.json")
      .value();
}

// Rows that count on with a stride of their own: something that can be learnt.
std::vector<std::int32_t> rows_of(int step) {
  std::vector<std::int32_t> ids;
  for (std::int64_t row = 0; row < kBatchRows; ++row)
    for (std::int64_t i = 0; i < kBatchLength; ++i)
      ids.push_back(static_cast<std::int32_t>((step * 7 + row * 11 + i * (1 + (step + row) % 3)) %
                                              kBatchVocabulary));
  return ids;
}

std::vector<double> losses_of(State state, int threads, const CpuOptions& options = {}) {
  ModelFixture f(tiny_config(), threads);
  f.initialize(3);
  const auto operators = make_cpu_operators(f.arena, options);
  const auto model = make_model(f.model->config(), *operators);
  const std::size_t count = f.parameters.size();
  std::vector<float> m(count), v(count);
  std::vector<std::uint16_t> parameters(count), m_bf16(count), v_bf16(count);
  bf16_from_float(f.parameters.data(), parameters.data(), static_cast<std::int64_t>(count));
  ResidentUnits bf16_units(model->layout(), std::span<const std::uint16_t>(parameters),
                           f.gradients);
  UnitAccess& units = state == State::kFp32 ? static_cast<UnitAccess&>(f.units) : bf16_units;
  Activations activations(f.model->config(), {.rows_max = kBatchRows, .length_max = kBatchLength},
                          *operators);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<std::int32_t> ids = rows_of(step);
    std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
    const float scale = 1.0f / static_cast<float>(kBatchRows * (kBatchLength - 1));
    const LossSum sum = model
                            ->forward_backward({kBatchRows, kBatchLength, ids, ids, {}, {}}, units,
                                               CrossEntropyLoss(), scale, activations)
                            .value();
    losses.push_back(sum.loss_sum / static_cast<double>(sum.target_count));
    const AdamWStep adamw{.learning_rate = 3e-3, .weight_decay = 0.01, .step = step + 1};
    const ParameterGroups& groups = model->layout().groups();
    if (state == State::kPureBf16) {
      adamw_update(adamw, groups, 0, parameters, f.gradients, m_bf16, v_bf16);
      continue;
    }
    adamw_update(adamw, groups, 0, f.parameters, f.gradients, m, v);
    bf16_from_float(f.parameters.data(), parameters.data(), static_cast<std::int64_t>(count));
  }
  return losses;
}

double greatest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / b[i]);
  return worst;
}

TEST_CASE("losses in bf16 stay near those in fp32, with and without a processor that has it") {
  const std::vector<double> exact = losses_of(State::kFp32, 1);
  REQUIRE(exact.back() < 0.6 * exact.front());
  for (const bool native : {true, false}) {
    const CpuOptions options{.native_bf16 = native};
    CHECK(greatest_difference(losses_of(State::kBf16Compute, 1, options), exact) < 0.01);
    CHECK(greatest_difference(losses_of(State::kPureBf16, 1, options), exact) < 0.05);
  }
}

// One pass over a vocabulary so large that not all logits fit a cache.
struct WidePass {
  LossSum sum;
  std::vector<float> gradients;
};

WidePass wide_pass(DType compute, const CpuOptions& options) {
  const ModelConfig config = ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 70001,
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "initializer_range": 0.05, "tie_word_embeddings": true})",
                                                "config.json")
                                 .value();
  ModelFixture f(config, 2);
  f.initialize(3);
  const auto operators = make_cpu_operators(f.arena, options);
  const auto model = make_model(config, *operators);
  std::vector<std::uint16_t> parameters(f.parameters.size());
  bf16_from_float(f.parameters.data(), parameters.data(),
                  static_cast<std::int64_t>(parameters.size()));
  ResidentUnits units(model->layout(), std::span<const std::uint16_t>(parameters), f.gradients);
  constexpr std::int64_t kWideLength = 48;
  Activations activations(
      config, {.rows_max = kBatchRows, .length_max = kWideLength, .compute = compute}, *operators);
  CHECK((activations.logit_rows < activations.head_rows) == (compute == DType::kBF16));
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < kBatchRows * kWideLength; ++i) ids.push_back(i * 701);
  const LossSum sum = model
                          ->forward_backward({kBatchRows, kWideLength, ids, ids, {}, {}}, units,
                                             CrossEntropyLoss(), 0.01f, activations)
                          .value();
  return {sum, f.gradients};
}

// oneDNN's products may round by how many rows they have; ours do not.
TEST_CASE("logits that are worked on a few at a time, with gradients in bf16, change nothing") {
  for (const bool native : {true, false}) {
    const WidePass whole = wide_pass(DType::kF32, {.native_bf16 = native});
    const WidePass few = wide_pass(DType::kBF16, {.native_bf16 = native});
    CHECK(whole.sum.target_count == few.sum.target_count);
    CHECK(whole.sum.loss_sum == doctest::Approx(few.sum.loss_sum).epsilon(1e-6));
    CHECK(relative_error(few.gradients, whole.gradients) < 1e-3);
    if (!native || cpu_isa_level() != kCpuAvx512Bf16) continue;
    CHECK(whole.sum.loss_sum == few.sum.loss_sum);
    CHECK(whole.gradients == few.gradients);
  }
}

TEST_CASE("bits in bf16 do not depend on threads") {
  for (const State state : {State::kBf16Compute, State::kPureBf16})
    for (const bool native : {true, false})
      CHECK(losses_of(state, 1, {.native_bf16 = native}) ==
            losses_of(state, 3, {.native_bf16 = native}));
}

}  // namespace
}  // namespace troupe::train::tests
