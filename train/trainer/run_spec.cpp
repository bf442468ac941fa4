#include "train/trainer/run_spec.h"

#include "train/config/ray_settings.h"
#include "train/config/train_config.h"

namespace troupe::train {

RunSpec run_spec_of(const TrainConfig& config, int world_size, int threads,
                    std::optional<std::int64_t> restarts_max) {
  RunSpec spec;
  spec.output_dir = config.training.output_dir;
  spec.world_size = world_size;
  spec.threads = threads;
  spec.cpus_per_trainer = cpus_per_trainer(config, threads);
  spec.wait_timeout_ms = config.training.ddp_timeout_s * 1000;
  spec.join_timeout_ms = config.troupe.join_timeout_s * 1000;
  // The end of the processes takes its part, too.
  spec.stop_timeout_ms = config.troupe.stop_timeout_s * 850;
  spec.hold_timeout_s = config.troupe.hold_timeout_s;
  if (restarts_max) {
    // The user's budget takes the place of ours: it alone ends the run.
    spec.restarts_max = static_cast<std::int32_t>(*restarts_max);
    spec.fruitless_failures_max = *spec.restarts_max + 1;
  }
  spec.faults = config.troupe.chaos;
  spec.spares = static_cast<std::int32_t>(config.troupe.spares);
  spec.hang_timeout_ms = config.troupe.hang_timeout_ms.value_or(spec.hang_timeout_ms);
  return spec;
}

}  // namespace troupe::train
