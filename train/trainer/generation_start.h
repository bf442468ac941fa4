#pragma once
// The beginning of a generation on one rank: where the state comes from (the ranks' memories, a
// checkpoint, the model's weights, or nothing), and its way to all ranks. The order of things is
// RecoverySession's; how each is done stands here.

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/collective/communicator.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/data/sampler.h"
#include "train/trainer/derived_base.h"
#include "train/trainer/follow_up_state.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/run_saves.h"
#include "train/trainer/state_io.h"
#include "train/transaction/recovery_session.h"

namespace troupe::train {

class GenerationStart {
 public:
  GenerationStart(RankParts& parts, FollowUpState& follow, RunSaves& saves)
      : parts_(parts), follow_(follow), saves_(saves) {}

  // Collective. Goes on from where the ranks' memories stand, or loads where one of them is empty;
  // `loaded` says which.
  Status begin(RunGeneration& generation, TrainerLoaded& loaded);
  // What was loaded is brought to where it is used, on all ranks.
  Status parameters_loaded(RunGeneration& generation);

 private:
  // The ranks' positions; what follows from them for the work that follows steps is in `left`.
  Status meet(RunGeneration& generation, RecoverySession& session);
  Status share_record(RunGeneration& generation, RecoverySession& session);
  // Ranks that lost their state get it from those that hold the same, or kept a copy: tensors,
  // record, and how far the work that follows steps has come. The record of this rank's source.
  Result<CommitRecord> copy_states(RunGeneration& generation, const RecoverySession& session);
  // Who keeps whose state in this generation, and the links for it.
  Status plan_buddies(RunGeneration& generation, BuddyPlan plan);
  // Logs, evaluations and saves go on from the step to which another rank, `other`, has done them.
  void go_on_as(Aftermath other);
  // The states that ranks are to keep and do not have, from their owners.
  Status renew(RunGeneration& generation, RecoverySession& session);
  // Parameters, and all else that a rank has to go on from, are where they are used.
  Status publish(RunGeneration& generation, const RecoverySession& session);
  // The steps from `record` to the end: as many as its samples leave.
  void place(const CommitRecord& record);
  // The state of a world of another size becomes this one's, where all of it is in the ranks'
  // memories.
  Result<std::optional<CommitRecord>> take_over(RunGeneration& generation, TrainerLoaded& loaded);
  // The record of what was loaded.
  Result<CommitRecord> load(RunGeneration& generation, TrainerLoaded& loaded);
  BaseSource base_source() const;
  // What is not trained, from the model's files or from nothing. Collective.
  Status load_frozen_part(RunGeneration& generation, DerivedBase* derived);
  Status read_progress(const GoodCheckpoint& checkpoint, CommitRecord& record);
  SampleCursor cursor_of_epochs(const GoodCheckpoint& checkpoint);
  // Opens the recorders: all begin with what rank 0 has restored.
  Status open_recorders(collective::Communicator& world);
  // Rank 0: where the state comes from, and what goes with it.
  Result<StateSource> choose_source(std::uint64_t generation, CommitRecord& record);
  // All ranks take what rank 0 has chosen.
  Status agree(collective::Communicator& world, StateSource& source, CommitRecord& record);

  RankParts& parts_;
  FollowUpState& follow_;
  RunSaves& saves_;
  FollowUp left_;            // where a generation that goes on from memory takes its reports up
  bool takes_over_ = false;  // in this generation
  std::int64_t finished_by_all_ = -1;  // the last step of which all that follows was done
};

}  // namespace troupe::train
