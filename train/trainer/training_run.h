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
#include "train/checkpoint/safetensors.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/cpu/arena.h"
#include "train/data/sampler.h"
#include "train/data/token_dataset.h"
#include "train/model/model.h"
#include "train/optimizer/gradient_norm.h"
#include "train/optimizer/schedule.h"
#include "train/trainer/data_parallel_units.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_recorder.h"
#include "train/trainer/training_state.h"

namespace troupe::train {

// What the loop tells. Called on the loop's thread.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  // The state of `step` is loaded on this rank (0: the initial weights).
  virtual void loaded(std::int64_t step) = 0;
  // The loop reaches a phase of a step: where injected faults strike.
  virtual void phase(std::int64_t step, ChaosPhase phase) = 0;
  // Rank 0 only: the step is finished on all ranks. `logged`: it was one of logging_steps.
  virtual void step_finished(const StepRecord& record, bool logged) = 0;
  virtual void checkpoint_written(std::int64_t step, const std::string& path) = 0;
  // For the user: a warning that does not end the run.
  virtual void warning(const std::string& text) = 0;
  // The loop leaves at the next step with kCancelled.
  virtual bool stop_requested() = 0;
  // Asked of rank 0 once a step: the loop writes a checkpoint after the step under way and leaves
  // with kCancelled "stopped at step N after saving".
  virtual bool save_and_stop_requested() = 0;
};

struct TrainingRunOptions {
  std::string run;  // id: checkpoints of this run are told from others by it
  int rank = 0;
  int world_size = 1;
  int threads = 1;
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

  // Loads (rank 0 reads, all receive), then steps to the end of the run. Returns ok when the run is
  // complete; kAborted and its like when the communicator ended; kDataLoss, kInvalidArgument, …
  // when nobody could go on.
  Status run_generation(collective::Communicator& communicator, std::uint64_t generation,
                        TrainingObserver& observer);

  std::int64_t total_steps() const { return schedule_facts_.total_steps; }
  // The segment of parameters, gradients, moments and the step record.
  memory::Segment& state_segment() { return state_.segment(); }

 private:
  struct Prepared;
  TrainingRun(FileSystem& files, const Clock& clock, Logger log, RunBundle bundle,
              const TrainingRunOptions& options, Prepared prepared);

  Status load(collective::Communicator& communicator, std::uint64_t generation);
  // Rank 0: fills the state; sets cursor_ and restored_.
  Status load_here(std::uint64_t generation);
  Status load_checkpoint_state(const GoodCheckpoint& checkpoint);
  Status load_initial_weights();
  Status share(collective::Communicator& communicator);

  Result<StepRecord> step(collective::Communicator& communicator, DataParallelUnits& units,
                          const StepPlan& plan, TrainingObserver& observer);
  Status optimize(const StepRecord& record, const GradientNorm& norm);
  Result<GradientNorm> gradient_norm();
  Result<double> sum_losses(collective::Communicator& communicator, double loss_sum,
                            std::int64_t step);
  void write_checkpoint(TrainingObserver& observer);
  bool checkpoint_due(const StepPlan& plan) const;
  Status finish();
  std::vector<StoredTensor> weight_tensors() const;
  std::vector<StoredTensor> optimizer_tensors() const;

  FileSystem& files_;
  const Clock& clock_;
  Logger log_;
  RunBundle bundle_;
  TrainConfig config_;
  TrainingRunOptions options_;

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Activations> activations_;
  mutable TrainingState state_;
  Sampler sampler_;
  Schedule schedule_;
  RunSchedule schedule_facts_;
  SampleCursor cursor_;
  // Rank 0 only, of the current generation.
  TrainerState restored_;
  std::optional<RunRecorder> recorder_;
};

}  // namespace troupe::train
