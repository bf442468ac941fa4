#pragma once
// One optimizer step of one rank: batches, passes over the model, reduction, norm, all ranks'
// votes, update. The order that makes it a transaction is StepSession's.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "train/config/train_config.h"
#include "train/data/sampler.h"
#include "train/data/token_dataset.h"
#include "train/model/model.h"
#include "train/objectives/objective.h"
#include "train/optimizer/loss_scale.h"
#include "train/optimizer/schedule.h"
#include "train/progress/progress_recorder.h"
#include "train/report/step_log.h"
#include "train/sharding/engine.h"
#include "train/trainer/buddy_state.h"
#include "train/trainer/compute_device.h"
#include "train/trainer/training_observer.h"
#include "train/transaction/step_session.h"

namespace troupe::train {

class OwnData;

struct StepOutcome {
  StepRecord record;
  // Rank 0 was asked to save and to stop after this step; all ranks know it at once.
  bool save_and_stop = false;
  bool pause = false;  // the same, to leave for another world
};

// What a step works with. Everything is the caller's.
struct StepTools {
  const TrainConfig& config;
  const TokenDataset& dataset;
  Model& model;
  Model* reference;  // null: there is none
  const Objective& objective;
  Activations& activations;
  const RankLayout& layout;
  // The ranks that the samples of a step are dealt to, of however many there are.
  int batch_world;
  const Schedule& schedule;
  std::int64_t schedule_offset;  // of its steps behind the updates, see RunSchedule
  const PlateauState& plateau;   // what evaluations have made of the rate, where they do
  const OwnData* own_data;       // null: none
  const Clock& clock;
  Engine& engine;
  ComputeDevice& compute;
  StepTransaction& transaction;
  // What this rank keeps of another's state, its own part that another keeps, and the links there;
  // null: nobody keeps anything.
  BuddyState* kept;
  UpdatedPart own_part;
  const BuddyLinks* buddies;
  ProgressRecorder& progress;
  TrainingObserver& observer;
  // Before parameters and moments change: a save that reads them must be through.
  std::function<Status()> before_update;
};

// What the update of a step is made of: a pure function of its record.
OptimizerStep update_of(const TrainConfig& config, const CommitRecord& record);

class TrainingStep {
 public:
  explicit TrainingStep(const StepTools& tools);

  // The next step, on the samples of `plan`. Collective. Gradients or a loss that are not finite:
  // nothing is updated, the record says why; after ten such steps in a row kFailedPrecondition, but
  // where a loss scale still falls for them.
  // Any failure before all have voted leaves parameters and moments as they were.
  Result<StepOutcome> run(const StepPlan& plan);
  // What is left of the optimizer phase of the step that is committed: begun by this process, or by
  // one before it that was killed in the midst. No communication.
  Status update_committed();
  // The same of what this rank keeps of another's state.
  Status update_kept();

 private:
  struct Losses;
  Status pass_over(const StepPlan& plan, StepRecord& record, std::vector<ObjectiveSum>& sums);
  // What a micro-batch is computed of.
  struct Batches {
    TokenBatch own;
    TokenBatch others;  // answers to other questions, of objectives that ask for the drift
  };
  // What the objective asks before the pass that trains.
  Result<Asked> ask(const StepPlan& plan, const Batches& batches, StepSeconds& seconds);
  // The same of all of this rank's micro-batches, for objectives that ask for the drift, else none.
  // The drift is the mean over the micro-batches that the ranks of `batch_world` would compute at
  // the same time, as trl.KTOTrainer has it: it does not depend on how many ranks there are.
  // Collective.
  Result<std::vector<Asked>> ask_all(const StepPlan& plan, StepSeconds& seconds);
  // What ask_all() found for the micro-batch, or, where it asked nothing, ask().
  Result<Asked> ask_before(const StepPlan& plan, std::int64_t micro_batch, const Batches& batches,
                           std::vector<Asked>& asked, StepSeconds& seconds);
  // All ranks' numbers, in the order of ranks. Collective.
  Result<std::vector<double>> gather(std::span<const double> mine) const;
  // Of what gather() gave, `width` for a rank: where those of each of the step's micro-batches
  // begin, `numbers` each; null where nobody computed it.
  std::vector<const double*> by_number(const StepPlan& plan, const std::vector<double>& all,
                                       std::size_t width, std::size_t micro_batches,
                                       std::size_t numbers) const;
  // The pass that gives gradients; the loss.
  Result<ObjectiveSum> learn(const StepPlan& plan, const TokenBatch& batch, const Asked& asked,
                             UnitAccess& units, StepSeconds& seconds);
  MicroBatch micro_batch(const StepPlan& plan, const TokenBatch& batch) const;
  Status end_pass(StepSeconds& seconds);
  // Gradients, reduced, and the step's loss.
  Result<StepOutcome> compute(const StepPlan& plan, StepRecord record);
  Result<StepOutcome> sum_up(const StepPlan& plan, StepRecord record,
                             const std::vector<ObjectiveSum>& sums);
  // What the step's losses are divided by.
  std::int64_t divisor(const StepPlan& plan) const;
  Result<CommitRecord> decide(const StepPlan& plan, StepRecord& record);
  // Why a step that is not finite is skipped.
  Result<std::string> why_skipped(const StepPlan& plan, const StepRecord& record,
                                  const LossScale& after);
  // Gathers the votes of all ranks.
  Status vote(StepSession& session);
  Status publish(StepRecord& record);
  // What this rank keeps counts for nothing until it is written again, by the next generation.
  Status give_up_kept(const std::string& why);
  Status compare_states(collective::Communicator& group);
  // Reduced gradients: to this rank's buddy, and those of the state that it keeps.
  Status replicate(StepRecord& record);
  // Who and what is not finite: the passes are done once more, looking at every local gradient.
  Result<std::string> find_non_finite(const StepPlan& plan);
  Batches batches_of(const StepPlan& plan, std::int64_t micro_batch) const;
  // Null where gradients are memory of the host.
  Operators* device_operators() const {
    return tools_.compute.access().in_place() ? nullptr : &tools_.compute.operators();
  }
  int data_rank() const { return tools_.layout.mesh().data_rank_of(tools_.layout.rank()); }
  template <typename Work>
  auto timed(double& seconds, Work&& work);

  StepTools tools_;
  const std::optional<LossScaleRule> loss_scale_rule_;
  LossScale loss_scale_;  // before the step
  float scale_ = 1.0f;    // of the step's losses: 1 / divisor, in fp16 times the loss scale
};

}  // namespace troupe::train
