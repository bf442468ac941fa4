// The published 260K-parameter stories model against a float64 reference.

#include "tests/support/test_data.h"
#include "tests/train/model/model_fixture.h"
#include "train/model/generator.h"

namespace troupe::train::tests {
namespace {

struct Stories {
  explicit Stories(const std::string& directory, int threads = 1)
      : golden(parse(directory + "/golden.json")),
        fixture(ModelConfig::from_json(parse(directory + "/config.json"), "config.json").value(),
                threads) {
    const Tensors tensors = load_tensors(directory + "/model.safetensors");
    fixture.load(tensors, "");
  }
  static json::Value parse(const std::string& path) {
    PosixFileSystem files;
    return json::parse(files.read(path, 1 << 20).value(), path).value();
  }
  template <typename T>
  std::vector<T> list(std::string_view key) const {
    std::vector<T> out;
    for (const json::Value& value : golden.at(key).as_array()) out.push_back(value.to_number<T>());
    return out;
  }
  json::Value golden;
  ModelFixture fixture;
};

TEST_CASE("stories260K: logits and NLL equal the reference") {
  const auto directory = troupe::tests::test_data("stories260K/hf");
  if (!directory) return;
  Stories stories(*directory);
  ModelFixture& f = stories.fixture;
  const auto ids = stories.list<std::int32_t>("eval_ids");
  const auto length = static_cast<std::int64_t>(ids.size());
  Activations activations(f.model->config(), {1, length, false, Recompute::kNothing}, *f.operators);
  const MicroBatch batch{1, length, ids, ids, {}, {}};

  const LossSum sum = f.model->forward(batch, f.units, CrossEntropyLoss(), activations).value();
  CHECK(sum.target_count == 256);
  CHECK(std::abs(sum.loss_sum / 256 - stories.golden.at("eval_mean_nll").as_double()) < 1e-4);

  std::vector<float> logits(static_cast<std::size_t>(length * f.model->config().vocab_size));
  REQUIRE(f.model->logits(batch, f.units, activations, logits).ok());
  const auto row = [&](std::size_t t) { return std::span(logits).subspan(t * 512, 512); };
  CHECK(relative_error(row(0), stories.list<float>("logits_at_bos")) < 1e-4);
  CHECK(std::min(relative_error(row(255), stories.list<float>("logits_at_last_eval_pos")),
                 relative_error(row(256), stories.list<float>("logits_at_last_eval_pos"))) < 1e-4);
}

TEST_CASE("stories260K: greedy text equals the reference") {
  const auto directory = troupe::tests::test_data("stories260K/hf");
  if (!directory) return;
  Stories stories(*directory);
  const auto expected = stories.list<std::int32_t>("greedy_ids_from_bos");
  Generator generator(*stories.fixture.model, *stories.fixture.operators, stories.fixture.units,
                      300);
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.tokens_max = static_cast<std::int64_t>(expected.size()) - 1;
  SeededRandom random(1);
  const std::vector<std::int32_t> bos = {1};
  std::vector<std::int32_t> tokens = generator.generate(bos, options, random).value();
  tokens.insert(tokens.begin(), 1);
  CHECK(tokens == expected);
}

}  // namespace
}  // namespace troupe::train::tests
