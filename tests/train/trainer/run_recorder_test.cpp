#include "train/trainer/run_recorder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/faulty_file_system.h"
#include "train/report/format.h"

// fontconfig, under cairo, keeps its configuration until the process ends.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig\n"; }

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;

struct Run {
  Run() {
    REQUIRE(files.create_directories("out").ok());
    config.training.output_dir = "out";
    config.training.logging_steps = 2;
    config.evaluation.eval_steps = 4;
    config.method.stage = TrainingStage::kPretrain;
    facts.schedule = {
        .steps_per_epoch = 4, .total_steps = 8, .logging_interval = 2, .effective_batch_size = 3};
    facts.started_unix_us = clock.unix_time_us();
  }
  RunRecorder open(TrainerState state = {}) {
    return RunRecorder::open(files, clock, config, facts, std::move(state)).value();
  }
  bool step(RunRecorder& recorder, std::int64_t number, double loss) {
    clock.advance(std::chrono::seconds(1));
    return recorder
        .step({.step = number, .loss = loss, .grad_norm = 1, .learning_rate = 0.5, .tokens = 10})
        .value()
        .has_value();
  }
  std::string text(const std::string& name) {
    return files.read("out/" + name, 1 << 20).value_or("(absent)");
  }
  FaultyFileSystem files;
  ManualClock clock;
  TrainConfig config;
  RunFacts facts;
};

double number(const json::Value& entry, std::string_view key) {
  return json::find_number(entry, key).value_or(-1);
}

EvalResult recorded_result(double loss) {
  return {.loss = loss, .samples = 6, .batches = 3, .targets = 60, .seconds = 1.5};
}

TEST_CASE("report_to: tensorboard: an event file with the history, whoever goes on with the run") {
  Run run;
  const auto records = [&] {
    return whole_records(run.text("runs/" + event_file_name("out"))).size();
  };
  {
    RunRecorder recorder = run.open();
    for (int i = 1; i <= 2; ++i) run.step(recorder, i, 1);
  }
  CHECK_FALSE(run.files.exists("out/runs"));  // nobody asked for it
  run.config.training.report_to = {"tensorboard"};
  RunRecorder recorder = run.open();
  for (int i = 1; i <= 8; ++i) run.step(recorder, i, 10 - i);
  REQUIRE(recorder.evaluated(recorded_result(3)).ok());
  CHECK(records() == 1 + recorder.state().log_history.size());
  // From a checkpoint before: what came later is dropped.
  TrainerState earlier = recorder.state();
  earlier.global_step = 4;
  RunRecorder again = run.open(earlier);
  CHECK(records() == 1 + 2);
  for (int i = 5; i <= 8; ++i) run.step(again, i, 10 - i);
  REQUIRE(again.finish().ok());
  CHECK(records() == 1 + again.state().log_history.size());
  run.config.training.logging_dir = "elsewhere";
  (void)run.open(again.state());
  CHECK(run.files.exists("elsewhere/" + event_file_name("out")));
  CHECK(event_file_name("out") != event_file_name("other"));
}

TEST_CASE(
    "an evaluation: a line of the log, an entry of the history, results and plot at the end") {
  Run run;
  run.config.method.plot_loss = true;
  RunRecorder recorder = run.open();
  REQUIRE(recorder.evaluated(recorded_result(5)).ok());  // on start
  for (int i = 1; i <= 8; ++i) {
    CHECK(run.step(recorder, i, 10 - i) == (i % 2 == 0));
    if (i % 4 == 0) REQUIRE(recorder.evaluated(recorded_result(i == 4 ? 2 : 3)).ok());
  }
  const auto& history = recorder.state().log_history;
  REQUIRE(history.size() == 7);
  CHECK(python_json(history[0]) ==
        R"({"epoch": 0.0, "eval_loss": 5.0, "eval_runtime": 1.5, "eval_samples_per_second": 4.0, )"
        R"("eval_steps_per_second": 2.0, "step": 0})");
  CHECK(number(history[3], "eval_loss") == 2);
  CHECK(number(history[3], "step") == 4);
  CHECK(number(history[3], "epoch") == 1);
  CHECK(recorder.state().eval_steps == 4);
  const std::string log = run.text("trainer_log.jsonl");
  CHECK(log.starts_with(R"({"current_steps": 0, "total_steps": 8, "eval_loss": 5.0, "epoch": 0.0, )"
                        R"("percentage": 0.0, "elapsed_time": "0:00:00", )"));
  CHECK(
      log.find(R"({"current_steps": 4, "total_steps": 8, "eval_loss": 2.0, "epoch": 1.0, )"
               R"("percentage": 50.0, "elapsed_time": "0:00:04", "remaining_time": "0:00:04"})") !=
      std::string::npos);

  REQUIRE(recorder.finish(4).ok());  // the best model was brought back
  const auto results = parse_python_json(run.text("eval_results.json"), "x").value();
  CHECK(number(results, "eval_loss") == 2);
  CHECK(number(results, "eval_perplexity") == doctest::Approx(std::exp(2.0)));
  CHECK(json::find(results, "step") == nullptr);
  const auto all = parse_python_json(run.text("all_results.json"), "x").value();
  CHECK(number(all, "eval_loss") == 2);
  CHECK(number(all, "train_loss") == 5.5);
  CHECK(run.text("training_eval_loss.png").substr(1, 3) == "PNG");
  CHECK(run.text("training_loss.png").substr(1, 3) == "PNG");
}

