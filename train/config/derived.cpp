#include "train/config/derived.h"
#include "runtime/base/file_system.h"

#include <algorithm>
#include <cmath>

namespace troupe::train {
namespace {

// Beyond this a run has no end that anyone will see, and products stay exact in doubles.
constexpr double kStepsMax = 1e15;

std::int64_t round_up_division(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0); }

std::int64_t ceiling(double value) {
  return static_cast<std::int64_t>(std::ceil(std::min(value, kStepsMax)));
}

std::int64_t interval_of(IntervalStrategy strategy, double value, const RunSchedule& plan) {
  switch (strategy) {
    case IntervalStrategy::kNo:
    case IntervalStrategy::kBest:
      return 0;
    case IntervalStrategy::kSteps:
      return step_interval(value, plan.total_steps);
    case IntervalStrategy::kEpoch:
      return plan.steps_per_epoch;
  }
  return 0;
}

std::int64_t axolotl_steps(const TrainingSection& training, std::int64_t samples,
                           std::int64_t world_size, std::optional<std::int64_t> packed_batches) {
  if (packed_batches) {
    const auto per_epoch = std::max<std::int64_t>(
        1, *packed_batches / (training.gradient_accumulation_steps * world_size));
    const auto steps = training.num_train_epochs * static_cast<double>(per_epoch);
    const auto dropped = training.dataloader_drop_last ? std::ceil(training.num_train_epochs) : 0.0;
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::floor(std::min(steps - dropped, kStepsMax))));
  }
  return std::max<std::int64_t>(
      1, ceiling(static_cast<double>(samples) * training.num_train_epochs /
                 static_cast<double>(effective_batch_size(training, world_size))));
}

}  // namespace

std::int64_t batches_per_epoch(std::int64_t samples, std::int64_t per_device_batch_size,
                               std::int64_t world_size, bool drop_last) {
  if (drop_last) return samples / per_device_batch_size / world_size;
  return round_up_division(round_up_division(samples, per_device_batch_size), world_size);
}

std::int64_t steps_per_epoch(std::int64_t batches, std::int64_t accumulation_steps) {
  return std::max<std::int64_t>(1, round_up_division(batches, accumulation_steps));
}

std::int64_t total_steps(const TrainingSection& training, std::int64_t steps_per_epoch) {
  if (training.max_steps > 0) return training.max_steps;
  return ceiling(training.num_train_epochs * static_cast<double>(steps_per_epoch));
}

std::int64_t epoch_count(std::int64_t total_steps, std::int64_t steps_per_epoch) {
  return round_up_division(total_steps, steps_per_epoch);
}

std::int64_t warmup_steps(const TrainingSection& training, std::int64_t total_steps) {
  const auto total = static_cast<double>(total_steps);
  if (training.step_rules == StepRules::kAxolotl) {
    // There a single step of warm-up counts as two.
    const auto steps = training.warmup_steps > 0
                           ? ceiling(training.warmup_steps)
                           : static_cast<std::int64_t>(training.warmup_ratio * total);
    const auto most = training.warmup_steps > 0 ? std::nullopt : training.warmup_steps_max;
    const auto bounded = std::min(steps, most.value_or(steps));
    return bounded == 1 ? 2 : bounded;
  }
  if (training.warmup_steps >= 1) return ceiling(training.warmup_steps);
  if (training.warmup_steps > 0) return ceiling(total * training.warmup_steps);
  const auto steps = ceiling(total * training.warmup_ratio);
  return std::min(steps, training.warmup_steps_max.value_or(steps));
}

std::int64_t step_interval(double value, std::int64_t total_steps) {
  if (value < 1) value = value * static_cast<double>(total_steps);
  return std::max<std::int64_t>(1, ceiling(value));
}

std::int64_t effective_batch_size(const TrainingSection& training, std::int64_t world_size) {
  return training.per_device_train_batch_size * training.gradient_accumulation_steps * world_size;
}

Result<RunSchedule> plan_steps(const TrainingSection& training, std::int64_t samples,
                               std::int64_t world_size,
                               std::optional<std::int64_t> packed_batches) {
  RunSchedule plan;
  plan.samples = samples;
  plan.world_size = world_size;
  if (samples <= 0) {
    return error(Code::kInvalidArgument, "the data set is empty: there is nothing to train on");
  }
  plan.batches_per_epoch = packed_batches
                               ? *packed_batches / world_size
                               : batches_per_epoch(samples, training.per_device_train_batch_size,
                                                   world_size, training.dataloader_drop_last);
  if (packed_batches && plan.batches_per_epoch == 0) {
    return error(Code::kInvalidArgument,
                 "packing leaves nothing to train on: {} samples make {} micro-batches, and there "
                 "are {} workers; use a smaller cutoff_len or per_device_train_batch_size, or "
                 "troupe.sample_packing: false",
                 samples, *packed_batches, world_size);
  }
  if (plan.batches_per_epoch == 0) {
    return error(Code::kInvalidArgument,
                 "dataloader_drop_last leaves nothing: {} samples are fewer than {} workers × {} "
                 "sequences; use dataloader_drop_last: false or a smaller batch",
                 samples, world_size, training.per_device_train_batch_size);
  }
  plan.steps_per_epoch =
      steps_per_epoch(plan.batches_per_epoch, training.gradient_accumulation_steps);
  plan.total_steps = total_steps(training, plan.steps_per_epoch);
  auto warmed = plan.total_steps;  // what a share of warm-up is a share of
  if (training.step_rules == StepRules::kAxolotl) {
    const auto counted = axolotl_steps(training, samples, world_size, packed_batches);
    if (training.max_steps <= 0) plan.total_steps = counted;
    warmed = std::min(counted, plan.total_steps);
  }
  plan.epoch_count = epoch_count(plan.total_steps, plan.steps_per_epoch);
  plan.warmup_steps = warmup_steps(training, warmed);
  plan.logging_interval = interval_of(training.logging_strategy, training.logging_steps, plan);
  if (training.logging_steps_max && training.logging_steps < 1 && plan.logging_interval > 0) {
    const auto share = training.logging_steps * static_cast<double>(plan.total_steps);
    plan.logging_interval = std::max<std::int64_t>(
        1, std::min(static_cast<std::int64_t>(share), *training.logging_steps_max));
  }
  plan.save_interval = interval_of(training.save_strategy, training.save_steps, plan);
  plan.effective_batch_size = effective_batch_size(training, world_size);
  return plan;
}

RunSchedule go_on_from(RunSchedule plan, const TrainingSection& training, std::int64_t steps_done,
                       std::int64_t steps_here) {
  plan.step_offset = steps_done - steps_here;
  if (training.max_steps > 0) return plan;
  plan.schedule_offset = plan.step_offset;
  plan.total_steps = std::max(steps_done, plan.total_steps + plan.step_offset);
  return plan;
}

double RunSchedule::epoch_of(std::int64_t step) const {
  return static_cast<double>(step - step_offset) /
         static_cast<double>(std::max<std::int64_t>(1, steps_per_epoch));
}

bool reports_to_tensorboard(const TrainConfig& config) {
  const auto& words = config.training.report_to;
  return std::find_if(words.begin(), words.end(), [](const std::string& word) {
           return word == "tensorboard" || word == "all";
         }) != words.end();
}

std::string tensorboard_dir(const TrainConfig& config) {
  return config.training.logging_dir.empty() ? join_path(config.training.output_dir, "runs")
                                             : config.training.logging_dir;
}

}  // namespace troupe::train
