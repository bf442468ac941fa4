#pragma once
// What follows a step on one rank: its log, an evaluation, the start of a save.

#include "train/report/step_log.h"
#include "train/trainer/follow_up_state.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/run_saves.h"

namespace troupe::train {

class StepFollowUp {
 public:
  StepFollowUp(RankParts& parts, FollowUpState& follow, RunSaves& saves)
      : parts_(parts), follow_(follow), saves_(saves) {}

  // Collective. `save_and_stop`: a checkpoint is due whatever the configuration says, and nothing
  // is evaluated.
  Status after(RunGeneration& generation, StepRecord record, bool save_and_stop);
  // Collective. Evaluates the parameters as they are; nothing where the run has no data for it.
  Status evaluate(RunGeneration& generation);

 private:
  // What follows of one result: the same on all ranks.
  void note_evaluation(RunGeneration& generation, const EvalResult& result);
  // Collective: rank 0's callbacks hear of the step, and their word counts for all.
  Status ask_callbacks(RunGeneration& generation, const StepRecord& record);

  RankParts& parts_;
  FollowUpState& follow_;
  RunSaves& saves_;
};

}  // namespace troupe::train
