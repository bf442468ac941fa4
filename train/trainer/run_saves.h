#pragma once
// The checkpoints of a run on one rank: when one is due, what goes into it, its way from the start
// beside the next step's passes to the commit, and what becomes of one that a lost rank left open.

#include <memory>
#include <string>

#include "train/checkpoint/checkpoint_saver.h"
#include "train/trainer/follow_up_state.h"
#include "train/trainer/rank_parts.h"

namespace troupe::train {

class RunSaves {
 public:
  RunSaves(RankParts& parts, FollowUpState& follow) : parts_(parts), follow_(follow) {}

  // The save of the last step was lost and can be made again.
  bool save_again = false;

  std::unique_ptr<CheckpointSaver> make_saver(RunGeneration& generation, const std::string& folder);
  // Whether a checkpoint belongs after the step of `record`; `last`: the run ends with it.
  bool due(const CommitRecord& record, bool last) const;
  Status start(RunGeneration& generation);
  // Before parameters change: all that is read of them has been read.
  Status seal(RunGeneration& generation);
  // Tells which saves have ended since.
  void report(RunGeneration& generation);
  // Waits for the save under way, and tells.
  Status settle(RunGeneration& generation);
  // Ends the generation behind a save: saved_stop(), or why there is none.
  Status leave(RunGeneration& generation);
  // Why no checkpoint can be made of a state whose parameters are the best model's already.
  Status best_in_place() const;
  // What a generation that was lost left open. Where the state is still that of its step, it is to
  // be begun anew; else it is given up.
  Status take_up_left(RunGeneration& generation);
  // What is saved, where the saver's thread can read it.
  Result<SaveContents> held_contents(RunGeneration& generation, bool final_model);

 private:
  SaveContents contents_of(const RankLayout& layout, bool final_model);
  void tell_written(RunGeneration& generation, std::int64_t step, const std::string& path);
  void settled(std::int64_t step);

  RankParts& parts_;
  FollowUpState& follow_;
};

}  // namespace troupe::train
