#pragma once
// What a new generation does with the memory it finds: a pure decision from all ranks' positions.
//
// Every rank of the new generation takes it by itself from the same positions, gathered when the
// ranks have met. By then every process of the old generation is dead or has left it.

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "train/transaction/step_transaction.h"

namespace troupe::train {

// Where the copy of another rank's state stands that a rank keeps (train/sharding/buddy_plan.h).
struct KeptPosition {
  std::int32_t owner = -1;  // whose state; −1: it keeps none
  RankPosition position;
};
static_assert(std::is_trivially_copyable_v<KeptPosition>);

// What the ranks' memories hold.
struct Memories {
  std::span<const RankPosition> positions;  // by rank: of its own state
  // By rank: ranks with equal numbers hold the same state, of which one is enough; empty: each
  // rank's is its own.
  std::span<const int> states = {};
  std::span<const KeptPosition> kept = {};  // by rank; empty: nobody keeps anything
};

struct RecoveryDecision {
  enum class Kind : std::uint8_t {
    kLoad,     // some state is in no rank's memory: all load a checkpoint or the initial state
    kDiscard,  // the step under way was decided nowhere: all compute step + 1 again
    kFinish,   // step + 1 was decided somewhere: those behind finish its optimizer phase
  };
  Kind kind = Kind::kLoad;
  std::int64_t step = 0;  // steps done by those that are behind
  // The step whose passes had begun and begin again; 0: none. Not kLoad.
  std::int64_t recomputes = 0;
  int record_rank = -1;  // kFinish: the first that has the record of step + 1
  int empty_rank = -1;   // kLoad: the first rank whose memory is empty, with no replica of it
  // By rank: from whom it takes its state over, once that is of a finished step, since its own
  // memory is gone or older than the run; −1: it goes on from its own. Not kLoad; empty: all do.
  std::vector<int> copies_from;
  // By rank: what it takes over is what the other keeps of it, not that one's own state.
  std::vector<bool> copies_kept;
  // By rank: the state that it keeps of another is in step with the run, and goes on with it.
  // Empty: nobody's is.
  std::vector<bool> kept_stands;
  // kLoad: not empty where no run of the protocol gives such positions; a sentence.
  std::string broken;
};
// Where a rank's memory is lost with its machine nobody knows whether it had committed the step
// under way: where all that are left have prepared that step, it is finished, so that no step that
// anybody has committed, and told of, is computed again (tests/models/step_replicas.pml).
RecoveryDecision decide_recovery(const Memories& memories);

// Whether a state at `position` is to commit and finish step + 1 by this decision; it may be past
// it.
bool is_behind(const RecoveryDecision& decision, const RankPosition& position);
// kFinish, on decision.record_rank: the record of the step that was decided, in its transaction.
const CommitRecord& decided_record(const RecoveryDecision& decision,
                                   const StepTransaction& transaction);

}  // namespace troupe::train
