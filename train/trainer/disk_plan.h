#pragma once
// What a run needs of its disk, from its configuration: for `troupe plan`, and for the refusal of a
// run whose results could not be written.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"

namespace troupe::train {

struct DiskPlan {
  std::int64_t model_bytes = 0;       // the finished model
  std::int64_t checkpoint_bytes = 0;  // one; 0: none is written
  // That are there at a time, with the one being written; nothing: the steps are not known yet.
  std::optional<std::int64_t> checkpoints;

  bool model_may_go_elsewhere = false;  // troupe.second_output_dir

  // Without so much no checkpoint and model come to stand side by side.
  std::int64_t least_bytes() const {
    return checkpoint_bytes + (model_may_go_elsewhere ? 0 : model_bytes);
  }
  // All that the configuration wants to keep.
  std::int64_t all_bytes() const {
    return model_bytes + checkpoints.value_or(1) * checkpoint_bytes;
  }
};
// `schedule`: where the data are known.
DiskPlan plan_disk(const TrainConfig& config, const ModelConfig& model,
                   const Trainables& trainables, const std::optional<RunSchedule>& schedule = {});

// Room for a run in `folder`: what its file system has free, also where the folder is yet to be
// made. An earlier run's checkpoints stay until the run has saved: they make no room.
Result<std::int64_t> room_in(const std::string& folder);

// "1.2 GiB: a checkpoint of 0.8 GiB and the model of 0.4 GiB"
std::string describe(const DiskPlan& plan);
// kResourceExhausted where not even least_bytes() fit.
Status check_disk(const DiskPlan& plan, std::int64_t room_bytes, const std::string& folder);
// What to say where that fits and all_bytes() do not; empty: they do.
std::string disk_notice(const DiskPlan& plan, std::int64_t room_bytes, const std::string& folder);

}  // namespace troupe::train
