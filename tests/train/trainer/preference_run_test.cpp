// Whole runs of the preference stages: one file whatever the strategy and the deaths in between,
// logs with every metric, a reference that stays as it was, a reward model's head in its file.

#include "tests/train/trainer/judged_fixture.h"
#include "train/checkpoint/weights.h"
#include "train/report/trainer_state.h"

namespace troupe::train::tests {
namespace {

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
