#pragma once
// A run's state in a world of another size: what its ranks hold of it, here and as copies, becomes
// the state of the present one, through memory.
//
// It is a recovery of the former world by those of its ranks that are there, in the layout that
// their memory has: the step that was under way is finished or given up. Then each rank takes what
// it is to update from whoever holds it (train/transaction/hand_over_session.h). The former memory
// stays as it is until a step stands in the present world: whoever is lost before, the same is done
// once more. On CPUs.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/sharding/optimizer_device.h"
#include "train/sharding/rank_layout.h"
#include "train/trainer/buddy_state.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_state.h"
#include "train/transaction/hand_over_session.h"

namespace troupe::train {

struct RankParts;
struct RunGeneration;

// A former world, as one rank of the present one is told of it.
struct FormerRanks {
  int world_size = 0;
  std::vector<int> ranks;             // by rank of the present world: the rank there; -1: none
  SurvivingMemory* memory = nullptr;  // of this rank's rank there; null: it had none
};

// What a rank needs to go on beside its tensors.
struct HandedOver {
  CommitRecord record;
  Aftermath aftermath;                // of the former rank 0
  std::int64_t finished_by_all = -1;  // the last step of which all that follows was done
  std::string history;                // the surviving history's lines
};

class FormerWorld {
 public:
  // Finds what this rank has of it. `parts` has a rank, and outlives it, as the memory does.
  static Result<std::unique_ptr<FormerWorld>> open(RankParts& parts, FormerRanks former);

  // Collective: this rank's trained parameters and slots, as far as it updates them, are written.
  // Nothing where some part of the state is in nobody's memory; nothing is written then.
  Result<std::optional<HandedOver>> hand_over(RunGeneration& generation);
  // It is not needed any more: its memory is given back.
  Status drop();
  // The same of a world that nothing was found of yet.
  static Status drop(SurvivingMemory& memory);
  const SurvivingMemory* memory() const { return former_.memory; }

 private:
  // The state that the rank had there.
  struct Own {
    Own(RankLayout layout_of_it, TrainingState state_of_it, const Optimizer& optimizer,
        ParallelFor parallel_for);
    RankLayout layout;
    TrainingState state;
    UpdatedPart part;
    std::unique_ptr<OptimizerDevice> updates;
  };
  FormerWorld(RankParts& parts, FormerRanks former, const Mesh& mesh);
  int rank() const;
  // What each rank of the present world did after the last step there.
  Result<std::vector<std::int64_t>> meet(RunGeneration& generation, HandOverSession& session);
  Status share_record(RunGeneration& generation, HandOverSession& session, CommitRecord& record);
  Status update_kept(RunGeneration& generation, const CommitRecord& record);
  // Collective: of slots that parameters have in turn, after the last update.
  Result<SlotUse> last_use(RunGeneration& generation, const HandOverSession& session);
  Status take_states(RunGeneration& generation, const HandOverSession& session, const SlotUse& use);
  // `updated`: what each rank of the present world updates.
  Status pass(RunGeneration& generation, const HandOverSession::Giver& giver,
              const std::vector<int>& takers, const std::vector<std::vector<UpdateRange>>& updated,
              const SlotUse& use);
  Result<HandedOver> what_goes_with_it(RunGeneration& generation, const HandOverSession& session,
                                       const std::vector<std::int64_t>& finished_steps);
  // Of who gives it, or holds an equal state of its own.
  const UpdatedPart& part_of(const HandOverSession::Giver& giver) const {
    return giver.kept ? kept_->part() : own_->part;
  }
  RankLayout layout_of(int former_rank) const;

  RankParts& parts_;
  const FormerRanks former_;
  const Mesh mesh_;
  const std::vector<int> states_;
  std::unique_ptr<Own> own_;
  std::unique_ptr<BuddyState> kept_;
};

}  // namespace troupe::train
