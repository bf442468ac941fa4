#include "train/trainer/generation_queue.h"

#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train::generation_queue_test {
namespace {

using Peers = GenerationQueue::Departure::Peers;

const Status kLost(Code::kAborted, "rank 1 died");

struct Trainer {
  explicit Trainer(std::int32_t rank = 0) : queue(self, rank) {}
  // Of three trainers; this one has `rank`.
  GenerationPlan plan(std::uint64_t generation, std::size_t rank = 0) {
    GenerationPlan plan{.generation = generation};
    for (std::size_t i = 0; i < 3; ++i)
      plan.ranks.push_back(i == rank ? self : ActorId::make(random));
    return plan;
  }
  SeededRandom random{1};
  ActorId self = ActorId::make(random);
  GenerationQueue queue;
};

TEST_CASE("plans have their turn in their order, each once") {
  Trainer trainer;
  CHECK_FALSE(trainer.queue.waiting());
  CHECK(trainer.queue.begin(trainer.plan(1)));
  CHECK_FALSE(trainer.queue.begin(trainer.plan(1)));
  CHECK(trainer.queue.begin(trainer.plan(3, 2)));
  CHECK_FALSE(trainer.queue.begin(trainer.plan(2)));
  CHECK(trainer.queue.next().generation == 1);
  CHECK(trainer.queue.running() == 1);
  CHECK(trainer.queue.rank() == 0);
  trainer.queue.leave({}, true, Reached::kNoStep);
  CHECK(trainer.queue.next().generation == 3);
  CHECK(trainer.queue.rank() == 2);
  CHECK_FALSE(trainer.queue.waiting());
}

TEST_CASE("an abort ends the generation in work and waiting ones up to it, and no later one") {
  Trainer trainer;
  trainer.queue.begin(trainer.plan(1));
  trainer.queue.begin(trainer.plan(2));
  trainer.queue.begin(trainer.plan(3));
  trainer.queue.next();
  CHECK(trainer.queue.cancelled().ok());
  const auto aborted = trainer.queue.abort(2, kLost);
  CHECK_FALSE(aborted.left_before);
  REQUIRE(aborted.leave);
  CHECK(aborted.leave->message() == kLost.message());
  CHECK_FALSE(trainer.queue.cancelled().ok());
  // Said again it changes nothing.
  CHECK_FALSE(trainer.queue.abort(2, kLost).leave);
  trainer.queue.leave(kLost, true, Reached::kNoStep);
  trainer.queue.next();
  CHECK(trainer.queue.cancelled().message() == kLost.message());
  trainer.queue.leave(kLost, true, Reached::kNoStep);
  trainer.queue.next();
  CHECK(trainer.queue.cancelled().ok());
}

TEST_CASE("an abort without a reason is left with one all the same") {
  Trainer trainer;
  trainer.queue.begin(trainer.plan(1));
  trainer.queue.next();
  const auto aborted = trainer.queue.abort(1, Status());
  REQUIRE(aborted.leave);
  CHECK(aborted.leave->code() == Code::kAborted);
}

TEST_CASE("whoever aborts a generation that was left is told that it was, each time") {
  Trainer trainer;
  trainer.queue.begin(trainer.plan(4, 1));
  CHECK_FALSE(trainer.queue.abort(3, kLost).left_before);
  trainer.queue.next();
  CHECK_FALSE(trainer.queue.abort(4, kLost).left_before);
  trainer.queue.leave(kLost, true, Reached::kNoStep);
  for (int times = 0; times < 2; ++times) {
    const auto aborted = trainer.queue.abort(4, kLost);
    REQUIRE(aborted.left_before);
    CHECK(aborted.left_before->rank == 1);
    CHECK(aborted.left_before->generation == 4);
    CHECK_FALSE(aborted.leave);
  }
  trainer.queue.begin(trainer.plan(5));
  CHECK_FALSE(trainer.queue.abort(4, kLost).left_before);
}

TEST_CASE("how a generation ended is what the controller is told, and when the peers are") {
  struct Row {
    Status ended;
    bool can_begin_again;
    bool aborted;
    bool (*is)(const TrainerMessage&);
    Peers peers;
  };
  const auto is_finished = [](const TrainerMessage& m) {
    return std::holds_alternative<TrainerFinished>(m);
  };
  const auto is_saved = [](const TrainerMessage& m) {
    return std::holds_alternative<TrainerSaved>(m) && std::get<TrainerSaved>(m).step == 7;
  };
  const auto is_stopped = [](const TrainerMessage& m) {
    return std::holds_alternative<TrainerStopped>(m);
  };
  const auto is_failed = [](const TrainerMessage& m) {
    return std::holds_alternative<TrainerFailed>(m);
  };
  const Status own(Code::kDataLoss, "the checkpoint is damaged");
  const Row rows[] = {
      {{}, true, false, is_finished, Peers::kLeaveToo},
      {{}, true, true, is_finished, Peers::kLeaveToo},
      {saved_stop(7), true, false, is_saved, Peers::kLeaveToo},
      {kLost, true, false, is_stopped, Peers::kAbortAtOnce},
      {kLost, false, false, is_failed, Peers::kAbortOnceTold},
      {own, true, false, is_failed, Peers::kAbortOnceTold},
      // Whatever an abort makes of what was under way is no failure of this rank's.
      {own, true, true, is_stopped, Peers::kAbortAtOnce},
      {own, false, true, is_failed, Peers::kAbortOnceTold},
  };
  for (const Row& row : rows) {
    CAPTURE(row.ended.to_string());
    Trainer trainer;
    trainer.queue.begin(trainer.plan(1));
    trainer.queue.next();
    if (row.aborted) trainer.queue.abort(1, kLost);
    const auto departure = trainer.queue.leave(row.ended, row.can_begin_again, Reached::kStep);
    CHECK(row.is(departure.message));
    CHECK(departure.peers == row.peers);
    CHECK(trainer.queue.running() == 0);
  }
}

// A controller that lost its memory asks: the rank must be that of the plan that it names.
TEST_CASE("a trainer that is asked says where its newest plan puts it, before its turn too") {
  Trainer spare(-1);
  CHECK(spare.queue.status({.step = 5}).rank == -1);
  CHECK(spare.queue.status({.step = 5}).step == 5);
  CHECK_FALSE(spare.queue.status({}).in_generation);
  spare.queue.begin(spare.plan(6, 2));
  TrainerStatus status = spare.queue.status({});
  CHECK(status.generation == 6);
  CHECK(status.rank == 2);
  CHECK(status.in_generation);
  CHECK(spare.queue.rank() == -1);
  spare.queue.next();
  CHECK(spare.queue.status({}).in_generation);
  spare.queue.leave(kLost, true, Reached::kNoStep);
  status = spare.queue.status({});
  CHECK(status.generation == 6);
  CHECK(status.rank == 2);
  CHECK_FALSE(status.in_generation);
}

}  // namespace
}  // namespace troupe::train::generation_queue_test
