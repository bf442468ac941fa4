// Whole runs in fp16: equal models whatever the strategy, steps that overflow, deaths among them,
// the loss scale in checkpoints.
#include <cmath>

#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {
namespace {

struct HalfRun {
  std::string strategy = "ddp";
  int world = 2;
  double initial_scale_power = 16;
  std::int64_t window = 1000;
  bool deepspeed = true;
  Precision compute = Precision::kFloat16;
  std::string resume = "";
  Deterministic deterministic = Deterministic::kStrategy;
};

RunChange half_change(const HalfRun& run) {
  return {.world = run.world,
          .batch = 1,
          .accumulation = 4 / run.world,
          .resume = run.resume,
          .change = [=](RunBundle& bundle) {
            auto& config = bundle.config;
            config.sharding.strategy = run.strategy;
            config.sharding.deterministic = run.deterministic;
            config.model.compute = run.compute;
            if (run.deepspeed)
              config.deepspeed["fp16"] =
                  json::Object{{"enabled", true},
                               {"initial_scale_power", run.initial_scale_power},
                               {"loss_scale_window", run.window},
                               {"hysteresis", 1}};
            config.training.max_steps = 8;
            config.training.save_steps = 4;
            config.training.save_total_limit = 4;
          }};
}

json::Value saved_scale(const std::string& checkpoint) {
  PosixFileSystem files;
  const auto state = read_checkpoint_state(files, validate_checkpoint(files, checkpoint).value());
  const json::Value* scale = json::find(state->scheduler, "loss_scale");
  return scale ? *scale : json::Value();
}

TEST_CASE("fp16 learns as fp32 does, with equal models under every strategy") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("fp32"), half_change({.compute = Precision::kFloat32}));
  train(dir.file("ddp"), half_change({}));
  const auto wide = steps(dir.file("fp32")), narrow = steps(dir.file("ddp"));
  REQUIRE(wide.size() == narrow.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    CHECK(narrow[i].skipped.empty());
    CHECK(narrow[i].loss == doctest::Approx(wide[i].loss).epsilon(2e-3));
    CHECK(narrow[i].grad_norm == doctest::Approx(wide[i].grad_norm).epsilon(2e-2));
  }
  CHECK(narrow.back().loss != wide.back().loss);
  const std::string expected = file(dir.file("ddp/model.safetensors"));
  REQUIRE(expected.size() > 1000);
  for (const char* strategy : {"zero1", "zero2", "zero3"}) {
    CAPTURE(strategy);
    train(dir.file(strategy), half_change({.strategy = strategy}));
    CHECK((file(dir.file(strategy) + "/model.safetensors") == expected));
    CHECK(step_lines(dir.file(strategy)) == step_lines(dir.file("ddp")));
  }
  auto ranks = make_ranks(dir.file("told"), half_change({.deepspeed = false}));
  for (const Status& status : run_generation(*ranks, 1)) REQUIRE(status.ok());
  REQUIRE(ranks->observers[0].warnings.size() == 1);
  CHECK(ranks->observers[0].warnings[0].find("bf16: true") != std::string::npos);
  CHECK(ranks->observers[1].warnings.empty());
  // The same scale by another rule.
  CHECK((file(dir.file("told/model.safetensors")) == expected));
}