TEST_CASE("data sets apart: an entry of the history for each, one table of results") {
  Run run;
  run.config.evaluation.eval_dataset = {"a", "b"};
  run.config.evaluation.on_each_dataset = true;
  run.config.method.plot_loss = true;
  RunRecorder recorder = run.open();
  for (int i = 1; i <= 8; ++i) run.step(recorder, i, 1);
  for (const char* name : {"a", "b"}) {
    EvalResult result = recorded_result(name[0] == 'a' ? 2 : 3);
    result.data_set = name;
    REQUIRE(recorder.evaluated(result).ok());
  }
  const auto& history = recorder.state().log_history;
  CHECK(number(history[history.size() - 2], "eval_a_loss") == 2);
  CHECK(number(history.back(), "eval_b_samples_per_second") == 4);
  CHECK(last_eval_step(recorder.state()) == 8);
  CHECK(run.text("trainer_log.jsonl").find("eval_") == std::string::npos);
  REQUIRE(recorder.finish().ok());
  const auto results = parse_python_json(run.text("eval_results.json"), "x").value();
  CHECK(number(results, "eval_a_loss") == 2);
  CHECK(number(results, "eval_b_perplexity") == doctest::Approx(std::exp(3.0)));
  CHECK(run.text("training_eval_b_loss.png").substr(1, 3) == "PNG");
}

TEST_CASE("a run without evaluation has no results of one; fine-tuning has no perplexity") {
  Run run;
  RunRecorder recorder = run.open();
  for (int i = 1; i <= 8; ++i) run.step(recorder, i, 1);
  REQUIRE(recorder.finish().ok());
  CHECK_FALSE(run.files.exists("out/eval_results.json"));

  Run tuned;
  tuned.config.method.stage = TrainingStage::kSupervised;
  RunRecorder other = tuned.open();
  tuned.step(other, 1, 1);
  REQUIRE(other.evaluated(recorded_result(2)).ok());
  REQUIRE(other.finish().ok());
  CHECK(tuned.text("eval_results.json").find("perplexity") == std::string::npos);
}

TEST_CASE("the console is told the loss that is logged") {
  Run run;
  RunRecorder recorder = run.open();
  CHECK_FALSE(run.step(recorder, 1, 6));
  const auto logged = recorder.step({.step = 2, .loss = 4}).value();
  CHECK(logged == 5);
  CHECK(number(recorder.state().log_history.back(), "loss") == 5);
}

TEST_CASE("input tokens are counted, and in the logs where the key asks for them") {
  for (const char* key : {"false", "no", "true", "all", "non_padding"}) {
    CAPTURE(key);
    Run run;
    run.config.training.include_num_input_tokens_seen = key;
    const bool asked = run.config.training.counts_input_tokens();
    RunRecorder recorder = run.open();
    for (int i = 1; i <= 4; ++i) run.step(recorder, i, 1);
    CHECK(recorder.state().num_input_tokens_seen == 40);
    CHECK(number(recorder.state().log_history.back(), "num_input_tokens_seen") ==
          (asked ? 40 : -1));
    CHECK((run.text("trainer_log.jsonl").find(R"("total_tokens": 40)") != std::string::npos) ==
          asked);
    // A resumed run goes on counting.
    RunRecorder second = run.open(parse_trainer_state(recorder.trainer_state_text(), "x").value());
    run.step(second, 5, 1);
    CHECK(second.state().num_input_tokens_seen == 50);
  }
}

TEST_CASE("a run that goes on counts what it did itself, and nothing where it did nothing") {
  Run run;
  TrainerState saved;
  {
    RunRecorder first = run.open();
    for (int i = 1; i <= 6; ++i) run.step(first, i, 1);
    saved = first.state();
  }
  run.clock.advance(std::chrono::hours(1));
  run.facts.started_unix_us = run.clock.unix_time_us();
  run.facts.first_step = 6;
  {
    RunRecorder second = run.open(saved);
    for (int i = 7; i <= 8; ++i) run.step(second, i, 1);
    saved = second.state();
    REQUIRE(second.finish().ok());
  }
  const std::string results = run.text("train_results.json");
  const auto parsed = parse_python_json(results, "x").value();
  CHECK(number(parsed, "train_runtime") == 2);
  CHECK(number(parsed, "train_steps_per_second") == 1);
  CHECK(number(parsed, "train_samples_per_second") == 3);
  const std::string state = run.text("trainer_state.json");

  run.clock.advance(std::chrono::hours(1));
  run.facts.started_unix_us = run.clock.unix_time_us();
  run.facts.first_step = 8;
  RunRecorder third = run.open(saved);
  run.clock.advance(std::chrono::seconds(3));
  REQUIRE(third.finish().ok());
  CHECK(run.text("train_results.json") == results);
  CHECK(run.text("trainer_state.json") == state);
  // Those of another run, which ended in this folder before, are no results of this one.
  TrainerState other = parse_trainer_state(state, "x").value();
  other.log_history.erase(other.log_history.begin());
  REQUIRE(
      write_file_atomically(run.files, "out/trainer_state.json", trainer_state_text(other)).ok());
  RunRecorder fourth = run.open(saved);
  REQUIRE(fourth.finish().ok());
  CHECK(run.text("train_results.json") != results);
}

