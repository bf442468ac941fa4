// What must not change a bit, and decoding against the full forward pass.

#include "tests/train/model/model_fixture.h"
#include "train/model/generator.h"

namespace troupe::train::tests {
namespace {

ModelConfig small_config(bool tied) {
  const std::string text = std::string(R"({"model_type": "llama", "vocab_size": 500,
      "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3,
      "num_attention_heads": 6, "num_key_value_heads": 2, "initializer_range": 0.08,
      "tie_word_embeddings": )") +
                           (tied ? "true}" : "false}");
  return ModelConfig::parse(text, "config.json").value();
}

constexpr std::uint64_t kPassVocabulary = 500;

std::pair<double, std::vector<float>> pass_gradients(const ModelConfig& config,
                                                     const MicroBatch& batch, int threads,
                                                     Recompute recompute) {
  ModelFixture f(config, threads);
  f.initialize(3);
  Activations activations(config, {batch.rows, batch.length, true, recompute}, *f.operators);
  const LossSum sum =
      f.model->forward_backward(batch, f.units, CrossEntropyLoss(), 0.01f, activations).value();
  return {sum.loss_sum, f.gradients};
}

TEST_CASE("threads and what is recomputed do not change a bit") {
  Batch batch(3, 150, kPassVocabulary);
  for (const bool segments : {false, true}) {
    if (segments)
      batch.micro.position_ids = batch.positions, batch.micro.segment_ids = batch.segments;
    for (const bool tied : {false, true}) {
      const auto one = pass_gradients(small_config(tied), batch.micro, 1, Recompute::kNothing);
      CHECK(one == pass_gradients(small_config(tied), batch.micro, 2, Recompute::kNothing));
      CHECK(one == pass_gradients(small_config(tied), batch.micro, 1, Recompute::kCheapOperators));
      CHECK(one == pass_gradients(small_config(tied), batch.micro, 2, Recompute::kCheapOperators));
      CHECK(one == pass_gradients(small_config(tied), batch.micro, 1, Recompute::kLayers));
      CHECK(one == pass_gradients(small_config(tied), batch.micro, 3, Recompute::kLayers));
    }
  }
}

TEST_CASE("packed segments equal samples on their own") {
  const ModelConfig config = small_config(true);
  const Batch batch(1, 100, kPassVocabulary);
  ModelFixture f(config);
  f.initialize(3);
  Activations activations(config, {1, 100, false, Recompute::kNothing}, *f.operators);
  std::vector<float> packed(100 * 500), alone(50 * 500);
  MicroBatch micro = batch.micro;
  micro.position_ids = batch.positions, micro.segment_ids = batch.segments;
  REQUIRE(f.model->logits(micro, f.units, activations, packed).ok());
  const MicroBatch second{1, 50, micro.ids.subspan(50), {}, {}, {}};
  REQUIRE(f.model->logits(second, f.units, activations, alone).ok());
  CHECK(relative_error(std::span(packed).subspan(50 * 500), alone) < 1e-5);
}

// Rows of 150, 13 and 70 tokens, padded to 150, and one behind the other.
struct RaggedBatch {
  explicit RaggedBatch(const Batch& batch) {
    std::int32_t segment = 0;
    for (const std::int64_t length : {150, 13, 70}) {
      for (std::int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<std::size_t>(segment * 150 + i);
        ids.push_back(batch.ids[at]);
        labels.push_back(i == 0 ? kIgnoreLabel : batch.labels[at]);
        positions.push_back(static_cast<std::int32_t>(i));
        segments.push_back(segment);
      }
      padded_ids.insert(padded_ids.end(), ids.end() - length, ids.end());
      padded_labels.insert(padded_labels.end(), labels.end() - length, labels.end());
      padded_ids.resize(static_cast<std::size_t>(++segment) * 150, 1);
      padded_labels.resize(padded_ids.size(), kIgnoreLabel);
    }
    flat = {1, 233, ids, labels, positions, segments};
    padded = {3, 150, padded_ids, padded_labels, {}, {}};
  }
  std::vector<std::int32_t> ids, labels, positions, segments, padded_ids, padded_labels;
  MicroBatch flat, padded;
};

TEST_CASE("rows of unequal length need no padding") {
  const RaggedBatch batch(Batch(3, 150, kPassVocabulary));
  // The position table of the second is shorter than the row that holds all; the third has a
  // window.
  const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 500, "n_embd": 96, "n_layer": 2,
      "n_head": 6, "n_positions": 150, "initializer_range": 0.08, "attn_pdrop": 0, "embd_pdrop": 0,
      "resid_pdrop": 0})";
  const std::string mistral = R"({"model_type": "mistral", "vocab_size": 500, "hidden_size": 96,
      "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "sliding_window": 40, "initializer_range": 0.08})";
  for (const ModelConfig& config :
       {small_config(true), ModelConfig::parse(gpt2, "config.json").value(),
        ModelConfig::parse(mistral, "config.json").value()}) {
    ModelFixture f(config);
    f.initialize(3);
    Activations activations(config, {3, 150, true, Recompute::kNothing}, *f.operators);
    const auto pass = [&](const MicroBatch& micro) {
      return f.model->forward_backward(micro, f.units, CrossEntropyLoss(), 0.01f, activations)
          .value();
    };
    const LossSum padded = pass(batch.padded);
    const std::vector<float> expected = f.gradients;
    std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
    const LossSum flat = pass(batch.flat);
    CHECK(flat.target_count == padded.target_count);
    CHECK(flat.loss_sum == doctest::Approx(padded.loss_sum).epsilon(1e-6));
    CHECK(relative_error(f.gradients, expected) < 2e-5);
  }
}

