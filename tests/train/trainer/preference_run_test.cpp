// Whole runs of the preference stages: one file whatever the strategy and the deaths in between,
// logs with every metric, a reference that stays as it was, a reward model's head in its file.

#include "tests/train/trainer/run_fixture.h"
#include "train/checkpoint/weights.h"
#include "train/report/trainer_state.h"

namespace troupe::train::tests {
namespace {

struct JudgedRun {
  TrainingStage stage = TrainingStage::kDpo;
  bool lora = true;
  std::string strategy = "ddp";
  int world = 2;
  std::string loss = "sigmoid";
  bool bf16 = false;
  std::string resume = "";
};

TokenDataset judged_samples(TokenDataset::Kind kind) {
  TokenDataset dataset(kind, 0);
  SeededRandom random(5);
  for (int sample = 0; sample < 24; ++sample) {
    std::vector<TokenId> ids;
    std::vector<std::int32_t> labels, parts;
    for (int part = 0; part < 2; ++part) {
      const int length = 5 + static_cast<int>(random.below(8));
      // The good answer counts upwards.
      TokenId id = static_cast<TokenId>(random.below(30));
      for (int i = 0; i < length; ++i) {
        id = part == 0 ? static_cast<TokenId>(id % 62 + 1) : static_cast<TokenId>(random.below(62));
        ids.push_back(id);
        labels.push_back(i < 2 ? kIgnoredLabel : id);
      }
      parts.push_back(length);
    }
    if (kind == TokenDataset::Kind::kFeedback && sample % 3 != 1) parts.push_back(0);
    dataset.append(ids, labels, parts);
  }
  return dataset;
}

Trainables judged_trainables(const ModelConfig& model, const JudgedRun& run) {
  Trainables trainables;
  if (run.lora) {
    trainables.everything = false;
    const ParameterLayout layout(model);
    for (const ParameterInfo& info : layout.parameters())
      if (info.name.find("_proj.weight") != std::string::npos)
        trainables.lora.push_back({.module = info.name.substr(0, info.name.size() - 7),
                                   .rank = 4,
                                   // A reward model's adapters may drop their inputs.
                                   .dropout = run.stage == TrainingStage::kReward ? 0.1 : 0});
  }
  trainables.value_head = run.stage == TrainingStage::kReward;
  const bool compares =
      run.stage == TrainingStage::kKto || (run.stage == TrainingStage::kDpo && run.loss != "simpo");
  if (compares) trainables.reference = Reference::kBase;
  return trainables;
}

RunChange judged_change(const JudgedRun& run) {
  return {.world = run.world,
          .batch = 2,
          .accumulation = 4 / run.world,
          .resume = run.resume,
          .change = [=](RunBundle& bundle) {
            auto& config = bundle.config;
            config.method.stage = run.stage;
            config.method.pref_loss = run.loss;
            config.method.pref_ftx = 0.1;
            config.data.packing = false;
            config.sharding.strategy = run.strategy;
            if (run.bf16) config.model.compute = Precision::kBfloat16;
            config.training.max_steps = 5;
            config.training.save_steps = 4;
            config.training.logging_steps = 2;
            bundle.dataset =
                judged_samples(run.stage == TrainingStage::kKto ? TokenDataset::Kind::kFeedback
                                                                : TokenDataset::Kind::kPairs);
            bundle.eval = bundle.dataset;
            config.evaluation.strategy = IntervalStrategy::kSteps;
            config.evaluation.do_eval = true;
            config.evaluation.eval_steps = 4;
            config.evaluation.per_device_eval_batch_size = 5;
            bundle.trainables = judged_trainables(bundle.model, run);
            config.finetuning.type = run.lora ? FinetuningType::kLora : FinetuningType::kFull;
          }};
}

std::string judged_weights(const std::string& folder, const JudgedRun& run) {
  std::string bytes = file(folder + "/" + (run.lora ? kAdapterFile : kWeightsFile));
  REQUIRE(bytes.size() > 1000);
  if (run.stage == TrainingStage::kReward) bytes += file(folder + "/" + kValueHeadFile);
  return bytes;
}

json::Array logged_history(const std::string& folder) {
  return parse_trainer_state(file(folder + "/trainer_state.json"), "trainer_state.json")
      .value()
      .log_history;
}

TEST_CASE("preference stages: one file for all strategies, and after a death") {
  for (const JudgedRun& run :
       {JudgedRun{}, JudgedRun{.lora = false}, JudgedRun{.lora = false, .bf16 = true},
        JudgedRun{.lora = false, .loss = "simpo"}, JudgedRun{.stage = TrainingStage::kKto},
        JudgedRun{.stage = TrainingStage::kReward},
        JudgedRun{.stage = TrainingStage::kReward, .lora = false, .bf16 = true}}) {
    troupe::tests::TemporaryDirectory dir;
    CAPTURE(static_cast<int>(run.stage));
    CAPTURE(run.lora);
    train(dir.file("ddp"), judged_change(run));
    const std::string expected = judged_weights(dir.file("ddp"), run);
    JudgedRun sharded = run;
    sharded.strategy = "zero3";
    train_struck(dir.file("zero3"), judged_change(sharded), 1);
    CHECK((judged_weights(dir.file("zero3"), run) == expected));
    CHECK(step_lines(dir.file("zero3")) == step_lines(dir.file("ddp")));
    CHECK(logged_history(dir.file("zero3")).size() == logged_history(dir.file("ddp")).size());
    if (run.stage != TrainingStage::kDpo || !run.lora) continue;
    sharded.strategy = "zero2";
    train(dir.file("zero2"), judged_change(sharded));
    CHECK((judged_weights(dir.file("zero2"), run) == expected));
  }
}

TEST_CASE("rank 0's death costs no metric of a log") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("whole"), judged_change({}));
  train_struck(dir.file("struck"), judged_change({.strategy = "fsdp"}), 0);
  const auto whole = logged_history(dir.file("whole")), struck = logged_history(dir.file("struck"));
  REQUIRE(whole.size() == struck.size());
  int compared = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char* name : {"rewards/chosen", "rewards/margins", "logps/rejected",
                             "rewards/accuracies", "eval_rewards/chosen", "eval_loss"}) {
      CHECK(json::find_number(whole[i], name) == json::find_number(struck[i], name));
      compared += json::find(whole[i], name) ? 1 : 0;
    }
  }
  // Two logs, and evaluations at step 4 and at the end.
  CHECK(compared == 2 * 4 + 2 * 2);
}

