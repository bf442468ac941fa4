// The state of a world of another size: who has it, and what is done with the step under way.

#include "train/transaction/hand_over_session.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

namespace troupe::train::hand_over_session_test {
namespace {

using Next = HandOverSession::Next;

CommitRecord record_of(std::int64_t step) { return {.step = step}; }

// A former world of three ranks, each with a state of its own, which the rank behind it keeps.
struct ThreeRanks {
  std::vector<std::unique_ptr<TransactionMemory>> memory;
  std::vector<StepTransaction> own, kept;

  ThreeRanks() {
    for (int i = 0; i < 6; ++i) memory.push_back(std::make_unique<TransactionMemory>());
    for (std::size_t rank = 0; rank < 3; ++rank) {
      own.emplace_back(*memory[rank]);
      kept.emplace_back(*memory[rank + 3]);
      own[rank].set_keeps(static_cast<int>((rank + 2) % 3));
      for (StepTransaction* state : {&own[rank], &kept[rank]}) state->load(record_of(4));
    }
  }
  void prepare(std::size_t rank) {
    for (StepTransaction* state : {&own[rank], &kept[rank]}) state->prepare(record_of(5));
  }
  void commit(std::size_t rank) {
    for (StepTransaction* state : {&own[rank], &kept[rank]}) state->commit(record_of(5));
  }
  // Of the present world's rank `self`, where `ranks` has each one's rank there.
  HandOverSession session(const std::vector<int>& ranks, int self) {
    const int there = ranks[static_cast<std::size_t>(self)];
    const auto at = static_cast<std::size_t>(there);
    return {
        ranks, {0, 1, 2}, self, there < 0 ? nullptr : &own[at], there < 0 ? nullptr : &kept[at]};
  }
  void meet(HandOverSession& session, const std::vector<int>& ranks) {
    std::vector<RankPosition> positions;
    std::vector<KeptPosition> copies;
    for (int self = 0; self < static_cast<int>(ranks.size()); ++self) {
      const HandOverSession one = this->session(ranks, self);
      positions.push_back(one.position());
      copies.push_back(one.kept_position());
    }
    session.met(positions, copies);
  }
};

TEST_CASE("each state is given by who owns it, or by who keeps it where that one is not there") {
  ThreeRanks former;
  // Its rank 1 is gone, and somebody who was not there has come.
  const std::vector<int> ranks{2, -1, 0};
  for (int self = 0; self < 3; ++self) {
    CAPTURE(self);
    HandOverSession session = former.session(ranks, self);
    former.meet(session, ranks);
    REQUIRE(session.next() == Next::kTake);
    CHECK(session.found());
    CHECK(session.step() == 4);
    CHECK(session.leader() == 2);
    const auto givers = session.givers();
    REQUIRE(givers.size() == 3);
    const auto has = [&](std::size_t i, int former_rank, int member, bool kept) {
      CHECK(givers[i].former_rank == former_rank);
      CHECK(givers[i].member == member);
      CHECK(givers[i].kept == kept);
    };
    has(0, 0, 2, false);
    has(1, 2, 0, false);
    has(2, 1, 0, true);
    session.taken();
    CHECK(session.next() == Next::kDone);
  }
}

TEST_CASE("where a state is in nobody's memory nothing is done") {
  ThreeRanks former;
  const std::vector<int> ranks{0, -1};
  HandOverSession session = former.session(ranks, 0);
  former.meet(session, ranks);
  CHECK(session.next() == Next::kDone);
  CHECK(!session.found());
}

TEST_CASE("a step that one has decided is finished by all, what is kept before what is owned") {
  ThreeRanks former;
  for (std::size_t rank = 0; rank < 3; ++rank) former.prepare(rank);
  former.commit(2);
  const std::vector<int> ranks{2, 0};
  HandOverSession decided = former.session(ranks, 0);
  HandOverSession behind = former.session(ranks, 1);
  former.meet(decided, ranks);
  former.meet(behind, ranks);
  for (HandOverSession* session : {&decided, &behind}) {
    REQUIRE(session->next() == Next::kShareRecord);
    CHECK(session->record_from() == 0);
    CHECK(session->step() == 5);
  }
  const CommitRecord record = decided.record();
  CHECK(record.step == 5);
  for (HandOverSession* session : {&decided, &behind}) {
    session->shared(record);
    REQUIRE(session->next() == Next::kUpdateKept);
    session->kept_updated();
    REQUIRE(session->next() == Next::kUpdate);
    session->updated();
    CHECK(session->next() == Next::kTake);
  }
  for (const std::size_t rank : {0, 2}) {
    CHECK(former.own[rank].position().step == 5);
    CHECK(former.kept[rank].position().step == 5);
  }
}

TEST_CASE("a step that nobody can have decided is given up, and that can be done again") {
  ThreeRanks former;
  former.prepare(0);
  const std::vector<int> ranks{0, 1, 2};
  for (int again = 0; again < 2; ++again) {
    HandOverSession session = former.session(ranks, 0);
    former.meet(session, ranks);
    REQUIRE(session.next() == Next::kTake);
    CHECK(session.step() == 4);
    CHECK(former.own[0].position().phase == CommitPhase::kComputing);
    CHECK(former.kept[0].position().phase == CommitPhase::kComputing);
  }
}

}  // namespace
}  // namespace troupe::train::hand_over_session_test