TEST_CASE("decoding with a cache equals the full forward pass") {
  const ModelConfig config = small_config(false);
  const Batch batch(1, 90, kPassVocabulary);
  ModelFixture f(config, 2);
  f.initialize(5);
  Activations activations(config, {1, 90, false, Recompute::kNothing}, *f.operators);
  std::vector<float> full(90 * 500), step(500);
  REQUIRE(f.model->logits(batch.micro, f.units, activations, full).ok());
  KvCache cache(config, 90);
  const std::span<const std::int32_t> ids = batch.ids;
  for (std::size_t at = 0; at < 90;) {  // a long prefill, a short one, then single tokens
    const std::size_t count = at == 0 ? 70 : at == 70 ? 5 : 1;
    REQUIRE(f.model->decode(ids.subspan(at, count), cache, f.units, activations, step).ok());
    at += count;
    CHECK(relative_error(step, std::span(full).subspan((at - 1) * 500, 500)) < 1e-5);
  }
  CHECK(f.model->decode(ids.first(1), cache, f.units, activations, step).code() ==
        Code::kInvalidArgument);
}

// Counts what the model asks for and fails where it is told to.
class CountingUnits final : public UnitAccess {
 public:
  explicit CountingUnits(UnitAccess& inner) : inner_(inner) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    if (calls_until_failure-- == 0) return error(Code::kAborted, "unit {} is gone", unit);
    ++held;
    return inner_.acquire(unit, phase);
  }
  void release(int, Phase) override { --held; }
  Result<UnitGradient> gradient(int unit) override { return inner_.gradient(unit); }
  Status gradient_done(int unit) override {
    done.push_back(unit);
    return {};
  }
  int held = 0;
  int calls_until_failure = -1;
  std::vector<int> done;

 private:
  UnitAccess& inner_;
};

TEST_CASE("units: every gradient is done once, and a failure releases all") {
  const Batch batch(1, 20, kPassVocabulary);
  for (const bool tied : {false, true}) {
    ModelFixture f(small_config(tied));
    f.initialize(1);
    Activations activations(f.model->config(), {1, 20, true, Recompute::kLayers}, *f.operators);
    bool finished = false;
    for (int n = 0; !finished; ++n) {
      CountingUnits units(f.units);
      units.calls_until_failure = n;
      const auto sum =
          f.model->forward_backward(batch.micro, units, CrossEntropyLoss(), 1.0f, activations);
      CHECK(units.held == 0);
      finished = sum.ok();
      if (finished) CHECK(units.done == std::vector<int>{4, 3, 2, 1, 0});
      if (!finished) CHECK(sum.status().code() == Code::kAborted);
      REQUIRE(n < 100);
    }
  }
}

TEST_CASE("batches that do not fit are refused") {
  ModelFixture f(small_config(true));
  Activations activations(f.model->config(), {2, 20, true, Recompute::kLayers}, *f.operators);
  const auto code = [&](const MicroBatch& batch) {
    return f.model->forward_backward(batch, f.units, CrossEntropyLoss(), 1.0f, activations)
        .status();
  };
  const Batch batch(2, 20, kPassVocabulary), large(2, 30, kPassVocabulary);
  CHECK(code(batch.micro).ok());
  CHECK(code(large.micro).code() == Code::kInvalidArgument);
  MicroBatch wrong = batch.micro;
  std::vector<std::int32_t> ids = batch.ids;
  ids[25] = 500;
  wrong.ids = ids;
  CHECK(code(wrong).to_string() == "token id 500 at row 1, token 5 is not in 0 … 499");
  wrong = batch.micro;
  wrong.labels = {};
  CHECK(code(wrong).code() == Code::kInvalidArgument);
}

TEST_CASE("a batch without targets gives zero loss and zero gradients") {
  ModelFixture f(small_config(true));
  f.initialize(1);
  Activations activations(f.model->config(), {1, 20, true, Recompute::kNothing}, *f.operators);
  Batch batch(1, 20, kPassVocabulary);
  std::fill(batch.labels.begin(), batch.labels.end(), kIgnoreLabel);
  const LossSum sum =
      f.model->forward_backward(batch.micro, f.units, CrossEntropyLoss(), 1.0f, activations)
          .value();
  CHECK(sum.target_count == 0);
  CHECK(sum.loss_sum == 0.0);
  CHECK(std::all_of(f.gradients.begin(), f.gradients.end(), [](float g) { return g == 0.0f; }));
}

TEST_CASE("sampling: greedy, limits and seeds") {
  const std::vector<float> logits = {0.0f, 3.0f, 3.0f, -1.0f, 2.0f};
  SeededRandom random(1);
  CHECK(greedy_token(logits) == 1);
  for (int i = 0; i < 200; ++i) {
    CHECK(sample_token(logits, {.temperature = 1.0, .top_k = 1}, random) == 1);
    const std::int32_t two = sample_token(logits, {.temperature = 1.0, .top_k = 2}, random);
    CHECK((two == 1 || two == 2));
    CHECK(sample_token(logits, {.temperature = 1.0, .top_p = 0.3}, random) == 1);
  }
  std::vector<int> counts(5);
  for (int i = 0; i < 20000; ++i)
    ++counts[static_cast<std::size_t>(sample_token(logits, {}, random))];
  const double sum = 1 + 2 * std::exp(3.0) + std::exp(-1.0) + std::exp(2.0);
  for (std::size_t i = 0; i < 5; ++i)
    CHECK(std::abs(counts[i] / 20000.0 - std::exp(static_cast<double>(logits[i])) / sum) < 0.015);
  CHECK(!check_sampling({.temperature = -1}).ok());
  CHECK(!check_sampling({.top_p = 0}).ok());
}

}  // namespace
}  // namespace troupe::train::tests