TEST_CASE("the policy begins as its reference, and leaves it") {
  for (const bool lora : {true, false}) {
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("run"), judged_change({.lora = lora}));
    const auto records = steps(dir.file("run"));
    const auto reward = [&](std::size_t step) {
      const json::Value* metrics = records[step].extra.if_contains("metrics");
      REQUIRE(metrics);
      return json::find(*metrics, "rewards/chosen")->as_array()[0].to_number<double>();
    };
    CHECK(reward(0) == doctest::Approx(0).epsilon(1e-6));
    CHECK(std::abs(reward(4)) > 1e-3);
    // ln 2, and the SFT loss beside.
    CHECK(records[0].loss > 0.69);
    CHECK(records[4].loss < records[0].loss);
    // Nothing of a reference is saved.
    CHECK(file(dir.file("run") + "/" + (lora ? kAdapterFile : kWeightsFile)).find("reference.") ==
          std::string::npos);
  }
}

TEST_CASE("a reward model's head lies beside the weights, and goes on from a checkpoint") {
  for (const bool lora : {true, false}) {
    troupe::tests::TemporaryDirectory dir;
    const JudgedRun run{.stage = TrainingStage::kReward, .lora = lora, .strategy = "zero3"};
    train(dir.file("run"), judged_change(run));
    const std::string head = file(dir.file("run") + "/" + kValueHeadFile);
    CHECK(head.find("v_head.summary.weight") != std::string::npos);
    CHECK(head.find("v_head.summary.bias") != std::string::npos);
    CHECK(file(dir.file("run") + "/" + (lora ? kAdapterFile : kWeightsFile)).find("v_head") ==
          std::string::npos);
    JudgedRun resumed = run;
    resumed.strategy = "ddp";
    resumed.resume = dir.file("run") + "/checkpoint-4";
    train(dir.file("again"), judged_change(resumed));
    CHECK((judged_weights(dir.file("again"), run) == judged_weights(dir.file("run"), run)));
  }
}

}  // namespace
}  // namespace troupe::train::tests
