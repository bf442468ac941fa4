#include "train/trainer/disk_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/text.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/model/model_layout.h"
#include "train/report/format.h"
#include "train/sharding/slot_place.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

namespace fs = std::filesystem;

std::string bytes(std::int64_t count) { return format_bytes(static_cast<std::uint64_t>(count)); }

std::optional<std::int64_t> checkpoints_at_a_time(const TrainingSection& training,
                                                  const std::optional<RunSchedule>& schedule) {
  std::optional<std::int64_t> due;
  if (schedule && schedule->save_interval > 0)
    due = (schedule->total_steps + schedule->save_interval - 1) / schedule->save_interval;
  // An old one goes when the new one stands.
  if (const auto limit = training.save_total_limit)
    due = std::min<std::int64_t>(due.value_or(*limit + 1), *limit + 1);
  return due;
}

}  // namespace

DiskPlan plan_disk(const TrainConfig& config, const ModelConfig& model,
                   const Trainables& trainables, const std::optional<RunSchedule>& schedule) {
  const std::int64_t element = state_dtype(config) == DType::kBF16 ? 2 : 4;
  const ModelLayout layout(model, trainables);
  const std::int64_t trained_bytes = layout.trained().parameter_elements() * element;
  DiskPlan plan{.model_bytes = trained_bytes};
  if (!trainables.adapters_only())
    plan.model_bytes += (layout.frozen().parameter_elements() - layout.reference_elements()) *
                        static_cast<std::int64_t>(dtype_size(frozen_dtype(config, model)));
  plan.model_may_go_elsewhere = config.troupe.second_output_dir.has_value();
  const TrainingSection& training = config.training;
  if (training.save_strategy == IntervalStrategy::kNo) return plan;
  plan.checkpoint_bytes = plan.model_bytes;
  if (!training.save_only_model) {
    const auto optimizer = optimizer_of(config, model);
    const RankLayout everything(layout, Strategy::kDdp, Mesh{}, 0);
    plan.checkpoint_bytes += optimizer->rule()
                                 ? slot_bytes(everything, *optimizer, state_dtype(config))
                                 : std::ssize(optimizer->slots()) * trained_bytes;
  }
  plan.checkpoints = checkpoints_at_a_time(training, schedule);
  return plan;
}

Result<std::int64_t> room_in(const std::string& folder) {
  std::error_code failed;
  fs::path there = fs::absolute(folder.empty() ? "." : folder, failed);
  while (!fs::exists(there, failed) && there.has_relative_path()) there = there.parent_path();
  const auto space = fs::space(there, failed);
  if (failed) return error(Code::kUnavailable, "{}: {}", there.string(), failed.message());
  return static_cast<std::int64_t>(space.available);
}

std::string describe(const DiskPlan& plan) {
  if (plan.checkpoint_bytes == 0) return fmt::format("{} for the model", bytes(plan.model_bytes));
  const std::int64_t count = plan.checkpoints.value_or(1);
  return fmt::format("{}: {} of {}, and {} for the model", bytes(plan.all_bytes()),
                     count == 1 ? "a checkpoint" : count_of(count, "checkpoint"),
                     bytes(plan.checkpoint_bytes), bytes(plan.model_bytes));
}

Status check_disk(const DiskPlan& plan, std::int64_t room_bytes, const std::string& folder) {
  if (plan.least_bytes() <= room_bytes) return {};
  return error(Code::kResourceExhausted,
               "output_dir {} has room for {}, the run needs {}{}: make room, use another "
               "output_dir{}{}",
               folder, bytes(room_bytes), bytes(plan.least_bytes()),
               plan.checkpoint_bytes == 0    ? " for the model"
               : plan.model_may_go_elsewhere ? " for one checkpoint"
                                             : " for one checkpoint and the model",
               plan.model_may_go_elsewhere
                   ? ""
                   : ", name a troupe.second_output_dir for the model where there is room",
               plan.checkpoint_bytes > 0
                   ? ", save_only_model: true (no optimizer state), or save_strategy: no"
                   : "");
}

std::string disk_notice(const DiskPlan& plan, std::int64_t room_bytes, const std::string& folder) {
  if (plan.all_bytes() <= room_bytes) return {};
  return fmt::format(
      "warning: output_dir {} has room for {}, the run will write {}: save_total_limit keeps fewer "
      "checkpoints",
      folder, bytes(room_bytes), describe(plan));
}

}  // namespace troupe::train
