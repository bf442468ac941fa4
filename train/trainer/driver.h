#pragma once
// `troupe train`: from a configuration to the files of a finished run.
//
// The driver prepares (prepare.h), has a cluster, spawns the controller, hands it the run's data
// and shows what it tells. The user may end the run, with a checkpoint or as it is; the last
// checkpoint stays. A run that lost ranks on the way ends with the table of its recoveries.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "train/config/load.h"
#include "train/report/progress.h"
#include "train/report/recovery_table.h"
#include "train/report/run_registry.h"
#include "train/sharding/memory_fit.h"
#include "train/trainer/prepare.h"
#include "train/trainer/progress_lines.h"
#include "troupe/cluster.h"

namespace troupe::train {

// A cluster to train on.
struct TrainingCluster {
  Cluster cluster;
  // Brought up for this run alone: trainers' output goes into output_dir/logs.
  bool embedded = true;
  // So many machines, known by kNodeRankLabel, to which ranks are dealt out in order, as many to
  // each as to the others; rank 0, which writes the results, to the first. 0: the head packs them.
  int machines = 0;
  // Machines may come and go, down to so many: `machines` is how many there may be, and these are
  // there. 0: they do not.
  int machines_min = 0;
  std::vector<std::int32_t> machines_there;
  std::int64_t node_count = 1;
  std::int64_t cores_per_node = 1;  // of the smallest
  std::int64_t gpus = 0;            // whole ones of all nodes
  // What the smallest of other machines' nodes offers, where it is known: a run that does not fit
  // is refused.
  std::optional<NodeMemory> memory;
};

struct GpusHere {
  std::int64_t count = 0;
  std::int64_t memory_bytes = 0;  // of the smallest
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
  // Where rank 0 writes on this machine, the run's results must have room there.
  bool check_disk = false;
  // GPUs of this machine that the program can use, where trainers run on it; kUnavailable says what
  // is missing and how to get it. Nothing: not known.
  std::function<Result<GpusHere>()> gpus_here;
  // Of the user's shell, for trainers with GPUs on nodes that have another one; see
  // communicator_variables().
  std::map<std::string, std::string> communicator_variables;
  // A descriptor that becomes readable when the user wants something of the run; -1: none.
  int interrupt_fd = -1;
  // What it is; takes it away. Must be there where interrupt_fd is.
  std::function<Interrupt()> take_interrupt;
  // Before that, of data that are half tokenised (cached_dataset.h).
  RemoveAtSignal remove_at_signal;
  // Read and found good before (prepare.h); nothing: the driver reads them.
  std::optional<RunContents> contents;
  // Where the run is noted, so that tools find it; null: nowhere. What the note says of this
  // process; the driver adds the rest.
  RunRegistry* registry = nullptr;
  RunRecord note;
  // A run that the cluster has no room for now is refused; else it waits.
  bool no_wait = false;
  // Told once the trainers have their places, or wait for them, and the run is noted.
  std::function<void(const RunRecord& record)> on_started;
  // Brings up or joins the cluster, for so many trainers. Called after the configuration and the
  // data were found good.
  std::function<Result<TrainingCluster>(int trainers)> make_cluster;
  // Told when the run has ended and only its results are still to be shown.
  std::function<void()> on_ended;
  // What the machines that joined the run's cluster are told of its end (`saved`: as
  // saved_at_stop). Nothing: that the driver has ended, as where the run ends before its trainers
  // were started.
  std::function<std::string(const Status& end, bool saved)> end_reason;
  // Set by run_training: an interrupt ended the run, and all that it did is saved.
  bool saved_at_stop = false;
  // The texts of faults that somebody outside of the trainers struck so far, one for each strike.
  // Nothing: nobody does.
  std::function<std::vector<std::string>()> struck_from_outside;
};

// What a finished run comes to.
struct TrainingSummary {
  std::string run;
  std::string output_dir;
  std::int64_t steps = 0;
  std::int64_t failures = 0;  // generations that were lost and recovered
  double seconds = 0;
  // What failed on the way, and what that cost.
  std::vector<Recovery> recoveries;
  RecoverySummary recovery;
};

// kCancelled after an interrupt, saying whether and where it was saved; otherwise what ended the
// run, with the last good checkpoint named.
Result<TrainingSummary> run_training(const LoadedConfig& loaded, DriverEnvironment& environment);

}  // namespace troupe::train
