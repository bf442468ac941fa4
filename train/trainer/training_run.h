#pragma once
// One rank's part of a training run: the loop over optimizer steps, generation after generation.
//
// Knows no actors: a communicator comes in, progress goes out through an observer. The object lives
// as long as the trainer's process and serves one generation after another; what must not end with
// the process lies in surviving memory, and a generation begins from there.
//
// What belongs to a run besides the loop is a class of its own: how a generation begins
// (generation_start.h), what follows a step (step_follow_up.h), checkpoints (run_saves.h), the end
// (run_finish.h), and what of all this is known and survives (follow_up_state.h).

#include <cstdint>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/collective/communicator.h"
#include "train/progress/progress_recorder.h"
#include "train/trainer/follow_up_state.h"
#include "train/trainer/generation_start.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_finish.h"
#include "train/trainer/run_saves.h"
#include "train/trainer/step_follow_up.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_observer.h"
#include "train/trainer/training_step.h"
#include "troupe/log.h"

namespace troupe::train {

// What the run of one world hands to that of the next in the same process, with the bundle: what
// takes time to make and does not depend on the number of ranks. Null: it is made.
struct CarriedOver {
  std::unique_ptr<ComputeDevice> compute;
  std::unique_ptr<StreamedSamples> stream;  // goes on where it is; null, too: there is none
};

class TrainingRun {
 public:
  // What depends neither on the rank nor on a generation: model, dataset, activations. `progress`
  // outlives the run.
  static Result<std::unique_ptr<TrainingRun>> create(FileSystem& files, const Clock& clock,
                                                     Logger log, RunBundle bundle,
                                                     const TrainingRunOptions& options,
                                                     ProgressRecorder& progress,
                                                     CarriedOver carried = {});
  ~TrainingRun();

  // Before the rank: makes ready on the device what the first pass would be held up by. A failure
  // costs that time; alive() says whether it costs more.
  Status warm_up();
  // Takes a rank, once, before the first generation: with the memory that an earlier process of the
  // rank left in `memory`, which outlives the run.
  Status take_rank(int rank, SurvivingMemory& memory);

  // With a rank, before a generation: the worlds of other sizes, the newest first, of whose state
  // the ranks may have to go on, where this one's is not there. The same worlds on all ranks.
  Status come_from(std::vector<FormerRanks> worlds);
  // What create() was given, and what it need not make again. The run is of no use after it, and
  // goes before what it gave.
  RunBundle give_bundle();
  CarriedOver carry_over();

  // Goes on from where the ranks' memories stand, or loads where one of them is empty, then steps
  // to the end of the run. Returns ok when the run is complete; kAborted and its like when the
  // communicator ended; kCancelled when it was told to stop; kDataLoss, kInvalidArgument, … when
  // nobody could go on.
  // `compute`: what join() gave for this generation. kSave: nothing is computed, a checkpoint of
  // the last finished step is written, and it ends with saved_stop().
  Status run_generation(const GenerationCompute& compute, std::uint64_t generation,
                        TrainingObserver& observer,
                        GenerationPurpose purpose = GenerationPurpose::kTrain);
  // Rank 0, where others cannot come any more: saves a checkpoint of the last finished step from
  // its own memory, which holds everything where no rank's does in shards. `communicator` is of
  // this rank alone. Ends with saved_stop(); kFailedPrecondition where its memory is not enough.
  Status save_alone(collective::Communicator& communicator, std::uint64_t generation,
                    TrainingObserver& observer);
  // With a rank: RankCompute::join(). The configuration's part of `links` is filled in.
  Result<GenerationCompute> join(std::shared_ptr<collective::Communicator> world,
                                 DeviceLinks links);
  // After a failure: ok, or why this process can compute nothing any more.
  Status alive();

  std::int64_t total_steps() const;
  // Steps done; 0 before anything is loaded. Any thread.
  std::int64_t step() const;
  // How far it came from `loaded_step` on. Any thread.
  Reached reached(std::int64_t loaded_step) const;
  // The rank taken; -1: none.
  int rank() const;

 private:
  explicit TrainingRun(std::unique_ptr<RankParts> parts);

  Status run_observed(RunGeneration& generation, EngineDevice& device);
  Status loop(RunGeneration& generation);
  double step_flops(const StepPlan& plan) const;
  // Saves the last finished step, and ends the generation with saved_stop().
  Status save_and_leave(RunGeneration& generation);

  std::unique_ptr<RankParts> owned_parts_;
  RankParts& parts_;
  FollowUpState follow_{parts_};
  RunSaves saves_{parts_, follow_};
  StepFollowUp steps_{parts_, follow_, saves_};
  GenerationStart start_{parts_, follow_, saves_};
  RunFinish finish_{parts_, follow_, saves_, steps_, start_};
};

}  // namespace troupe::train
