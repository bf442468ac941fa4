#include "train/trainer/disk_plan.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/trainer/small_model.h"

namespace troupe::train {
namespace {

RunSchedule schedule_of(std::int64_t steps, std::int64_t interval) {
  RunSchedule schedule;
  schedule.total_steps = steps;
  schedule.save_interval = interval;
  return schedule;
}

TEST_CASE("a run's disk: the model, and as many checkpoints as are kept at a time") {
  TrainConfig config;
  config.training.save_strategy = IntervalStrategy::kSteps;
  const ModelConfig model = small_model();
  DiskPlan plan = plan_disk(config, model, {});
  const std::int64_t weights = plan.model_bytes;
  CHECK(weights > 4 * 512 * 64);
  CHECK(plan.checkpoint_bytes == 3 * weights);
  CHECK_FALSE(plan.checkpoints);
  CHECK(plan.least_bytes() == 4 * weights);

  plan = plan_disk(config, model, {}, schedule_of(100, 30));
  CHECK(plan.checkpoints == 4);  // 30, 60, 90, and the last step's
  CHECK(plan.all_bytes() == 13 * weights);
  config.training.save_total_limit = 2;
  CHECK(plan_disk(config, model, {}, schedule_of(100, 30)).checkpoints == 3);
  CHECK(plan_disk(config, model, {}, schedule_of(100, 90)).checkpoints == 2);
  config.training.save_only_model = true;
  CHECK(plan_disk(config, model, {}).checkpoint_bytes == weights);
  config.training.save_strategy = IntervalStrategy::kNo;
  CHECK(plan_disk(config, model, {}).least_bytes() == weights);
}

TEST_CASE("what can never find room is refused; what will run full is said") {
  const DiskPlan plan{.model_bytes = 1 << 20, .checkpoint_bytes = 3 << 20, .checkpoints = 5};
  CHECK(check_disk(plan, 4 << 20, "out").ok());
  // The model alone may go where there is room for it.
  DiskPlan elsewhere = plan;
  elsewhere.model_may_go_elsewhere = true;
  CHECK(check_disk(elsewhere, plan.checkpoint_bytes, "out").ok());
  CHECK(check_disk(elsewhere, plan.checkpoint_bytes - 1, "out").message().find("one checkpoint:") !=
        std::string::npos);
  const Status refused = check_disk(plan, (4 << 20) - 1, "out");
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.message().find("the run needs 4.0 MiB for one checkpoint and the model") !=
        std::string::npos);
  CHECK(disk_notice(plan, 16 << 20, "out").empty());
  CHECK(disk_notice(plan, 15 << 20, "out").find("5 checkpoints of 3.0 MiB") != std::string::npos);
}

TEST_CASE("a folder that is yet to be made has the room of the one above it") {
  const troupe::tests::TemporaryDirectory dir;
  CHECK(room_in(dir.file("a/b/c")).value() > 0);
}

}  // namespace
}  // namespace troupe::train
