#pragma once
// What controller and trainers tell each other. Plain values that travel as call arguments.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "train/chaos/fault.h"
#include "train/report/step_seconds.h"
#include "train/trainer/run_state.h"

namespace troupe::train {

// Which of a node's GPUs a process sees: two trainers of a node with the same may go on with each
// other's memory there.
inline constexpr const char* kVisibleGpus = "CUDA_VISIBLE_DEVICES";

// The label by which a machine of several is known to its run: its NODE_RANK. One that is started
// anew with the same number takes the place of the one before.
inline constexpr const char* kNodeRankLabel = "troupe-node-rank";

// How long a run's bundle may take, between nodes with a slow network too.
inline constexpr std::chrono::seconds kBundleTimeout{600};
// Larger bundles are a mistake: 64 GiB of tokens do not fit a trainer's memory either.
inline constexpr std::uint64_t kBundleBytesMax = std::uint64_t{64} << 30;

// How a trainer is set up, for all its generations.
struct RankSetup {
  std::string run;
  std::int32_t trainer = 0;     // its number in the run
  std::int32_t rank = 0;        // to begin with, -1: a spare; each GenerationPlan says it anew
  std::int32_t world_size = 1;  // with all machines that the run may have
  std::int32_t ranks_per_node = 1;
  std::int32_t threads = 1;
  // There is a core for each rank's communication beside its threads.
  bool overlaps = false;
  // Every rank of this node has a core to itself: waits may spin.
  bool own_core = false;
  std::string resume_path;
  std::string output_locked_by;  // OutputPaths::locked_by
  std::int64_t started_unix_us = 0;
  std::int64_t wait_timeout_ms = 1'800'000;  // of one wait in a collective
  // Computes on the GPU that its process sees, else on the CPU.
  bool on_gpu = false;
  std::string output_dir;
  std::string token_cache;  // RunBundle::token_cache
};

// A generation that begins.
struct GenerationPlan {
  std::uint64_t generation = 0;
  std::vector<ActorId> ranks;  // the trainers, by rank; of kSaveAlone: that of rank 0
  GenerationPurpose purpose = GenerationPurpose::kTrain;
  // Faults that may still strike, with their numbers in the run's list.
  std::vector<std::int32_t> fault_numbers;
  std::vector<Fault> faults;
  // As BeginGeneration has them; trainers by their numbers in the run.
  World world;
  std::vector<World> former;
  bool tries_newcomers = false;
};

// A finished step, told by rank 0. (report/step_log.h's StepRecord as it travels.)
struct StepReport {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;
  bool logged = false;
  double logged_loss = 0;  // where it was: of the steps since the last one that was
  std::string skipped;
  StepSeconds seconds;
  StepRates rates;
};
// An evaluation after `step`, told by rank 0.
struct EvaluationReport {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t samples = 0;
  double seconds = 0;
  bool best = false;  // the best so far, where the run keeps track
  std::string data_set;
};
struct CheckpointReport {
  std::int64_t step = 0;
  std::string path;
};
// The finished model could not be written to `folder`, and is kept in memory.
struct ModelHeldReport {
  std::string folder;
  Status cause;
};
// It was written to another folder than output_dir.
struct ModelSavedReport {
  std::string folder;
};
struct WarningReport {
  std::string text;
};
struct NoticeReport {
  std::string text;
};
// A checkpoint that could not be written.
struct CheckpointFailedReport {
  std::int64_t step = 0;
  Status cause;
};
// A checkpoint that was being committed when a trainer died, and cannot be written any more.
struct AbandonedReport {
  std::int64_t step = 0;
  std::string path;
};

// Where a trainer is: what TrainerActor::status() answers at once, from any state. A controller
// that was started again asks for it.
//   TrainerStatus TrainerActor::status() const;
struct TrainerStatus {
  // Of the process that answers.
  std::uint64_t incarnation = 0;
  NodeId node_id;
  std::int64_t pid = 0;
  // Of the newest plan that begin() brought, whatever became of it; 0: none yet.
  std::uint64_t generation = 0;
  std::int32_t rank = -1;      // in that plan; -1: none yet
  bool in_generation = false;  // it has not left it: waits for its turn, meets, loads or steps
  bool has_bundle = false;     // it took the run's data
  std::int64_t step = 0;       // steps done, 0 before anything was loaded
  // kVisibleGpus of its process, where it is to compute there.
  std::string gpu;
  bool fit = true;  // false: it could not be made ready for a rank (TrainerUnfit)
  World world;      // of the newest plan
  std::vector<World> former;
};

// trainer → controller. What concerns recovery are events of RunState.
using TrainerMessage =
    std::variant<StepReport, EvaluationReport, CheckpointReport, WarningReport, NoticeReport,
                 CheckpointFailedReport, AbandonedReport, ModelHeldReport, ModelSavedReport,
                 TrainerLoaded, TrainerStopped, TrainerFinished, TrainerSaving, TrainerSaved,
                 TrainerFailed, TrainerFormed, TrainerUnfit, TrainerPaused>;

// Purposes of raw connections between the run's processes (ActorContext::accept_connections).
inline constexpr const char* kBundlePurpose = "bundle";  // driver → controller → trainers
// controller → driver: lines of JSON, whose "kind" says what they are: step, evaluation,
// checkpoint, warning, event, saving, end. The driver connects again when a connection ends without
// `end`: the controller's process was replaced. A new connection begins with what the driver may
// have missed: `end` in any case where the run has ended, otherwise a `snapshot` {"step",
// "total_steps", "last_checkpoint"} of where the run is. Lines may come twice. An `event` carries
// "line", the object that stands in events.jsonl, and "text", a sentence for people.
inline constexpr const char* kProgressPurpose = "progress";
inline constexpr const char* kCommunicatorPurpose = "comm";  // trainer ↔ trainer

}  // namespace troupe::train
