#pragma once
// The order in which the ranks of a world bring what they hold of a former world to the step that
// stands there, and who of them has each of its states to give: pure. Trainer and simulator do what
// next() names, then say how it went; the calls of the transactions are made here.
//
//   kMeet → met() ┬ some state is in nobody's memory: kDone, and found() is false
//                 ├ all discard ─────────────────────────────────────────────────────┐
//                 └ kShareRecord → shared() → kUpdateKept → kept_updated()            ┤
//                                                             → kUpdate → updated() ──┤
//                                                                   kTake → taken() → kDone
//
// It is a recovery of that world by those of its ranks that are there (recovery_session.h), in
// which nobody takes a state over: what they hold of it stays as it is, so that the same can be
// done once more whoever is lost meanwhile.

#include <span>
#include <vector>

#include "train/transaction/recovery.h"

namespace troupe::train {

class HandOverSession {
 public:
  enum class Next : std::uint8_t {
    kMeet,         // gather position() and kept_position() from all ranks of the present world
    kShareRecord,  // broadcast record() from record_from() to all
    kUpdateKept,   // what is left of the optimizer phase of the state that this rank kept there
    kUpdate,       // … and of its own
    kTake,         // each rank takes what it is to have of the states that givers() have
    kDone,
  };
  // Who hands over one of the distinct states.
  struct Giver {
    int former_rank = -1;  // whose state it is
    int member = -1;       // who has it, by rank of the present world
    bool kept = false;     // as a copy
  };

  // `ranks`, by rank of the present world: its rank there; −1: it was not there. `states`, by rank
  // there: those with equal numbers hold the same. `self`: of the present world. `own`, `kept`:
  // what this rank holds of that world; null: nothing. Both outlive it.
  HandOverSession(std::vector<int> ranks, std::vector<int> states, int self, StepTransaction* own,
                  StepTransaction* kept);

  Next next() const { return next_; }
  RankPosition position() const { return own_ ? own_->position() : RankPosition(); }
  KeptPosition kept_position() const;
  // After each action but kDone, the function of its name; any other is a bug. Positions are by
  // rank of the present world.
  void met(std::span<const RankPosition> positions, std::span<const KeptPosition> kept);
  // From kMeet on: whether all of that world's state is in somebody's memory.
  bool found() const { return decision_.kind != RecoveryDecision::Kind::kLoad; }
  const RecoveryDecision& decision() const { return decision_; }
  // The step that stands there.
  std::int64_t step() const;
  // Who has the record of the step that is finished, by rank of the present world.
  int record_from() const { return member_of(decision_.record_rank); }
  // On record_from().
  const CommitRecord& record() const { return decided_record(decision_, *own_); }
  void shared(const CommitRecord& record);
  void kept_updated();
  void updated();
  std::vector<Giver> givers() const;
  // Who has the state of rank 0 there, and with it what is written of the run.
  int leader() const;
  void taken();

  // The rank of the present world that had this one there; −1: it is not there.
  int member_of(int former_rank) const { return members_[static_cast<std::size_t>(former_rank)]; }
  // Whether that rank's own memory is good to go on from, as far as it is there.
  bool usable(int former_rank) const {
    return decision_.copies_from.empty() ||
           decision_.copies_from[static_cast<std::size_t>(former_rank)] < 0;
  }

 private:
  void check(Next expected) const;
  void after_kept();
  void stand();

  const std::vector<int> states_;
  std::vector<int> members_;  // by rank there
  const int rank_;            // of this one, there
  StepTransaction* own_;
  StepTransaction* kept_;
  Next next_ = Next::kMeet;
  RecoveryDecision decision_;
  bool behind_ = false;
  bool kept_behind_ = false;
};

}  // namespace troupe::train
