#pragma once
// The order in which a rank brings one step through its transaction, and what it asks of the other
// ranks' votes: pure. Trainer and simulator do what next() names, then say how it went; the calls
// of the transaction are made here.
//
//   kCompute → computed() → kVote → voted() → kUpdateKept → kept_updated()
//     → kUpdate → updated() → kPublish → published() → kDone
//
// What the rank keeps of another's state (train/sharding/buddy_plan.h) goes through the same
// phases, each time before its own: that the rank has prepared says that the gradients of both are
// complete.
//
// A rank that fails or ends on the way leaves a transaction that the next generation goes on from
// (recovery_session.h).

#include <cstdint>
#include <span>
#include <type_traits>

#include "runtime/base/status.h"
#include "train/transaction/step_transaction.h"

namespace troupe::train {

// A rank's word that its reduced gradients of `step` are complete.
struct StepVote {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
static_assert(std::is_trivially_copyable_v<StepVote>);

class StepSession {
 public:
  enum class Next : std::uint8_t {
    kCompute,     // gradients, reduced, those of the state that this rank keeps, too; their record
    kVote,        // gather vote() from all ranks
    kUpdateKept,  // as below, what this rank keeps; not where it keeps nothing
    kUpdate,  // parameters and moments, as the transaction's committed record says; none if skips()
    kPublish,  // owners' new parameters to all ranks
    kDone,
  };

  // The passes of the step after the transaction's last one begin. `kept`: of what this rank keeps
  // of another's state, at the same step; null: of nothing. Both outlive it.
  StepSession(StepTransaction& transaction, std::uint64_t generation,
              StepTransaction* kept = nullptr);

  Next next() const { return next_; }
  // After each action but kDone, the function of its name; any other is a bug.
  // `record`: what the step will leave behind, the same on all ranks. From here on another rank may
  // commit the step; then it is finished here from what this memory holds.
  void computed(const CommitRecord& record);
  StepVote vote() const;
  // kProtocol where a rank votes on anything else than this one: nothing is committed.
  Status voted(std::span<const StepVote> by_rank);
  void kept_updated();
  void updated();
  void published();

 private:
  void check(Next expected) const;
  void commit();

  StepTransaction& transaction_;
  StepTransaction* const kept_;
  const std::uint64_t generation_;
  Next next_ = Next::kCompute;
  CommitRecord record_;
};

}  // namespace troupe::train
