#pragma once
// What the classes of one rank's training share: what is made once, and what lives as long as a
// generation. Internal to train/trainer.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/collective/communicator.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/config/derived.h"
#include "train/data/sampler.h"
#include "train/data/streamed_samples.h"
#include "train/model/model.h"
#include "train/objectives/objective.h"
#include "train/optimizer/schedule.h"
#include "troupe/log.h"

#include "train/progress/observed_collectives.h"
#include "train/progress/observed_operators.h"
#include "train/progress/progress_recorder.h"
#include "train/sharding/engine.h"
#include "train/trainer/best_model.h"
#include "train/trainer/buddy_state.h"
#include "train/trainer/compute_device.h"
#include "train/trainer/evaluator.h"
#include "train/trainer/former_world.h"
#include "train/trainer/held_pieces.h"
#include "train/trainer/own_data.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_observer.h"
#include "train/trainer/training_state.h"
#include "train/trainer/training_step.h"

namespace troupe::train {

struct TrainingRunOptions {
  std::string run;  // id: checkpoints of this run are told from others by it
  int world_size = 1;
  // Of the world that the configuration's batch is of, whatever number of ranks there are now; 0:
  // world_size.
  int batch_world_size = 0;
  int ranks_per_node = 1;  // shard groups of hybrid strategies are nodes unless a mesh is given
  int threads = 1;
  // Communication has a core for itself beside the rank's threads.
  bool overlaps = false;
  // Where generation 1 starts from; empty: from the model's weights, or from scratch.
  std::string resume_path;
  std::int64_t started_unix_us = 0;
  ComputeChoice compute;
  // Of the program's own; the bundle says which of them the run takes.
  TrainingParts parts;
  // As ComputeTask has them: the process may wait long for its rank.
  bool stands_by = false;
  Duration memory_patience{};

  int batch_world() const { return batch_world_size > 0 ? batch_world_size : world_size; }
};

// What is made once.
struct RankParts {
  FileSystem& files;
  const Clock& clock;
  Logger log;
  RunBundle bundle;
  TrainingRunOptions options;
  std::unique_ptr<ComputeDevice> compute;
  std::unique_ptr<ObservedOperators> observed;  // the model's
  std::unique_ptr<Model> model;
  std::unique_ptr<Model> reference;            // null: there is none
  std::shared_ptr<const Objective> objective;  // of steps and evaluations
  ProgressRecorder& progress;
  std::unique_ptr<OperatorTimes> operator_times;  // null where they are not asked for
  ObservedCollectives collectives;
  Sampler sampler;
  Schedule schedule;
  PlateauState plateau = {};  // behind the last evaluation, with such a schedule
  RunSchedule planned;        // from the first sample
  RunSchedule facts;          // from where the state that was loaded stands
  BestModel best;
  EvaluationPlan evaluation;
  std::vector<Evaluator> evaluators;  // of the data sets that are evaluated
  Strategy strategy = Strategy::kDdp;
  EngineOptions engine_options;
  std::shared_ptr<const Optimizer> optimizer;
  std::unique_ptr<OwnData> own_data;          // null: the bundle's data set, or
  std::unique_ptr<StreamedSamples> streamed;  // a stream's; else null
  std::vector<std::shared_ptr<TrainingCallback>> callbacks;
  // With the rank.
  int rank = -1;
  SurvivingMemory* memory = nullptr;
  std::unique_ptr<RankLayout> layout;
  std::unique_ptr<RankCompute> rank_compute;
  HeldPieces held;  // of the save under way
  // Of the generation under way: the rank's machine as DeviceLinks has it, and what is lost with
  // it at most.
  std::string machine, domain;
  BuddyPlan buddies;                 // of the generation under way
  std::unique_ptr<BuddyState> kept;  // of another rank; null: this one keeps nothing
  double gemm_flops_per_s = 0;       // of all ranks
  // Of worlds of other sizes, the newest first, while their memory may be needed.
  std::vector<std::unique_ptr<FormerWorld>> former;

  TrainingState& state() { return rank_compute->state(); }
  StepTransaction& transaction() { return state().transaction(); }
  const TrainConfig& config() const { return bundle.config; }
  const std::string& output_dir() const { return config().training.output_dir; }
  bool leads() const { return rank == 0; }
  // Steps done; 0 before anything is loaded. Any thread.
  std::int64_t step() { return rank_compute ? transaction().position().step : 0; }
  StepTransaction* kept_transaction() { return kept ? &kept->transaction() : nullptr; }
  UpdatedPart own_part() { return UpdatedPart::of(*layout, state().kept()); }
  BuddyTask buddy_task(const RankLayout& own, SurvivingMemory& in, std::string label);
  // What there is of `owner`'s state here, or new memory.
  Result<std::unique_ptr<BuddyState>> open_kept(int owner);
  // Keeps nothing any more, and gives the memory back.
  Status drop_kept();
  // The samples that the next step's plan names.
  const TokenDataset& dataset() const {
    if (streamed) return streamed->dataset();
    return own_data ? own_data->dataset() : bundle.dataset;
  }
  // The step that was finished last, as its record tells it.
  StepRecord last_step_record();
  std::int64_t total_steps() const { return facts.total_steps; }
};

// What lives as long as a generation.
struct RunGeneration {
  collective::Communicator& world;  // over memory of the host
  std::uint64_t number;
  TrainingObserver& observer;
  GenerationPurpose purpose = GenerationPurpose::kTrain;
  const RankLayout* saved_layout = nullptr;  // what this rank saves; null: its part of the run's
  std::unique_ptr<Engine> engine;
  std::unique_ptr<CheckpointSaver> saver;
  std::optional<BuddyLinks> buddies;  // nothing: nobody keeps anything
  std::uint64_t saver_bytes = 0;      // sent for saves in the midst of a step
  double save_start_seconds = 0;      // of a save that was started after the last step

  // Of a generation that saves alone nobody sends anything.
  std::uint64_t bytes_sent() const {
    return engine ? engine->communicators().algorithm_bytes_sent() : 0;
  }
};

// As the program's callbacks are told it.
FinishedStep told_step(const StepRecord& record);
// The next step's transaction. `before_update`: as StepTools has it.
TrainingStep step_of(RankParts& parts, RunGeneration& generation,
                     std::function<Status()> before_update);
// How evaluations pass over the run's data; nothing where there are none.
std::optional<ActivationOptions> evaluation_of(const RunBundle& bundle);

}  // namespace troupe::train
