#include "train/config/derived.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("batches and steps of an epoch") {
  CHECK(batches_per_epoch(10, 2, 1, false) == 5);
  CHECK(batches_per_epoch(11, 2, 1, false) == 6);
  CHECK(batches_per_epoch(11, 2, 4, false) == 2);
  CHECK(batches_per_epoch(11, 2, 4, true) == 1);
  CHECK(batches_per_epoch(1, 8, 4, false) == 1);
  CHECK(steps_per_epoch(5, 2) == 3);
  CHECK(steps_per_epoch(1, 8) == 1);
}

TEST_CASE("all steps, epochs and warm-up") {
  TrainingSection training;
  CHECK(total_steps(training, 7) == 21);
  training.num_train_epochs = 2.5;
  CHECK(total_steps(training, 7) == 18);
  training.max_steps = 5;
  CHECK(total_steps(training, 7) == 5);
  CHECK(epoch_count(5, 7) == 1);
  CHECK(epoch_count(15, 7) == 3);

  CHECK(warmup_steps(training, 100) == 0);
  training.warmup_ratio = 0.101;
  CHECK(warmup_steps(training, 100) == 11);
  training.warmup_steps = 3;
  CHECK(warmup_steps(training, 100) == 3);
  training.warmup_steps = 0.25;
  CHECK(warmup_steps(training, 10) == 3);
}

TEST_CASE("intervals below 1 are ratios") {
  CHECK(step_interval(500, 100) == 500);
  CHECK(step_interval(0.25, 10) == 3);
  CHECK(step_interval(1e-9, 10) == 1);
}

TEST_CASE("the plan of a run") {
  TrainingSection training;
  training.per_device_train_batch_size = 2;
  training.gradient_accumulation_steps = 4;
  training.save_strategy = IntervalStrategy::kEpoch;
  training.logging_steps = 0.1;
  const auto plan = plan_steps(training, 1000, 2);
  REQUIRE(plan.ok());
  CHECK(plan->batches_per_epoch == 250);
  CHECK(plan->steps_per_epoch == 63);
  CHECK(plan->total_steps == 189);
  CHECK(plan->epoch_count == 3);
  CHECK(plan->logging_interval == 19);
  CHECK(plan->save_interval == 63);
  CHECK(plan->effective_batch_size == 16);

  CHECK(plan->epoch_of(plan->steps_per_epoch) == 1);
  CHECK(plan_steps(training, 0, 2).status().message().find("empty") != std::string::npos);
  training.dataloader_drop_last = true;
  CHECK_FALSE(plan_steps(training, 3, 2).ok());
}

}  // namespace
}  // namespace troupe::train
