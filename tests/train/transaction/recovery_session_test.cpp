#include "train/transaction/recovery_session.h"

#include <doctest/doctest.h>

#include <vector>

#include "train/transaction/step_session.h"

namespace troupe::train::recovery_session_test {
namespace {

using Kind = RecoveryDecision::Kind;
using Next = RecoverySession::Next;

CommitRecord record_of(std::int64_t step) {
  CommitRecord record;
  record.step = step;
  record.loss = static_cast<double>(step);
  return record;
}

// A rank's memory with step 4 finished and step 5 in `phase`.
struct Rank {
  explicit Rank(CommitPhase phase = CommitPhase::kComputing) {
    transaction.load(record_of(4));
    transaction.begin_generation(1);
    StepSession step(transaction, 1);
    if (phase == CommitPhase::kComputing) return;
    step.computed(record_of(5));
    if (phase == CommitPhase::kCommitted) CHECK(step.voted({}).ok());
  }
  RankPosition position() const { return transaction.position(); }
  TransactionMemory memory{};
  StepTransaction transaction{memory};
};

TEST_CASE("a step that nobody committed is given up, and parameters are published") {
  Rank computing;
  Rank prepared(CommitPhase::kPrepared);
  RecoverySession session(prepared.transaction, 1);
  REQUIRE(session.join(2).ok());
  REQUIRE(session.next() == Next::kMeet);
  CHECK(session.position().phase == CommitPhase::kPrepared);
  session.met({std::vector{computing.position(), prepared.position()}});
  CHECK(session.decision().kind == Kind::kDiscard);
  CHECK(session.decision().recomputes == 5);
  CHECK_FALSE(session.finishes_step());
  CHECK(prepared.position().phase == CommitPhase::kComputing);
  REQUIRE(session.next() == Next::kPublish);
  session.published();
  CHECK(session.next() == Next::kDone);
}

TEST_CASE("who is behind commits the record of who is ahead, and finishes the step") {
  Rank prepared(CommitPhase::kPrepared);
  Rank ahead(CommitPhase::kCommitted);
  ahead.transaction.finish();
  StepSession(ahead.transaction, 1).computed(record_of(6));
  const std::vector positions{prepared.position(), ahead.position()};

  RecoverySession first(prepared.transaction, 0);
  RecoverySession second(ahead.transaction, 1);
  for (RecoverySession* session : {&first, &second}) {
    REQUIRE(session->join(2).ok());
    session->met({positions});
    REQUIRE(session->next() == Next::kShareRecord);
  }
  CHECK(first.finishes_step());
  CHECK_FALSE(second.finishes_step());
  const CommitRecord shared = second.record();
  CHECK(shared.step == 5);

  first.shared(shared);
  REQUIRE(first.next() == Next::kUpdate);
  CHECK(prepared.transaction.committed().loss == 5);
  first.updated();
  CHECK(first.next() == Next::kPublish);
  CHECK(prepared.position().step == 5);

  second.shared(shared);
  CHECK(second.next() == Next::kPublish);
  // Its own step had been decided nowhere.
  CHECK(ahead.position().step == 5);
  CHECK(ahead.position().phase == CommitPhase::kComputing);
}

TEST_CASE("the record is the committed one where nobody is ahead") {
  Rank committed(CommitPhase::kCommitted);
  RecoverySession session(committed.transaction, 0);
  REQUIRE(session.join(2).ok());
  session.met({std::vector{committed.position()}});
  CHECK(session.record().step == 5);
  CHECK(session.finishes_step());
  session.shared(session.record());
  REQUIRE(session.next() == Next::kUpdate);
  session.updated();
  CHECK(committed.position().step == 5);
}

TEST_CASE("a load empties the memory first, and the update's log is forgotten before it counts") {
  Rank rank(CommitPhase::kPrepared);
  RecoverySession session(rank.transaction, 0);
  REQUIRE(session.join(2).ok());
  session.met({std::vector{rank.position(), RankPosition{}}});
  CHECK_FALSE(rank.position().loaded);
  REQUIRE(session.next() == Next::kLoad);
  session.loaded(record_of(3));
  REQUIRE(session.next() == Next::kForgetUpdates);
  CHECK_FALSE(rank.position().loaded);
  session.updates_forgotten();
  REQUIRE(session.next() == Next::kPublish);
  CHECK(rank.position().step == 3);
}

TEST_CASE("a state is copied once its source's step stands, and counts when all of it is there") {
  Rank committed(CommitPhase::kCommitted);
  TransactionMemory empty{};
  StepTransaction lost(empty);
  const std::vector positions{committed.position(), lost.position()};
  const std::vector<int> replicas{0, 0};
  RecoverySession source(committed.transaction, 0);
  RecoverySession taker(lost, 1);
  for (RecoverySession* session : {&source, &taker}) {
    REQUIRE(session->join(2).ok());
    session->met({positions, replicas});
    REQUIRE(session->next() == Next::kShareRecord);
  }
  CHECK(source.copies_from() == -1);
  CHECK(taker.copies_from() == 0);
  source.shared(source.record());
  REQUIRE(source.next() == Next::kUpdate);
  source.updated();
  REQUIRE(source.next() == Next::kCopy);
  taker.shared(record_of(5));
  CHECK_FALSE(taker.finishes_step());
  REQUIRE(taker.next() == Next::kCopy);

  const CommitRecord record = committed.transaction.record();
  CHECK(record.step == 5);
  source.copied({});
  CHECK(source.next() == Next::kPublish);
  taker.copied(record);
  REQUIRE(taker.next() == Next::kForgetUpdates);
  CHECK_FALSE(lost.position().loaded);
  taker.updates_forgotten();
  CHECK(taker.next() == Next::kPublish);
  CHECK(lost.position().step == 5);
}

TEST_CASE("a step that all who are left had prepared has its record in their memory") {
  Rank prepared(CommitPhase::kPrepared);
  RecoverySession session(prepared.transaction, 0);
  REQUIRE(session.join(2).ok());
  session.met({std::vector{prepared.position(), RankPosition{}}, std::vector{0, 0}});
  REQUIRE(session.next() == Next::kShareRecord);
  CHECK(session.finishes_step());
  CHECK(session.record().loss == 5);
}

TEST_CASE("what a rank keeps of another's state goes the rank's way, each time before it") {
  Rank own(CommitPhase::kCommitted);
  Rank kept(CommitPhase::kPrepared);
  TransactionMemory empty{};
  StepTransaction lost(empty);
  const std::vector positions{own.position(), lost.position()};
  const std::vector<KeptPosition> copies{{1, kept.position()}, {}};
  const std::vector<int> to_keep{1, 0};
  RecoverySession keeper(own.transaction, 0, &kept.transaction);
  RecoverySession taker(lost, 1);
  for (RecoverySession* session : {&keeper, &taker}) {
    REQUIRE(session->join(2).ok());
    session->met({positions, {}, copies}, to_keep);
    CHECK(session->renews() == std::vector{false, true});
  }
  CHECK(taker.copies_from() == 0);
  CHECK(taker.copies_kept());
  keeper.shared(keeper.record());
  REQUIRE(keeper.next() == Next::kUpdateKept);
  CHECK(kept.position().phase == CommitPhase::kCommitted);
  keeper.kept_updated();
  CHECK(kept.position().step == 5);
  REQUIRE(keeper.next() == Next::kUpdate);
  CHECK(own.position().step == 4);
  keeper.updated();
  REQUIRE(keeper.next() == Next::kCopy);
  keeper.copied({});
  taker.shared(record_of(5));
  taker.copied(kept.transaction.record());
  taker.updates_forgotten();
  // What the lost machine kept is made again, once all have their own.
  TransactionMemory renewed{};
  StepTransaction anew(renewed);
  REQUIRE(keeper.next() == Next::kRenew);
  REQUIRE(taker.next() == Next::kRenew);
  keeper.renewed(nullptr);
  taker.renewed(&anew);
  CHECK(anew.position().step == 5);
  CHECK(anew.record().loss == 5);
  CHECK(taker.next() == Next::kPublish);
}

TEST_CASE("what is kept of a state that all load anew is empty until it is written again") {
  Rank own;
  Rank kept;
  RecoverySession session(own.transaction, 0, &kept.transaction);
  REQUIRE(session.join(2).ok());
  session.met({std::vector{own.position(), RankPosition{}},
               {},
               std::vector<KeptPosition>{{1, RankPosition{}}, {}}},
              std::vector{1, 0});
  REQUIRE(session.next() == Next::kLoad);
  CHECK_FALSE(kept.position().loaded);
  session.loaded(record_of(3));
  session.updates_forgotten();
  REQUIRE(session.next() == Next::kRenew);
  session.renewed(&kept.transaction);
  CHECK(kept.position().step == 3);
  CHECK(session.next() == Next::kPublish);
}

TEST_CASE("memory that was in a generation does not join it again") {
  Rank rank;
  CHECK(RecoverySession(rank.transaction, 0).join(2).ok());
  for (const std::uint64_t generation : {1, 2}) {
    const Status joined = RecoverySession(rank.transaction, 0).join(generation);
    CHECK(joined.code() == Code::kAborted);
  }
  CHECK(RecoverySession(rank.transaction, 0).join(3).ok());
}

}  // namespace
}  // namespace troupe::train::recovery_session_test
