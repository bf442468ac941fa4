#pragma once
// The order in which a rank brings its memory into a new generation: pure. Trainer and simulator do
// what next() names, then say how it went; the calls of the transaction are made here.
//
//   join() → kMeet → met() ┬ all discard ─────────────────────────────────────────┐
//                          ├ kShareRecord → shared() ┬ behind: kUpdate → updated() ┤
//                          │                         └ not behind ────────────────┤
//                          │        where some rank lost its state: kCopy → copied()┤
//                          └ kLoad → loaded() ┐                                     │
//    that rank and all that load: kForgetUpdates → updates_forgotten() ─────────────┤
//                                                          kPublish → published() → kDone

#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "train/transaction/recovery.h"

namespace troupe::train {

class RecoverySession {
 public:
  enum class Next : std::uint8_t {
    kMeet,           // gather position() from all ranks
    kShareRecord,    // broadcast record() from decision().record_rank to all
    kUpdate,         // what is left of the optimizer phase of the transaction's committed step
    kCopy,           // tensors and record of decision().copies_from[rank] to each rank that has one
    kLoad,           // tensors and their record from the same source on all ranks
    kForgetUpdates,  // all marks in the update's log
    kPublish,        // owners' parameters to all ranks: they may not have reached all
    kDone,
  };

  // `transaction` outlives it.
  RecoverySession(StepTransaction& transaction, int rank)
      : transaction_(transaction), rank_(rank) {}

  // Before anything else. kAborted where the memory has been in this generation or a later one: the
  // others may have acted on the position that an earlier process of the rank told in it.
  Status join(std::uint64_t generation);
  Next next() const { return next_; }
  // Where this rank's memory stands.
  RankPosition position() const { return transaction_.position(); }
  // After each action but kDone, the function of its name; any other is a bug. What was under way
  // in memory is given up here, unless it is to be finished. `replicas` as decide_recovery has it.
  void met(std::span<const RankPosition> by_rank, std::span<const int> replicas = {});
  // From kMeet on.
  const RecoveryDecision& decision() const { return decision_; }
  // This rank finishes a step that was left behind.
  bool finishes_step() const { return behind_; }
  // Whose state this rank takes over; −1: it has its own.
  int copies_from() const {
    return decision_.copies_from.empty() ? -1
                                         : decision_.copies_from[static_cast<std::size_t>(rank_)];
  }
  // On decision().record_rank: the record of the step that was decided.
  const CommitRecord& record() const;
  void shared(const CommitRecord& record);
  void updated();
  // `record`: of the rank whose state this one took over; for the others it means nothing.
  void copied(const CommitRecord& record);
  // The tensors are those of record.step.
  void loaded(const CommitRecord& record);
  void updates_forgotten();
  void published();

 private:
  void check(Next expected) const;
  void stand();

  StepTransaction& transaction_;
  const int rank_;
  Next next_ = Next::kMeet;
  RecoveryDecision decision_;
  bool behind_ = false;
  CommitRecord loaded_;
};

}  // namespace troupe::train
