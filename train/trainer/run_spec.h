#pragma once
// What the controller of a training run is given: the whole run as one value.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "train/chaos/fault.h"

namespace troupe::train {

// The facts of a run that its controller must know.
struct RunSpec {
  std::string run;  // its id
  std::string output_dir;
  std::string resume_path;
  std::string output_locked_by;  // OutputPaths::locked_by
  std::int32_t world_size = 1;
  std::int32_t ranks_per_node = 1;
  std::int32_t threads = 1;
  bool overlaps = false;
  bool own_core = false;
  double cpus_per_trainer = 1;
  double gpus_per_trainer = 0;  // 0: trainers compute on CPUs
  std::int64_t started_unix_us = 0;
  std::int64_t wait_timeout_ms = 1'800'000;
  std::int32_t fruitless_failures_max = 3;
  std::optional<std::int32_t> restarts_max;
  std::vector<Fault> faults;
  // Trainers' output is appended to LOG_DIR/rank-N.log, spares' to spare-N.log (a spare that takes
  // a rank goes on with its own); empty: only the nodes keep it.
  std::string log_dir;
  // Ranks are dealt out to so many machines, which are known by kNodeRankLabel, in order and as
  // many to each as to the others. 0: to whatever nodes the head finds.
  std::int32_t machines = 0;
  // Fewer than `machines`: the world may change, from so many machines on.
  std::int32_t machines_min = 0;
  // Those that it begins with, in a world that may change.
  std::vector<std::int32_t> first_machines;
  bool elastic() const { return !first_machines.empty(); }
  bool no_wait = true;  // refused where the cluster has no room now; else the run waits for it
  std::int64_t join_timeout_ms = 60'000;  // RunSettings::respawn_timeout
  std::int64_t stop_timeout_ms = 10'000;  // RunSettings::save_timeout
  std::int64_t hold_timeout_s = 3600;     // troupe.hold_timeout_s, for people
  std::int32_t spares = 0;  // on each node that runs trainers; on GPUs for each GPU of theirs
  std::int64_t hang_timeout_ms = 3'000;  // 0: hangs are not looked for
  // Variables of the trainers' environment, besides the node's own.
  std::map<std::string, std::string> trainer_variables;
  double memory_per_trainer = 0;  // bytes that it takes of its node; 0: uncounted
  std::map<std::string, double> resources_per_trainer;  // of the nodes' own kinds
  // The places that are kept for the ranks: rank r's is bundle bundles[r] of the group. Empty: the
  // head finds them.
  GroupId places;
  std::vector<std::int32_t> bundles;
  std::string token_cache;  // RunBundle::token_cache
};

struct TrainConfig;
// What follows from the configuration alone, wherever the run is. `restarts_max`: the user's, if
// any.
RunSpec run_spec_of(const TrainConfig& config, int world_size, int threads,
                    std::optional<std::int64_t> restarts_max);

}  // namespace troupe::train
