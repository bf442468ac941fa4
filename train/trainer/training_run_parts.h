#pragma once
// The parts of a TrainingRun. Internal to training_run.cpp and training_load.cpp.

#include "train/progress/observed_collectives.h"
#include "train/progress/observed_operators.h"
#include "train/trainer/held_pieces.h"
#include "train/trainer/training_run.h"

namespace troupe::train {

// What is made once.
struct TrainingRun::Fixed {
  FileSystem& files;
  const Clock& clock;
  Logger log;
  RunBundle bundle;
  TrainingRunOptions options;
  std::unique_ptr<ComputeDevice> compute;
  std::unique_ptr<ObservedOperators> observed;  // the model's
  std::unique_ptr<Model> model;
  std::shared_ptr<const Objective> objective;  // of steps and evaluations
  ProgressRecorder& progress;
  std::unique_ptr<OperatorTimes> operator_times;  // null where they are not asked for
  ObservedCollectives collectives;
  Sampler sampler;
  Schedule schedule;
  RunSchedule planned;  // from the first sample
  RunSchedule facts;    // from where the state that was loaded stands
  BestModel best;
  EvaluationPlan evaluation;
  std::optional<Evaluator> evaluator;
  EngineOptions engine_options;
  std::unique_ptr<Optimizer> optimizer;
  // With the rank.
  int rank = -1;
  SurvivingMemory* memory = nullptr;
  std::unique_ptr<RankLayout> layout;
  std::optional<TrainingState> state;
  std::unique_ptr<OptimizerDevice> updates;  // of the state's tensors
  HeldPieces held;                           // of the save under way

  StepTransaction& transaction() { return state->transaction(); }
  const TrainConfig& config() const { return bundle.config; }
  const std::string& output_dir() const { return config().training.output_dir; }
  bool leads() const { return rank == 0; }
};

// What lives as long as a generation.
struct TrainingRun::Generation {
  collective::Communicator& world;  // over memory of the host
  DeviceCommunicator* device;       // over the device's; null: `world` carries it
  std::uint64_t number;
  TrainingObserver& observer;
  GenerationPurpose purpose = GenerationPurpose::kTrain;
  const RankLayout* saved_layout = nullptr;  // what this rank saves; null: its part of the run's
  std::unique_ptr<EngineDevice> engine_device;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<CheckpointSaver> saver;
  std::uint64_t saver_bytes = 0;  // sent for saves in the midst of a step
  double save_start_seconds = 0;  // of a save that was started after the last step

  // Of a generation that saves alone nobody sends anything.
  std::uint64_t bytes_sent() const {
    return engine ? engine->communicators().algorithm_bytes_sent() : 0;
  }
};

}  // namespace troupe::train
