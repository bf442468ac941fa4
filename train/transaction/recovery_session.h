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
//       where what buddies keep is missing or another's than planned: kRenew → renewed()
//                                                          kPublish → published() → kDone
//
// What this rank keeps of another's state goes the same way, each time before its own.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "train/transaction/recovery.h"

namespace troupe::train {

class RecoverySession {
 public:
  enum class Next : std::uint8_t {
    kMeet,         // gather position() from all ranks
    kShareRecord,  // broadcast record() from decision().record_rank to all
    kUpdateKept,   // what is left of the same phase as below, of the state that this rank keeps
    kUpdate,       // what is left of the optimizer phase of the transaction's committed step
    kCopy,         // tensors and record from decision().copies_from[rank] to each rank that has one
    kLoad,         // tensors and their record from the same source on all ranks
    kForgetUpdates,  // all marks in the update's log
    kRenew,          // tensors of each rank r with renews(r) from the state's owner
    kPublish,        // owners' parameters to all ranks: they may not have reached all
    kDone,
  };

  // `kept`: of the state that this rank keeps of another, null: of none. Both outlive it.
  RecoverySession(StepTransaction& transaction, int rank, StepTransaction* kept = nullptr)
      : transaction_(transaction), kept_(kept), rank_(rank) {}

  // Before anything else. kAborted where the memory has been in this generation or a later one: the
  // others may have acted on the position that an earlier process of the rank told in it.
  Status join(std::uint64_t generation);
  Next next() const { return next_; }
  // Where this rank's memory stands.
  RankPosition position() const { return transaction_.position(); }
  // After each action but kDone, the function of its name; any other is a bug. What was under way
  // in memory is given up here, unless it is to be finished. `to_keep`, by rank: whose state it is
  // to keep from now on (BuddyPlan::kept).
  void met(const Memories& memories, std::span<const int> to_keep = {});
  // From kMeet on.
  const RecoveryDecision& decision() const { return decision_; }
  // This rank finishes a step that was left behind.
  bool finishes_step() const { return behind_; }
  // Whose state this rank takes over; −1: it has its own.
  int copies_from() const {
    return decision_.copies_from.empty() ? -1
                                         : decision_.copies_from[static_cast<std::size_t>(rank_)];
  }
  // It takes what that one keeps of it, not its own state.
  bool copies_kept() const {
    return copies_from() >= 0 && decision_.copies_kept[static_cast<std::size_t>(rank_)];
  }
  // By rank: whether what it keeps is written anew, from the owner's state; empty: nobody's is.
  const std::vector<bool>& renews() const { return renews_; }
  // On decision().record_rank: the record of the step that was decided.
  const CommitRecord& record() const;
  void shared(const CommitRecord& record);
  void kept_updated();
  void updated();
  // `record`: of the rank whose state this one took over; for the others it means nothing.
  void copied(const CommitRecord& record);
  // The tensors are those of record.step.
  void loaded(const CommitRecord& record);
  void updates_forgotten();
  // `kept`: of what this rank keeps from now on, written and with no marks in its log; null where
  // it was not written.
  void renewed(StepTransaction* kept);
  void published();

 private:
  void check(Next expected) const;
  void after_kept();
  void stand();
  void complete();

  StepTransaction& transaction_;
  StepTransaction* kept_;
  const int rank_;
  Next next_ = Next::kMeet;
  RecoveryDecision decision_;
  bool behind_ = false;
  bool kept_behind_ = false;
  std::vector<bool> renews_;
  CommitRecord loaded_;
};

}  // namespace troupe::train
