#pragma once
// What LLaMA-Factory's Ray keys say about trainers: ray_init_kwargs and resources_per_worker.
//
// Sources: ray.init(), Ray Train's ScalingConfig.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "train/config/foreign_keys.h"
#include "train/config/train_config.h"

namespace troupe::train {

// What becomes of every argument of ray.init().
const ForeignKeys& ray_keys();
// Puts ray_init_kwargs into launch.ray_init_kwargs and launch.trainer_variables.
Status store_ray_settings(TrainConfig& config, const json::Value& value);
// The first argument that is unknown, mistyped or refused.
Status check_ray_settings(const json::Object& settings, const ShownName& shown);

// resources_per_worker.
struct WorkerResources {
  std::optional<double> cpus;
  std::optional<double> gpus;  // a share of one; 0: trainers compute on CPUs
  double memory_bytes = 0;
  std::map<std::string, double> others;
};
// kInvalidArgument for amounts that are none; kUnsupported for more than one GPU.
Result<WorkerResources> worker_resources(const TrainConfig& config);
// CPUs that a trainer of so many threads takes of its node.
double cpus_per_trainer(const TrainConfig& config, std::int64_t threads);
// ray_init_kwargs.resources: what this machine has besides.
std::map<std::string, double> own_resources(const TrainConfig& config);

}  // namespace troupe::train
