#pragma once
// One rank's part of a training run: model, data, state and the loop over optimizer steps.
//
// Knows no actors: a communicator comes in, progress goes out through an observer. The object lives
// as long as the trainer's process and serves one generation after another; what must not end with
// the process lies in surviving memory, and a generation begins from there.

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
#include "train/data/sampler.h"
#include "train/model/model.h"
#include "train/optimizer/schedule.h"
#include "train/progress/progress_recorder.h"
#include "train/sharding/engine.h"
#include "train/trainer/best_model.h"
#include "train/trainer/compute_device.h"
#include "train/trainer/evaluator.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_recorder.h"
#include "train/trainer/state_io.h"
#include "train/trainer/surviving_log.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_observer.h"
#include "train/trainer/training_state.h"
#include "train/trainer/training_step.h"
#include "train/transaction/recovery.h"

namespace troupe::train {

struct TrainingRunOptions {
  std::string run;  // id: checkpoints of this run are told from others by it
  int world_size = 1;
  int ranks_per_node = 1;  // shard groups of hybrid strategies are nodes unless a mesh is given
  int threads = 1;
  // Communication has a core for itself beside the rank's threads.
  bool overlaps = false;
  // Where generation 1 starts from; empty: from the model's weights, or from scratch.
  std::string resume_path;
  std::int64_t started_unix_us = 0;
  ComputeChoice compute;
  // As ComputeTask has them: the process may wait long for its rank.
  bool stands_by = false;
  Duration memory_patience{};
};

class TrainingRun {
 public:
  // What depends neither on the rank nor on a generation: model, dataset, activations. `progress`
  // outlives the run.
  static Result<std::unique_ptr<TrainingRun>> create(FileSystem& files, const Clock& clock,
                                                     Logger log, RunBundle bundle,
                                                     const TrainingRunOptions& options,
                                                     ProgressRecorder& progress);
  ~TrainingRun();

  // Before the rank: makes ready on the device what the first pass would be held up by. A failure
  // costs that time; alive() says whether it costs more.
  Status warm_up();
  // Takes a rank, once, before the first generation: with the memory that an earlier process of the
  // rank left in `memory`, which outlives the run.
  Status take_rank(int rank, SurvivingMemory& memory);

  // Goes on from where the ranks' memories stand, or loads where one of them is empty, then steps
  // to the end of the run. Returns ok when the run is complete; kAborted and its like when the
  // communicator ended; kCancelled when it was told to stop; kDataLoss, kInvalidArgument, … when
  // nobody could go on.
  // `device`: what connect() gave for that communicator. kSave: nothing is computed, a checkpoint
  // of the last finished step is written, and it ends with saved_stop().
  Status run_generation(collective::Communicator& communicator, std::uint64_t generation,
                        TrainingObserver& observer, DeviceCommunicator* device = nullptr,
                        GenerationPurpose purpose = GenerationPurpose::kTrain);
  // Rank 0, where others cannot come any more: saves a checkpoint of the last finished step from
  // its own memory, which holds everything where no rank's does in shards. `communicator` is of
  // this rank alone. Ends with saved_stop(); kFailedPrecondition where its memory is not enough.
  Status save_alone(collective::Communicator& communicator, std::uint64_t generation,
                    TrainingObserver& observer);
  // Before a generation: what carries the device's buffers between the ranks of `communicator`,
  // which outlives it; null where there is no other device than the host. Collective. The
  // configuration's part of `links` is filled in.
  Result<std::unique_ptr<DeviceCommunicator>> connect(collective::Communicator& communicator,
                                                      DeviceLinks links);
  // After a failure: ok, or why this process can compute nothing any more.
  Status alive();

  std::int64_t total_steps() const;
  // Steps done; 0 before anything is loaded. Any thread.
  std::int64_t step() const;
  // The rank taken; -1: none.
  int rank() const;

 private:
  struct Fixed;       // what is made once
  struct Generation;  // what lives as long as a generation
  explicit TrainingRun(std::unique_ptr<Fixed> fixed);

  Status run_observed(Generation& generation);
  std::unique_ptr<CheckpointSaver> make_saver(Generation& generation, const std::string& folder);

