#pragma once
// What follows from a configuration and the size of the data: steps, warm-up, intervals.
// Rules: transformers' Trainer (4.57) and accelerate's BatchSamplerShard.

#include <cstdint>
#include <optional>

#include "train/config/train_config.h"

namespace troupe::train {

// Micro-batches of one rank in one epoch. The samples make ⌈samples/per_device⌉ batches (rounded
// down with drop_last), dealt round-robin; the last round is completed by wrapping to the epoch's
// first samples (dropped with drop_last).
std::int64_t batches_per_epoch(std::int64_t samples, std::int64_t per_device_batch_size,
                               std::int64_t world_size, bool drop_last);

// Optimizer steps in one epoch; the last accumulation group may be short. At least 1.
std::int64_t steps_per_epoch(std::int64_t batches, std::int64_t accumulation_steps);

// max_steps, else ⌈epochs · steps_per_epoch⌉.
std::int64_t total_steps(const TrainingSection& training, std::int64_t steps_per_epoch);

// Epochs that are begun: ⌈total / steps_per_epoch⌉.
std::int64_t epoch_count(std::int64_t total_steps, std::int64_t steps_per_epoch);

// warmup_steps where above 0 (below 1: ⌈total · ratio⌉), else ⌈total · warmup_ratio⌉, at most
// warmup_steps_max. By Axolotl's rules a share is rounded down, and 1 becomes 2.
std::int64_t warmup_steps(const TrainingSection& training, std::int64_t total_steps);

// A step interval: the number itself, or ⌈total · value⌉ where it is below 1; at least 1.
std::int64_t step_interval(double value, std::int64_t total_steps);

// Sequences of one full step over all ranks.
std::int64_t effective_batch_size(const TrainingSection& training, std::int64_t world_size);

// All of it.
struct RunSchedule {
  std::int64_t samples = 0;
  std::int64_t world_size = 1;
  std::int64_t batches_per_epoch = 0;  // of each rank
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;
  std::int64_t epoch_count = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t logging_interval = 0;  // steps; steps_per_epoch for epoch; 0: never
  std::int64_t save_interval = 0;     // likewise
  std::int64_t effective_batch_size = 0;
  // Steps done less those that this run's batch takes to the same sample: not 0 after steps of
  // another batch. Epochs are counted from here.
  std::int64_t step_offset = 0;
  // Likewise, for the schedule of the learning rate: it follows the share of the samples seen, or
  // with max_steps the share of the steps.
  std::int64_t schedule_offset = 0;

  // In epochs of this run's batch.
  double epoch_of(std::int64_t step) const;
};
// `samples`: of the data set. `packed_batches`: micro-batches of all ranks in the first epoch,
// where samples are packed anew in each (troupe.sample_packing). kInvalidArgument without samples,
// and with drop_last and too few of them.
//
// By Axolotl's rules (troupe.step_rules) a run has ⌈samples · epochs / batch⌉ steps, packed
// ⌊max(1, ⌊packed_batches / (ranks · accumulation)⌋) · epochs⌋, wherever an epoch ends, and warm-up
// is a share of these steps even where max_steps is more.
Result<RunSchedule> plan_steps(const TrainingSection& training, std::int64_t samples,
                               std::int64_t world_size,
                               std::optional<std::int64_t> packed_batches = {});
// The schedule of a run that goes on after `steps_done` steps, at a sample that its own batch
// reaches after `steps_here` (Sampler::steps_at): what is left of the samples is trained on,
// however many steps that comes to. max_steps counts steps of whatever batch. Intervals and warm-up
// stay those of `plan`.
RunSchedule go_on_from(RunSchedule plan, const TrainingSection& training, std::int64_t steps_done,
                       std::int64_t steps_here);

// report_to: whether an event file is written, and where.
bool reports_to_tensorboard(const TrainConfig& config);
std::string tensorboard_dir(const TrainConfig& config);

}  // namespace troupe::train