TEST_CASE("steps that overflow are skipped by all, and done again with the same scale") {
  troupe::tests::TemporaryDirectory dir;
  // The first steps overflow; then the scale doubles every second step, and falls again.
  const HalfRun run{.initial_scale_power = 26, .window = 2};
  train(dir.file("whole"), half_change(run));
  const auto whole = steps(dir.file("whole"));
  REQUIRE(whole.size() == 8);
  std::int64_t skipped = 0;
  double rate = 0;
  for (const StepRecord& step : whole) {
    if (step.skipped.empty()) continue;
    ++skipped;
    CAPTURE(step.skipped);
    CHECK(step.skipped.find("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: ") ==
          0);
    CHECK_FALSE(std::isfinite(step.grad_norm));
    CHECK(std::isfinite(step.loss));
    rate = step.learning_rate;
  }
  CHECK(whole[0].skipped.find("67108864, reducing to 33554432") != std::string::npos);
  // The schedule does not count them.
  CHECK(whole[1].learning_rate == whole[0].learning_rate);
  CHECK(skipped >= 3);
  CHECK(skipped < 8);
  CHECK(rate > 0);
  const std::string expected = file(dir.file("whole/model.safetensors"));
  for (const char* strategy : {"zero2", "zero3"}) {
    CAPTURE(strategy);
    HalfRun sharded = run;
    sharded.strategy = strategy;
    // The third step overflows: the struck rank dies behind it.
    REQUIRE_FALSE(whole[2].skipped.empty());
    train_struck(dir.file(strategy), half_change(sharded), 1);
    CHECK((file(dir.file(strategy) + "/model.safetensors") == expected));
    CHECK(step_lines(dir.file(strategy)) == step_lines(dir.file("whole")));
  }
  // Kills all over a run, of one rank and the other.
  for (std::int64_t at = 5; at < 200; at += 31) {
    CAPTURE(at);
    troupe::tests::TemporaryDirectory killed;
    HalfRun sharded = run;
    sharded.strategy = "zero3";
    const RunChange change = half_change(sharded);
    auto ranks = make_ranks(killed.file("out"), change);
    std::vector<Killer> killers(2);
    const int rank = static_cast<int>(at % 2);
    killers[static_cast<std::size_t>(rank)].kill_at = at;
    REQUIRE(run_killed(*ranks, 1, killers)[static_cast<std::size_t>(rank)]);
    start_rank(*ranks, rank, killed.file("out"), change);
    for (const Status& status : run_generation(*ranks, 2))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    CHECK((file(killed.file("out/model.safetensors")) == expected));
    CHECK(step_lines(killed.file("out")) == step_lines(dir.file("whole")));
  }
}

TEST_CASE("a checkpoint has the loss scale, and the run goes on with it") {
  troupe::tests::TemporaryDirectory dir;
  const HalfRun run{.strategy = "zero3", .initial_scale_power = 26, .window = 2};
  train(dir.file("whole"), half_change(run));
  const std::string checkpoint = dir.file("whole/checkpoint-4");
  const json::Value scale = saved_scale(checkpoint);
  REQUIRE(scale.is_object());
  CHECK(json::find_number(scale, "next").value_or(0) < 0x1p26);
  HalfRun resumed = run;
  resumed.resume = checkpoint;
  train(dir.file("resumed"), half_change(resumed));
  CHECK((file(dir.file("resumed/model.safetensors")) == file(dir.file("whole/model.safetensors"))));
  CHECK(saved_scale(dir.file("resumed/checkpoint-8")) ==
        saved_scale(dir.file("whole/checkpoint-8")));
  // In fp32 there is none.
  resumed.compute = Precision::kFloat32;
  train(dir.file("fp32"), half_change(resumed));
  CHECK(saved_scale(dir.file("fp32/checkpoint-8")).is_null());
}

TEST_CASE("DeepSpeed's least scale ends the run, and a fixed one is left alone") {
  for (const bool fixed : {false, true}) {
    CAPTURE(fixed);
    troupe::tests::TemporaryDirectory dir;
    RunChange change = half_change({.strategy = "zero2"});
    const auto before = change.change;
    change.change = [=](RunBundle& bundle) {
      before(bundle);
      json::Object fp16{{"enabled", true}, {"hysteresis", 1}};
      if (fixed)
        fp16["loss_scale"] = 0x1p60;
      else
        fp16["initial_scale_power"] = 60, fp16["min_loss_scale"] = 0x1p59;
      bundle.config.deepspeed["fp16"] = fp16;
      bundle.config.training.max_steps = 12;
    };
    auto ranks = make_ranks(dir.file("out"), change);
    for (const Status& status : run_generation(*ranks, 1)) {
      CHECK(status.code() == Code::kFailedPrecondition);
      CHECK(status.message().find(fixed ? "10 steps in a row were skipped"
                                        : "Current loss scale already at minimum - cannot") == 0);
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
