// The communicator's state on its own: time is what the test says.

#include "train/cuda/communicator/communicator_state.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

using collective::Operation;
using std::chrono::seconds;

TimePoint at_second(int s) { return TimePoint{} + seconds(s); }

CommunicatorState formed_state() {
  CommunicatorState state(3, 7, "NCCL 2.28.9", at_second(0), seconds(60));
  state.formed();
  return state;
}

bool mentions(const Status& status, std::string_view words) {
  return status.message().find(words) != std::string::npos;
}

TEST_CASE("a group that does not form is told with what that usually comes from") {
  CommunicatorState state(3, 7, "NCCL 2.28.9", at_second(0), seconds(60));
  state.begins_forming("world", at_second(1), seconds(60));
  CHECK(state.phase() == CommunicatorState::Phase::kForming);
  CHECK_FALSE(state.overdue(at_second(60)));
  const auto overdue = state.overdue(at_second(61));
  REQUIRE(overdue);
  CHECK(overdue->code() == Code::kDeadlineExceeded);
  CHECK(mentions(*overdue, "not formed within 60 s (NCCL 2.28.9)"));
  CHECK(mentions(*overdue, "NCCL_SOCKET_IFNAME"));
  CHECK_FALSE(mentions(*overdue, "/dev/shm"));
  CHECK(overdue->context("group") == "world");
  CHECK(overdue->context("rank") == "3");
  CHECK(overdue->context("generation") == "7");
  state.formed();
  CHECK(state.phase() == CommunicatorState::Phase::kReady);
  CHECK_FALSE(state.overdue(at_second(1000)));
}

TEST_CASE("an operation's time begins when it is the oldest") {
  CommunicatorState state = formed_state();
  const auto first = state.begin({Operation::kAllGather, "shard", 1}, seconds(10), at_second(0));
  const auto second = state.begin({Operation::kAllReduce, "shard", 2}, seconds(10), at_second(1));
  CHECK(*first == 1);
  CHECK(*second == 2);
  CHECK(state.phase() == CommunicatorState::Phase::kOperating);
  CHECK_FALSE(state.overdue(at_second(9)));
  CHECK(state.overdue(at_second(10)));
  state.completed(1, at_second(9));
  CHECK_FALSE(state.overdue(at_second(18)));
  const auto overdue = state.overdue(at_second(19));
  REQUIRE(overdue);
  CHECK(mentions(*overdue, "all_reduce did not end within 10 s"));
  CHECK(overdue->context("operation") == "all_reduce");
  CHECK(overdue->context("group") == "shard");
  CHECK(overdue->context("sequence") == "2");
  state.completed(2, at_second(20));
  CHECK(state.phase() == CommunicatorState::Phase::kReady);
  CHECK(state.completed_number() == 2);
}

TEST_CASE("causes follow from what failed") {
  CommunicatorState state = formed_state();
  const Status found(Code::kAborted, "unhandled system error");
  (void)state.begin({Operation::kAllGather, "shard", 1}, seconds(10), at_second(0));
  const Status first = state.explained(found);
  CHECK(mentions(first, "unhandled system error (NCCL 2.28.9)"));
  CHECK(mentions(first, "NCCL_P2P_DISABLE=1"));
  CHECK(mentions(first, "--shm-size"));
  state.launched(1);
  state.completed(1, at_second(1));
  (void)state.begin({Operation::kAllGather, "shard", 2}, seconds(10), at_second(2));
  state.launched(2);
  const Status later = state.explained(found);
  CHECK(mentions(later, "a rank that died or hangs"));
  CHECK_FALSE(mentions(later, "--shm-size"));
  // What was not of NCCL's making is only placed.
  CHECK(state.located(found).message() == "unhandled system error");
  CHECK(state.located(found).context("sequence") == "2");
  state.completed(2, at_second(3));
  // Another group makes connections of its own.
  (void)state.begin({Operation::kAllGather, "replicate", 1}, seconds(10), at_second(4));
  CHECK(mentions(state.explained(found), "--shm-size"));
}

TEST_CASE("the first reason stays, is told once in its own words and then as an abort") {
  CommunicatorState state = formed_state();
  (void)state.begin({Operation::kBroadcast, "world", 1}, seconds(10), at_second(0));
  const Status reason =
      Status(Code::kDeadlineExceeded, "too late").with("lost_rank", 2).with("peer", 2);
  CHECK(state.abort(reason));
  CHECK_FALSE(state.abort(Status(Code::kInternal, "another")));
  CHECK(state.phase() == CommunicatorState::Phase::kAborted);
  CHECK_FALSE(state.overdue(at_second(100)));
  CHECK(state.aborted_status(true) == reason);
  for (const bool waited : {true, false}) {
    const Status later = state.aborted_status(waited);
    CHECK(later.code() == Code::kAborted);
    CHECK(mentions(later, "too late"));
    CHECK(later.context("lost_rank") == "2");
    CHECK(later.context("generation") == "7");
  }
  CHECK(
      state.begin({Operation::kBroadcast, "world", 2}, seconds(10), at_second(0)).status().code() ==
      Code::kAborted);
}

TEST_CASE("an abort that was asked for is an abort for everybody") {
  CommunicatorState state = formed_state();
  CHECK(state.abort_on_request(Status(Code::kCancelled, "a death elsewhere")));
  CHECK_FALSE(state.abort_on_request(Status(Code::kCancelled, "again")));
  CHECK(state.aborted_status(true).code() == Code::kAborted);
  CHECK(mentions(state.aborted_status(true), "a death elsewhere"));
}

TEST_CASE("after the end operations are refused") {
  CommunicatorState state = formed_state();
  state.end();
  CHECK(state.phase() == CommunicatorState::Phase::kEnded);
  const auto refused = state.begin({Operation::kBarrier, "world", 1}, seconds(1), at_second(0));
  CHECK(refused.status().code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::train