  // --- where the state comes from (training_load.cpp)
  Status begin(Generation& generation, TrainerLoaded& loaded);
  // The steps from `record` to the end: as many as its samples leave.
  void place(const CommitRecord& record);
  Status load(Generation& generation, TrainerLoaded& loaded);
  Status read_progress(const GoodCheckpoint& checkpoint, CommitRecord& record);
  SampleCursor cursor_of_epochs(const GoodCheckpoint& checkpoint);
  // Rank 0: where the state comes from, and what goes with it.
  Result<StateSource> choose_source(std::uint64_t generation, CommitRecord& record);
  // Rank 0's choice becomes everybody's.
  Status agree(collective::Communicator& world, StateSource& source, CommitRecord& record);
  // What the ranks found out when they met.
  struct Meeting {
    RecoveryDecision decision;
    std::int64_t finished_step = -1;  // the last whose follow-up all have finished
  };
  Result<Meeting> meet(Generation& generation);
  Status resume(Generation& generation, const Meeting& meeting, TrainerLoaded& loaded);
  Status finish_left_behind(Generation& generation, const RecoveryDecision& decision);
  Status agree_on_saves(Generation& generation);
  // Where `left` is given, it goes on from there; else anew, from `restored_`.
  Status open_recorder(const FollowUp* left);
  // Steps that the checkpoint stands for which the run was begun from; 0: none.
  std::int64_t first_step_of_run() const;
  void measure_gemms();

  // Goes on from what the follow-ups of the steps left in this rank's memory.
  const FollowUp& take_up(const Aftermath& left, std::int64_t finished_step);
  // The step that was finished last, as its record tells it.
  StepRecord last_step_record() const;

  // --- the loop
  TrainingStep step_of(Generation& generation);
  Status loop(Generation& generation);
  // What follows a step: log, evaluate, save.
  Status follow_up(Generation& generation, StepRecord record, bool save_and_stop);
  Status evaluate(Generation& generation);
  Status finish(Generation& generation);
  // Writes the model to output_dir. Where that fails it stays in memory and is tried again, or
  // written to another folder, until TroupeSection::hold_timeout_s has passed.
  Status save_model(Generation& generation);
  // Rank 0: where to write it after that failed; empty: it is given up.
  std::string next_folder(Generation& generation, TimePoint until);
  // Sets `final_step` to the step whose parameters the run ends with.
  Status load_best_model(Generation& generation, std::int64_t& final_step);
  // What was loaded is where it is used, on all ranks.
  Status parameters_loaded(Generation& generation);
  double step_flops(const StepPlan& plan) const;
  FollowUp follow_up_now() const;
  // Puts what is known of the steps' follow-ups into the memory that survives.
  void note();

  // --- saving
  bool checkpoint_due(const CommitRecord& record, bool last) const;
  Status start_save(Generation& generation);
  // Saves the last finished step, and ends the generation with saved_stop().
  Status best_in_place() const;
  Status save_and_leave(Generation& generation);
  Status leave_saved(Generation& generation);
  // What is saved, where the saver's thread can read it.
  Result<SaveContents> held_contents(Generation& generation, bool final_model);
  Status seal_save(Generation& generation);
  void report_saves(Generation& generation);
  Status settle_saves(Generation& generation);
  void save_settled(std::int64_t step);
  SaveContents save_contents(const RankLayout& layout, bool final_model);

  std::unique_ptr<Fixed> fixed_;
  // As Aftermath has them.
  BestModel best_;
  std::int64_t finished_step_ = -1;
  FollowUp before_;  // of the step before finished_step_
  std::optional<std::int64_t> evaluated_step_;
  std::int64_t saving_step_ = -1;
  bool final_model_ = false;
  double gemm_flops_per_s_here_ = 0;
  double gemm_flops_per_s_ = 0;  // all ranks
  bool second_folder_tried_ = false;
  bool save_again_ = false;  // the save of the last step was lost and can be made again
  // Rank 0 only.
  TrainerState restored_;
  std::optional<SurvivingLog> history_;
  std::optional<RunRecorder> recorder_;
};

}  // namespace troupe::train
