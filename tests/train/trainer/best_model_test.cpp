#include "train/trainer/best_model.h"

#include <doctest/doctest.h>

#include <cmath>

namespace troupe::train {
namespace {

EvalResult result_of(double loss) { return {.loss = loss, .samples = 1, .batches = 1}; }

EvaluationSection section(std::optional<std::int64_t> early_stopping = {}) {
  EvaluationSection out;
  out.load_best_model_at_end = true;
  out.early_stopping_steps = early_stopping;
  return out;
}

BestModel tracker(const EvaluationSection& evaluation,
                  IntervalStrategy saves = IntervalStrategy::kSteps) {
  auto made = BestModel::make(evaluation, saves);
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  return std::move(made).value();
}

TEST_CASE("by accuracy the greater one is better") {
  auto evaluation = section();
  evaluation.metric_for_best_model = "eval_accuracy";
  CHECK(BestModel::make(evaluation, IntervalStrategy::kSteps).status().code() ==
        Code::kUnsupported);
  evaluation.compute_accuracy = true;
  BestModel best = tracker(evaluation);
  const auto measured = [](double loss, double accuracy) {
    EvalResult out = result_of(loss);
    out.metrics.set(0, accuracy * 4, 4);
    return out;
  };
  CHECK(best.value_of(measured(2, 0.5)) == 0.5);
  CHECK(best.evaluated(measured(2, 0.5), 1));
  CHECK_FALSE(best.evaluated(measured(1, 0.25), 2));
  CHECK(best.evaluated(measured(3, 0.75), 3));
  CHECK(best.state().best_metric == 0.75);
}

RunSchedule schedule(std::int64_t total, std::int64_t per_epoch) {
  return {.steps_per_epoch = per_epoch, .total_steps = total};
}

std::vector<std::int64_t> due_steps(const EvaluationPlan& plan) {
  std::vector<std::int64_t> out;
  for (std::int64_t step = 1; step <= plan.schedule.total_steps; ++step) {
    if (plan.due(step, step % plan.schedule.steps_per_epoch == 0)) out.push_back(step);
  }
  return out;
}

using Steps = std::vector<std::int64_t>;

TEST_CASE("evaluations by steps: eval_steps, logging_steps, a ratio, and the last step") {
  TrainConfig config;
  config.evaluation.strategy = IntervalStrategy::kSteps;
  config.evaluation.eval_steps = 4;
  CHECK(due_steps(plan_evaluation(config, schedule(10, 5))) == Steps{4, 8, 10});
  CHECK(due_steps(plan_evaluation(config, schedule(8, 5))) == Steps{4, 8});
  config.evaluation.delay = 5;
  CHECK(due_steps(plan_evaluation(config, schedule(10, 5))) == Steps{8, 10});
  config.evaluation.delay = 0;
  config.evaluation.eval_steps.reset();
  config.training.logging_steps = 3;
  CHECK(due_steps(plan_evaluation(config, schedule(7, 5))) == Steps{3, 6, 7});
  CHECK(eval_steps_value(config) == 3);
  config.evaluation.eval_steps = 0.25;  // ⌈0.25 · 10⌉ = 3
  CHECK(due_steps(plan_evaluation(config, schedule(10, 5))) == Steps{3, 6, 9, 10});
  CHECK(eval_steps_value(config) == 0.25);
}

TEST_CASE("evaluations by epochs: their ends, the run's end, the delay in epochs") {
  TrainConfig config;
  config.evaluation.strategy = IntervalStrategy::kEpoch;
  CHECK(due_steps(plan_evaluation(config, schedule(12, 5))) == Steps{5, 10, 12});
  config.evaluation.delay = 1.5;
  CHECK(due_steps(plan_evaluation(config, schedule(12, 5))) == Steps{10, 12});
}

TEST_CASE("no strategy: on start and at the end alone; nothing is evaluated twice") {
  TrainConfig config;
  auto plan = plan_evaluation(config, schedule(10, 5));
  CHECK_FALSE(plan.evaluates());
  CHECK_FALSE(plan.due_at_end(10, {}));
  config.evaluation.do_eval = true;
  plan = plan_evaluation(config, schedule(10, 5));
  CHECK(plan.evaluates());
  CHECK(due_steps(plan).empty());
  CHECK(plan.due_at_end(10, {}));
  CHECK(plan.due_at_end(10, 0));
  CHECK_FALSE(plan.due_at_end(10, 10));
  config.evaluation.do_eval = false;
  config.evaluation.on_start = true;
  plan = plan_evaluation(config, schedule(10, 5));
  CHECK(plan.evaluates());
  CHECK(plan.due_on_start());
  CHECK_FALSE(plan.due_at_end(10, 0));
}

TEST_CASE("the best is the lowest loss, the first of equal ones, or the greatest where asked") {
  auto best = tracker(section());
  CHECK(best.enabled());
  CHECK(best.evaluated(result_of(3), 2));
  CHECK_FALSE(best.evaluated(result_of(3), 4));
  CHECK(best.evaluated(result_of(2), 6));
  CHECK_FALSE(best.evaluated(result_of(2.5), 8));
  CHECK(best.state().best_step == 6);
  CHECK(best.state().best_metric == 2);
  auto greater = section();
  greater.greater_is_better = true;
  best = tracker(greater);
  CHECK(best.evaluated(result_of(3), 2));
  CHECK(best.evaluated(result_of(4), 4));
  CHECK_FALSE(best.evaluated(result_of(3), 6));
}

TEST_CASE("what is not finite, in part or whole, is never the best") {
  auto best = tracker(section(2));
  CHECK_FALSE(best.evaluated(result_of(std::nan("")), 2));
  CHECK_FALSE(best.should_stop());
  CHECK(best.evaluated(result_of(5), 4));
  auto partly = result_of(1);
  partly.non_finite_batches = 1;
  CHECK_FALSE(best.evaluated(partly, 6));
  CHECK_FALSE(best.evaluated(result_of(-INFINITY), 8));
  CHECK(best.should_stop());
  TrainerState state;
  best.store(state, "out");
  CHECK(state.best_metric == 5);
}

TEST_CASE("early stopping after so many evaluations in a row that were no better") {
  auto best = tracker(section(2));
  const double losses[] = {3, 2, 2.5, 1.9, 2, 1.95, 1.9};
  const bool stops[] = {false, false, false, false, false, true, true};
  for (std::size_t i = 0; i < std::size(losses); ++i) {
    best.evaluated(result_of(losses[i]), static_cast<std::int64_t>(i + 1));
    CHECK(best.should_stop() == stops[i]);
  }
  auto without = tracker(section());
  for (int i = 0; i < 100; ++i) without.evaluated(result_of(i), i + 1);
  CHECK_FALSE(without.should_stop());
}

TEST_CASE("the best model's checkpoint is protected once it is there; a failed save is undone") {
  auto best = tracker(section());
  CHECK(best.protected_steps().empty());
  best.evaluated(result_of(3), 2);
  CHECK_FALSE(best.best_checkpoint_step());  // not saved yet
  best.saving(2);
  CHECK(best.protected_steps() == Steps{2});
  best.evaluated(result_of(4), 4);
  best.saving(4);
  CHECK(best.protected_steps() == Steps{2});
  best.evaluated(result_of(1), 6);
  CHECK(best.protected_steps() == Steps{2});
  best.saving(6);
  CHECK(best.protected_steps() == Steps{6});
  best.save_failed(6);
  CHECK(best.best_checkpoint_step() == 2);
  best.saving(8);  // not the best's parameters
  CHECK(best.best_checkpoint_step() == 2);
}

TEST_CASE("save_strategy: best saves where the evaluation was the best so far") {
  EvaluationSection evaluation;
  auto best = tracker(evaluation, IntervalStrategy::kBest);
  CHECK(best.enabled());
  best.evaluated(result_of(3), 2);
  CHECK(best.save_due(2));
  best.evaluated(result_of(4), 4);
  CHECK_FALSE(best.save_due(4));
  best = tracker(section(), IntervalStrategy::kSteps);
  best.evaluated(result_of(3), 2);
  CHECK_FALSE(best.save_due(2));
}

TEST_CASE("nobody asks for the best: nothing is tracked or written") {
  auto best = tracker(EvaluationSection(), IntervalStrategy::kSteps);
  CHECK_FALSE(best.enabled());
  CHECK_FALSE(best.evaluated(result_of(3), 2));
  best.saving(2);
  TrainerState state;
  best.store(state, "out");
  CHECK_FALSE(state.best_metric);
  CHECK_FALSE(state.best_global_step);
  CHECK_FALSE(state.best_model_checkpoint);
  CHECK_FALSE(state.early_stopping);
}

TEST_CASE("all of it survives in trainer_state.json") {
  auto best = tracker(section(3));
  best.evaluated(result_of(3), 2);
  best.saving(2);
  best.evaluated(result_of(2), 4);
  best.evaluated(result_of(2.5), 6);
  TrainerState state;
  best.store(state, "out");
  CHECK(state.best_global_step == 4);
  CHECK(state.best_model_checkpoint == "out/checkpoint-2");
  const auto read = parse_trainer_state(trainer_state_text(state), "x").value();
  auto resumed = tracker(section(3));
  resumed.restore(read);
  CHECK(resumed.state() == best.state());
  CHECK_FALSE(resumed.evaluated(result_of(2.1), 8));
  CHECK_FALSE(resumed.evaluated(result_of(2.1), 10));
  CHECK(resumed.should_stop());

  // Other ranks get the numbers as bytes.
  auto other = tracker(section(3));
  other.set_state(best.state());
  CHECK(other.state() == best.state());
  CHECK(other.protected_steps() == Steps{2});
}

TEST_CASE("a best checkpoint in another folder keeps its path while it is the best") {
  TrainerState state;
  state.best_metric = 2;
  state.best_global_step = 40;
  state.best_model_checkpoint = "elsewhere/checkpoint-40";
  auto best = tracker(section());
  best.restore(state);
  best.store(state, "out");
  CHECK(state.best_model_checkpoint == "elsewhere/checkpoint-40");
  best.evaluated(result_of(1), 50);
  best.saving(50);
  best.store(state, "out");
  CHECK(state.best_model_checkpoint == "out/checkpoint-50");
}

TEST_CASE("states of other programs are taken as far as they make sense") {
  auto best = tracker(section());
  TrainerState state;
  state.best_metric = INFINITY;  // transformers before the first finite evaluation
  best.restore(state);
  CHECK(best.evaluated(result_of(7), 2));
  state.best_model_checkpoint = "some/folder";
  best.restore(state);
  CHECK_FALSE(best.best_checkpoint_step());
  best.store(state, "out");
  CHECK_FALSE(state.best_model_checkpoint);
}

TEST_CASE("metrics that no evaluation has are refused by name") {
  EvaluationSection evaluation;
  evaluation.metric_for_best_model = "loss";
  CHECK(BestModel::make(evaluation, IntervalStrategy::kSteps).ok());
  evaluation.metric_for_best_model = "rouge-l";
  const auto refused = BestModel::make(evaluation, IntervalStrategy::kSteps).status();
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.message().starts_with("metric_for_best_model=rouge-l is not supported"));
  evaluation = section(0);
  CHECK(BestModel::make(evaluation, IntervalStrategy::kSteps).status().code() ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::train