TEST_CASE("epochs after a change of the batch are counted from there") {
  Run run;
  run.config.training.logging_strategy = IntervalStrategy::kEpoch;
  run.facts.schedule.logging_interval = 4;
  run.facts.schedule.step_offset = 3;  // seven steps were done where this batch takes four
  RunRecorder recorder = run.open({.global_step = 7});
  for (int i = 8; i <= 15; ++i) CHECK(run.step(recorder, i, 1) == (i == 11 || i == 15));
  CHECK(recorder.state().epoch == 3);
}

TEST_CASE("the best model stands in trainer_state.json") {
  Run run;
  run.config.evaluation.load_best_model_at_end = true;
  run.config.evaluation.early_stopping_steps = 2;
  auto best = BestModel::make(run.config.evaluation, IntervalStrategy::kSteps).value();
  RunRecorder recorder = run.open();
  run.step(recorder, 1, 1);
  best.evaluated(recorded_result(2), 1);
  best.saving(1);
  recorder.set_best(best);
  const auto state = parse_trainer_state(recorder.trainer_state_text(), "x").value();
  CHECK(state.best_metric == 2);
  CHECK(state.best_global_step == 1);
  CHECK(state.best_model_checkpoint == "out/checkpoint-1");
  CHECK(state.early_stopping == EarlyStoppingState{2, 0});
}

TEST_CASE("a recovered run's history is that of an undisturbed one") {
  Run oracle, run;
  oracle.facts.schedule.logging_interval = run.facts.schedule.logging_interval = 3;
  RunRecorder undisturbed = oracle.open();
  for (int i = 1; i <= 8; ++i) oracle.step(undisturbed, i, i * i);
  TrainerState saved;
  {
    RunRecorder first = run.open();
    for (int i = 1; i <= 5; ++i) {
      run.step(first, i, i * i);
      if (i == 4) saved = first.state();
    }
    REQUIRE(first.evaluated(recorded_result(9)).ok());  // of step 5: will be made again
  }
  RunRecorder second = run.open(saved);
  for (int i = 5; i <= 8; ++i) run.step(second, i, i * i);
  CHECK(second.state().log_history == undisturbed.state().log_history);
  CHECK(run.text("steps.jsonl") == oracle.text("steps.jsonl"));
  CHECK(run.text("trainer_log.jsonl").find("eval_loss") == std::string::npos);
}

TEST_CASE("a run that begins again evaluates its first parameters again, and says so once") {
  Run run;
  REQUIRE(run.open().evaluated(recorded_result(5)).ok());
  RunRecorder again = run.open();
  REQUIRE(again.evaluated(recorded_result(5)).ok());
  const std::string log = run.text("trainer_log.jsonl");
  CHECK(std::ranges::count(log, '\n') == 1);
  CHECK(again.state().log_history.size() == 1);
}

TEST_CASE(
    "losses that are not finite: hidden from the mean where the key says so, never from steps") {
  for (const bool filter : {true, false}) {
    Run run;
    run.config.training.logging_nan_inf_filter = filter;
    RunRecorder recorder = run.open();
    run.step(recorder, 1, 3);
    REQUIRE(recorder
                .step({.step = 2,
                       .loss = std::nan(""),
                       .grad_norm = INFINITY,
                       .skipped = "the loss of rank 0 is not finite"})
                .value());
    const auto& entry = recorder.state().log_history.back();
    if (filter) {
      // transformers: the sum so far / (1 + steps so far) is added for the step; then the mean.
      CHECK(number(entry, "loss") == (3 + 3.0 / 2) / 2);
    } else {
      CHECK(std::isnan(number(entry, "loss")));
    }
    const auto steps = read_steps(run.files, "out/steps.jsonl").value();
    REQUIRE(steps.size() == 2);
    CHECK(std::isnan(steps[1].loss));
    CHECK(steps[1].grad_norm == INFINITY);
    CHECK(steps[1].skipped == "the loss of rank 0 is not finite");
    CHECK(run.text("steps.jsonl").find(R"("loss": "nan", "grad_norm": "inf")") !=
          std::string::npos);
    REQUIRE(recorder.finish().ok());
  }
}

}  // namespace
}  // namespace troupe::train
