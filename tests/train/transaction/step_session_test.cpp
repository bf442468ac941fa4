#include "train/transaction/step_session.h"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::train::step_session_test {
namespace {

using Next = StepSession::Next;

struct Rank {
  Rank() { transaction.load(CommitRecord{}); }
  CommitRecord after(std::int64_t step) const {
    CommitRecord record;
    record.step = step;
    return record;
  }
  TransactionMemory memory{};
  StepTransaction transaction{memory};
};

TEST_CASE("a step is prepared before the votes, committed with all of them, then it stands") {
  Rank rank;
  StepSession session(rank.transaction, 3);
  CHECK(rank.transaction.position().begun == 1);
  REQUIRE(session.next() == Next::kCompute);
  session.computed(rank.after(1));
  CHECK(rank.transaction.position().phase == CommitPhase::kPrepared);
  REQUIRE(session.next() == Next::kVote);
  CHECK(session.vote().generation == 3);
  CHECK(session.vote().step == 1);
  REQUIRE(session.voted(std::vector<StepVote>{{3, 1}, {3, 1}}).ok());
  CHECK(rank.transaction.position().phase == CommitPhase::kCommitted);
  REQUIRE(session.next() == Next::kUpdate);
  session.updated();
  CHECK(rank.transaction.position().step == 1);
  CHECK(rank.transaction.position().phase == CommitPhase::kComputing);
  REQUIRE(session.next() == Next::kPublish);
  session.published();
  CHECK(session.next() == Next::kDone);
}

TEST_CASE("what is kept of another's state goes through a step's phases before the rank's own") {
  Rank own, kept;
  StepSession session(own.transaction, 3, &kept.transaction);
  session.computed(own.after(1));
  CHECK(kept.transaction.position().phase == CommitPhase::kPrepared);
  REQUIRE(session.voted(std::vector<StepVote>{{3, 1}, {3, 1}}).ok());
  REQUIRE(session.next() == Next::kUpdateKept);
  CHECK(kept.transaction.committed().step == 1);
  session.kept_updated();
  CHECK(kept.transaction.position().step == 1);
  CHECK(own.transaction.position().phase == CommitPhase::kCommitted);
  REQUIRE(session.next() == Next::kUpdate);
  session.updated();
  CHECK(own.transaction.position().step == 1);
}

TEST_CASE("a vote on another step, or of another generation, commits nothing") {
  for (const StepVote other : {StepVote{3, 2}, StepVote{2, 1}, StepVote{}}) {
    Rank rank;
    StepSession session(rank.transaction, 3);
    session.computed(rank.after(1));
    const Status voted = session.voted(std::vector<StepVote>{{3, 1}, other});
    CHECK(voted.code() == Code::kProtocol);
    CHECK(voted.message().starts_with("rank 1 gave its word on step "));
    CHECK(rank.transaction.position().phase == CommitPhase::kPrepared);
  }
}

TEST_CASE("a step that skips its update has nothing to publish") {
  Rank rank;
  StepSession session(rank.transaction, 1);
  CommitRecord record = rank.after(1);
  record.set_why("the loss is not finite");
  session.computed(record);
  REQUIRE(session.voted(std::vector<StepVote>{{1, 1}}).ok());
  session.updated();
  CHECK(session.next() == Next::kDone);
  CHECK(rank.transaction.record().skips());
}

}  // namespace
}  // namespace troupe::train::step_session_test
