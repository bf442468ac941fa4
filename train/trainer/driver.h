#pragma once
// `troupe train`: from a configuration to the files of a finished run.
//
// The driver prepares (prepare.h), has a cluster, spawns the controller, hands it the run's data
// and shows what it tells. The user may end the run, with a checkpoint or as it is; the last
// checkpoint stays.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster.h"
#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "train/config/load.h"
#include "train/report/progress.h"
#include "train/sharding/memory_fit.h"

namespace troupe::train {

// A cluster to train on.
struct TrainingCluster {
  Cluster cluster;
  // Brought up for this run alone: trainers' output goes into output_dir/logs.
  bool embedded = true;
  // The nodes that ranks are dealt out to in order, as many to each as to the others; rank 0, which
  // writes the results, on the first. Empty: the head packs them.
  std::vector<NodeId> nodes;
  std::int64_t node_count = 1;
  std::int64_t cores_per_node = 1;  // of the smallest
  // What the smallest of other machines' nodes offers, where it is known: a run that does not fit
  // is refused.
  std::optional<NodeMemory> memory;
};

// What the user wants of a run that goes on.
enum class Interrupt {
  kNone,
  kEnd,          // at once
  kSaveThenEnd,  // after the step under way and a checkpoint; wanted again: at once
};

struct DriverEnvironment {
  FileSystem& files;
  const Clock& clock;
  Random& random;
  ProgressOutput& output;
  std::int64_t cores = 1;  // of this machine
  // Of this machine, where trainers run on it: a run that does not fit is refused. Nothing: not
  // checked.
  std::optional<NodeMemory> memory;
  // A descriptor that becomes readable when the user wants something of the run; -1: none.
  int interrupt_fd = -1;
  // What it is; takes it away. Must be there where interrupt_fd is.
  std::function<Interrupt()> take_interrupt;
  // Brings up or joins the cluster, for so many trainers. Called after the configuration and the
  // data were found good.
  std::function<Result<TrainingCluster>(int trainers)> make_cluster;
};

// What a finished run comes to.
struct TrainingSummary {
  std::string output_dir;
  std::int64_t steps = 0;
  std::int64_t failures = 0;  // generations that were lost and recovered
  double seconds = 0;
};

// kCancelled after an interrupt, saying whether and where it was saved; otherwise what ended the
// run, with the last good checkpoint named.
Result<TrainingSummary> run_training(const LoadedConfig& loaded, DriverEnvironment& environment);

}  // namespace troupe::train
