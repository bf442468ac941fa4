#pragma once
// What a trainer's process knows of generations: which plans came, which one is in work, which are
// aborted, and what is told to the controller of it: pure. The trainer calls it under its lock, the
// simulator in virtual time.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "train/trainer/trainer_messages.h"
#include "train/transaction/step_transaction.h"

namespace troupe::train {

class GenerationQueue {
 public:
  // `self`: the trainer's actor. `rank`: the one it begins with, -1: a spare.
  GenerationQueue(ActorId self, std::int32_t rank) : self_(self), rank_(rank) {}

  // A plan came. False: it had come before, or is older. A controller that takes the run over says
  // again what the one before it may have said.
  bool begin(GenerationPlan plan);

  struct Aborted {
    // The trainer has left that generation already: to be told, since a controller that takes the
    // run over may not know what was told to the one before it.
    std::optional<TrainerStopped> left_before;
    // The generation in work is to be left now, for this reason.
    std::optional<Status> leave;
  };
  // This generation and all older ones are lost.
  Aborted abort(std::uint64_t generation, Status reason);

  // A plan waits for its turn.
  bool waiting() const { return !plans_.empty(); }
  // The plan whose turn it is; with it begins the generation in work. There must be one waiting.
  GenerationPlan next();
  // Of the generation in work, or of the last one; what the trainer began with before the first.
  std::int32_t rank() const { return rank_; }
  // The generation in work; 0: none.
  std::uint64_t running() const { return running_; }
  // Why the generation in work is to be left; ok: it is not.
  Status cancelled() const;

  struct Departure {
    TrainerMessage message;
    // When the collectives of the generation are aborted, so that no peer waits for a rank that has
    // left: before the message is told, or once it has arrived, so that the cause is heard before
    // the peers tell that they lost this rank, which explains nothing. They need not be where all
    // leave.
    enum class Peers : std::uint8_t { kLeaveToo, kAbortAtOnce, kAbortOnceTold };
    Peers peers = Peers::kLeaveToo;
    Status cause;  // for the peers
  };
  // The generation in work ended as `ended` says. `can_begin_again`: the process can take part in
  // another one. `reached`: how far it came in this one.
  Departure leave(Status ended, bool can_begin_again, Reached reached);

  // What the trainer answers when it is asked; the rest of `process` is as it was given.
  TrainerStatus status(TrainerStatus process) const;

 private:
  std::int32_t rank_in(const GenerationPlan& plan) const;

  const ActorId self_;
  std::int32_t rank_;
  std::deque<GenerationPlan> plans_;
  std::uint64_t newest_ = 0;  // of the plans that came
  std::int32_t newest_rank_ = -1;
  World newest_world_;  // and those before it
  std::vector<World> newest_former_;
  std::uint64_t running_ = 0;
  Reached reached_ = Reached::kNoStep;  // in the last one that was left
  std::uint64_t aborted_ = 0;           // all generations up to this are
  Status abort_reason_;
};

// How far a rank came in a generation that it entered after `loaded_step`, by where its state is.
Reached reached_from(std::int64_t loaded_step, const RankPosition& position);

// By rank of `present`: the rank that its trainer had in the world `former`; −1: none.
std::vector<int> ranks_there(const World& former, const World& present);

}  // namespace troupe::train
