// A program's job (troupe/train/training.h): what is refused before anything is placed, and
// trainings without parts of the program's own, whose trainers are processes of `troupe`.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/test_data.h"
#include "troupe/train.h"

namespace troupe::train {
namespace {

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
    "vocab_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1})";

// A configuration with a model and data.
const std::string from = troupe::tests::source_dir() + "/tools/packaging/templates/yaml/";

Cluster host() {
  return Cluster::start_embedded({.num_cpus = 2, .program = troupe::tests::bin_dir() + "/troupe"})
      .value();
}

class Sevens final : public DataSource {
 public:
  std::int64_t size() const override { return 2; }
  Result<TrainingSample> sample(std::int64_t, std::int64_t) const override {
    return TrainingSample{.ids = {7}};
  }
};
class Slope final : public OwnModel {
 public:
  std::vector<OwnTensor> tensors() const override { return {{"slope", {1}}}; }
  std::int64_t sample_values() const override { return 2; }
  Result<double> evaluate(std::int64_t, std::span<const float>,
                          std::span<const std::span<const float>>,
                          std::span<const std::span<float>>) const override {
    return 0.0;
  }
};

TEST_CASE("a job's mistakes are found before anything is placed, each by its name") {
  const troupe::tests::TemporaryDirectory dir;
  Cluster cluster = host();
  const auto parts = TrainingParts().add<Sevens>("sevens").add<Slope>("slope");
  const std::string out = "output_dir=" + dir.file("out");
  const auto message = [&](TrainingJob job) {
    job.settings.push_back(out);
    const auto started = start_training(cluster, std::move(job), parts);
    REQUIRE_FALSE(started.ok());
    return started.status().message();
  };
  const auto says = [&](TrainingJob job, const char* text) {
    const std::string told = message(std::move(job));
    CHECK_MESSAGE(told.find(text) != std::string::npos, told);
  };
  says({.config = "learning_rat: 1"}, "TrainingJob::config:1: learning_rat: unknown key");
  says({.config_file = "x.yaml", .config = "max_steps: 1"}, "leave one of them out");
  says({}, "Please specify dataset");
  says({.model_config = kModel, .samples = {{.ids = {1, 9}}}}, "TrainingJob::samples[0]: token 9");
  says({.model_config = kModel, .samples = {{.values = {1}}}}, "1 numbers, where a language model");
  says({.settings = {"dataset=questions", "dataset_dir=" + from + "data"},
        .model_config = kModel,
        .samples = {{.ids = {1}}}},
       "a data set");
  says({.model_config = kModel, .samples = {{.ids = {1}}}, .parts = {.data_source = {{"sevens"}}}},
       "TrainingJob has samples, and parts.data_source");
  says({.parts = {.data_source = {{"sevens"}}, .model = {{"slop"}}}}, "it lists slope");
  says({.model_config = kModel, .samples = {{.values = {1, 2}}}, .parts = {.model = {{"slope"}}}},
       "leave model_config");
  says(
      {.settings = {"bf16=true"}, .samples = {{.values = {1, 2}}}, .parts = {.model = {{"slope"}}}},
      "computes in fp32");
  says({.samples = {{.values = {1}}}, .parts = {.model = {{"slope"}}}}, "samples are 2 numbers");
  says({.samples = {{.values = {1, 2}}}, .parts = {.objective = {{"x"}}, .model = {{"slope"}}}},
       "has its own loss");
}

TEST_CASE("a configuration's own data set is trained on, and its events are told") {
  const troupe::tests::TemporaryDirectory dir;
  Cluster cluster = host();
  std::vector<TrainingEvent> events;
  const auto of_kind = [&](TrainingEvent::Kind kind) {
    std::vector<TrainingEvent> found;
    for (const TrainingEvent& event : events)
      if (event.kind == kind) found.push_back(event);
    return found;
  };
  const auto result =
      train(cluster,
            {.config_file = from + "train.yaml",
             .settings = {"dataset_dir=" + from + "data", "model_name_or_path=" + from + "model",
                          "output_dir=" + dir.file("out"), "val_size=0.1", "eval_strategy=steps",
                          "eval_steps=20", "troupe.chaos=kill@rank=1,step=15"},
             .on_event = [&](const TrainingEvent& event) { events.push_back(event); }},
            {}, std::chrono::seconds(60));
  REQUIRE_MESSAGE(result.ok(), result.status().to_string());
  CHECK(result->steps == 40);
  CHECK(result->recoveries == 1);
  using Kind = TrainingEvent::Kind;
  CHECK(of_kind(Kind::kStep).back().step == 40);
  CHECK(of_kind(Kind::kEvaluation).size() == 2);
  REQUIRE(of_kind(Kind::kRankLost).size() == 1);
  CHECK(of_kind(Kind::kRankLost)[0].rank == 1);
  REQUIRE(of_kind(Kind::kRecovered).size() == 1);
  CHECK(of_kind(Kind::kRecovered)[0].text.find("recovered in") != std::string::npos);
  CHECK(of_kind(Kind::kSaved).back().text == dir.file("out/checkpoint-40"));
}

}  // namespace
}  // namespace troupe::train
