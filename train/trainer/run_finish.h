#pragma once
// How a run whose steps are done ends: the best model where it is asked for, the last evaluation,
// the finished model on disk, the results.

#include <cstdint>
#include <string>

#include "train/trainer/follow_up_state.h"
#include "train/trainer/generation_start.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/run_saves.h"
#include "train/trainer/step_follow_up.h"

namespace troupe::train {

class RunFinish {
 public:
  RunFinish(RankParts& parts, FollowUpState& follow, RunSaves& saves, StepFollowUp& steps,
            GenerationStart& start)
      : parts_(parts), follow_(follow), saves_(saves), steps_(steps), start_(start) {}

  // Collective.
  Status finish(RunGeneration& generation);

 private:
  // Writes the model to output_dir. Where that fails it stays in memory and is tried again, or
  // written to another folder, until TroupeSection::hold_timeout_s has passed.
  Status save_model(RunGeneration& generation);
  // Rank 0: where to write it after that failed; empty: it is given up.
  std::string next_folder(RunGeneration& generation, TimePoint until);
  // Sets `final_step` to the step whose parameters the run ends with.
  Status load_best_model(RunGeneration& generation, std::int64_t& final_step);

  RankParts& parts_;
  FollowUpState& follow_;
  RunSaves& saves_;
  StepFollowUp& steps_;
  GenerationStart& start_;
  bool second_folder_tried_ = false;
};

}  // namespace troupe::train
