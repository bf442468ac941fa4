#pragma once
// One rank's part of a training run: model, data, state and the loop over optimizer steps.
//
// Knows no actors: a communicator comes in, progress goes out through an observer. The object lives
// as long as the trainer's process and serves one generation after another.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/log.h"
#include "runtime/collective/communicator.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/cpu/arena.h"
#include "train/data/sampler.h"
#include "train/model/model.h"
#include "train/optimizer/schedule.h"
#include "train/sharding/engine.h"
#include "train/trainer/best_model.h"
#include "train/trainer/evaluator.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_recorder.h"
#include "train/trainer/state_io.h"
#include "train/trainer/training_observer.h"
#include "train/trainer/training_state.h"
#include "train/trainer/training_step.h"

namespace troupe::train {

struct TrainingRunOptions {
  std::string run;  // id: checkpoints of this run are told from others by it
  int rank = 0;
  int world_size = 1;
  int ranks_per_node = 1;  // shard groups of hybrid strategies are nodes unless a mesh is given
  int threads = 1;
  // Communication has a core for itself beside the rank's threads.
  bool overlaps = false;
  // Where generation 1 starts from; empty: from the model's weights, or from scratch.
  std::string resume_path;
  std::int64_t started_unix_us = 0;
};

class TrainingRun {
 public:
  // Sets up everything that does not depend on a generation: model, dataset, state, activations.
  static Result<std::unique_ptr<TrainingRun>> create(FileSystem& files, const Clock& clock,
                                                     Logger log, RunBundle bundle,
                                                     const TrainingRunOptions& options);
  ~TrainingRun();

  // Loads, then steps to the end of the run. Returns ok when the run is complete; kAborted and its
  // like when the communicator ended; kCancelled when it was told to stop; kDataLoss,
  // kInvalidArgument, … when nobody could go on.
  Status run_generation(collective::Communicator& communicator, std::uint64_t generation,
                        TrainingObserver& observer);

  std::int64_t total_steps() const;
  // Steps done.
  std::int64_t step() const;
  // The segment of parameters, gradients, moments and the step record.
  memory::Segment& state_segment();

 private:
  struct Fixed;       // what is made once
  struct Generation;  // what lives as long as a generation
  explicit TrainingRun(std::unique_ptr<Fixed> fixed);

  // --- loading
  Status load(Generation& generation);
  // Rank 0: where the state comes from, and what goes with it.
  Result<StateSource> choose_source(std::uint64_t generation);
  Status read_progress(const GoodCheckpoint& checkpoint);
  // Rank 0's choice becomes everybody's.
  Status agree(collective::Communicator& world, StateSource& source);
  Status open_recorder();
  Status measure_gemms(collective::Communicator& world);

  // --- the loop
  Status loop(Generation& generation);
  Status finish_step(Generation& generation, const StepPlan& plan, const StepOutcome& outcome);
  Status evaluate(Generation& generation);
  Status finish(Generation& generation);
  // Sets `final_step` to the step whose parameters the run ends with.
  Status load_best_model(Generation& generation, std::int64_t& final_step);
  double step_flops(const StepPlan& plan) const;

  // --- saving
  bool checkpoint_due(const StepPlan& plan, bool last) const;
  Status start_save(Generation& generation);
  Status seal_save(Generation& generation);
  void report_saves(Generation& generation);
  Status settle_saves(Generation& generation);
  SaveContents save_contents(bool final_model);

  std::unique_ptr<Fixed> fixed_;
  SampleCursor cursor_;
  BestModel best_;
  std::optional<std::int64_t> evaluated_step_;
  double gemm_flops_per_s_here_ = 0;
  double gemm_flops_per_s_ = 0;  // all ranks
  // Rank 0 only, of the current generation.
  TrainerState restored_;
  std::optional<RunRecorder> recorder_;
};

}  // namespace troupe::train
