// Runs whose learning rate falls where evaluations get no better: the same after a death and from a
// checkpoint, under every strategy.
#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {
namespace {

RunChange plateau_change(const std::string& strategy, const std::string& resume = "") {
  return {.world = 2, .batch = 2, .resume = resume, .change = [=](RunBundle& bundle) {
            auto& config = bundle.config;
            config.sharding.strategy = strategy;
            config.training.max_steps = 10;
            config.training.save_steps = 4;
            config.training.save_total_limit = 4;
            config.training.learning_rate = 1e-3;
            config.training.lr_scheduler_type = "reduce_lr_on_plateau";
            // Nothing is better by half.
            config.training.lr_scheduler_kwargs = {
                {"factor", 0.5}, {"patience", 1}, {"threshold", 0.5}, {"min_lr", 2e-4}};
            bundle.eval = bundle.dataset;
            config.evaluation.strategy = IntervalStrategy::kSteps;
            config.evaluation.eval_steps = 1;
          }};
}

TEST_CASE("a rate that follows evaluations survives deaths and checkpoints") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("whole"), plateau_change("ddp"));
  const auto whole = steps(dir.file("whole"));
  std::vector<double> rates;
  for (const StepRecord& step : whole) rates.push_back(step.learning_rate);
  // The first evaluation is the best; behind two more the rate halves, down to the least.
  CHECK(rates ==
        std::vector<double>{1e-3, 1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 2e-4, 2e-4, 2e-4});
  const std::string expected = file(dir.file("whole/model.safetensors"));
  train_struck(dir.file("struck"), plateau_change("zero3"), 1);
  CHECK((file(dir.file("struck/model.safetensors")) == expected));
  CHECK(step_lines(dir.file("struck")) == step_lines(dir.file("whole")));
  train(dir.file("resumed"), plateau_change("zero2", dir.file("whole/checkpoint-4")));
  CHECK((file(dir.file("resumed/model.safetensors")) == expected));
}

}  // namespace
}  // namespace troupe::train::tests
