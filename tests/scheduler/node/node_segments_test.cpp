// Memory that outlives processes: who may put, take over and read it, and when it goes.

#include <doctest/doctest.h>

#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

struct SegmentFixture : NodeDriver {
  JobId job{7, 7};
  SegmentFixture() { join(); }

  HostId run_in(JobId of, std::uint64_t n, std::uint64_t generation = 1) {
    auto start = start_message(n, generation);
    start.spec.job_id = of;
    start.spec.restart = {.max_restarts = 3, .backoff_max_ms = 2000};
    apply(node_event::FromHead{start});
    return spawned();
  }
  HostId run_in_job(std::uint64_t n, std::uint64_t generation = 1) {
    return run_in(job, n, generation);
  }
  FdHandle keep(HostId host, const std::string& name) {
    const FdHandle handle = fd();
    apply(node_event::FromHost{host, wire::HostKeepSegment{name, false}, handle});
    return handle;
  }
  void ask(HostId host, const std::string& name, std::int64_t timeout_ms = 5000,
           std::uint64_t request_id = 1) {
    apply(node_event::FromHost{host, wire::HostAttachSegment{request_id, name, timeout_ms}});
  }
  // What the last apply() answered, and with which descriptor.
  const node_command::TellHost* answer() const {
    for (const auto& command : last) {
      const auto* tell = get_if<node_command::TellHost>(&command);
      if (tell && holds_alternative<wire::HostAttachReply>(tell->message)) return tell;
    }
    return nullptr;
  }
  Code answered() const {
    REQUIRE(answer());
    return get<wire::HostAttachReply>(answer()->message).status.code();
  }
  void kill(std::uint64_t n, bool comes_back) {
    apply(node_event::FromHead{wire::StopActor{ActorId{1, n}, 1, 0, "x", comes_back}});
  }
};

TEST_CASE("a segment goes on when the exit of its owner's whole group was seen") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId spare = f.run_in_job(2);
  const FdHandle state = f.keep(owner, "rank-0/state");
  f.ask(spare, "rank-0/state");
  CHECK(f.answered() == Code::kFailedPrecondition);  // at once: the owner runs
  f.kill(1, true);
  f.ask(spare, "rank-0/state");
  CHECK(!f.answer());
  f.leader_ends(owner);
  CHECK(!f.answer());
  f.group_goes(owner);
  CHECK(f.answered() == Code::kOk);
  CHECK(f.answer()->host == spare);
  CHECK(f.answer()->fd == state);
  // The spare is the owner now: nobody else's, and its own at any time.
  const HostId next = f.run_in_job(1, 2);
  f.ask(next, "rank-0/state");
  CHECK(f.answered() == Code::kFailedPrecondition);
  f.ask(spare, "rank-0/state", 5000, 2);
  CHECK(f.answered() == Code::kOk);
}

TEST_CASE("an owner that ends by itself is waited for, up to the deadline") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId other = f.run_in_job(2);
  f.keep(owner, "a");
  f.apply(node_event::ChannelEnded{owner, error(Code::kUnavailable, "closed")});
  f.ask(other, "a", 1000);
  CHECK(!f.answer());
  f.ask(other, "a", 500);  // the same question again, not a second one
  REQUIRE(f.state.next_deadline());
  CHECK(*f.state.next_deadline() == f.clock.now() + 500ms);
  f.advance(499ms);
  CHECK(!f.answer());
  f.advance(1ms);
  CHECK(f.answered() == Code::kDeadlineExceeded);
  f.advance(1s);
  CHECK(!f.answer());
  f.end(owner);
  f.ask(other, "a");
  CHECK(f.answered() == Code::kOk);
}

TEST_CASE("two that wait for one segment: the first gets it") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId first = f.run_in_job(2);
  const HostId second = f.run_in_job(3);
  f.keep(owner, "a");
  f.kill(1, true);
  f.ask(first, "a");
  f.ask(second, "a");
  f.end(owner);
  std::vector<std::pair<HostId, Code>> answers;
  for (const auto& command : f.last) {
    const auto* tell = get_if<node_command::TellHost>(&command);
    if (!tell) continue;
    answers.emplace_back(tell->host, get<wire::HostAttachReply>(tell->message).status.code());
  }
  CHECK(answers == std::vector<std::pair<HostId, Code>>{{first, Code::kOk},
                                                        {second, Code::kFailedPrecondition}});
}

TEST_CASE("only the owner replaces or forgets a segment, and nobody's is anybody's") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId other = f.run_in_job(2);
  f.keep(owner, "a");
  const FdHandle replaced = f.keep(owner, "a");
  CHECK(f.state.segment(f.job, "a") == replaced);
  f.keep(other, "a");
  CHECK(f.did<node_command::Warn>());
  f.apply(node_event::FromHost{other, wire::HostKeepSegment{"a", true}});
  CHECK(f.state.segment(f.job, "a") == replaced);
  CHECK(f.open == std::set<FdHandle>{replaced});
  f.end(owner);
  const FdHandle taken = f.keep(other, "a");
  CHECK(f.state.segment(f.job, "a") == taken);
  f.apply(node_event::FromHost{other, wire::HostKeepSegment{"a", true}});
  CHECK(!f.state.segment(f.job, "a"));
  CHECK(f.open.empty());
  f.ask(other, "a");
  CHECK(f.answered() == Code::kNotFound);
}

TEST_CASE("jobs do not see each other's segments") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId stranger = f.run_in(JobId{8, 8}, 2);
  f.keep(owner, "a");
  f.ask(stranger, "a");
  CHECK(f.answered() == Code::kNotFound);
  f.keep(stranger, "a");
  CHECK(f.state.segment(f.job, "a") != f.state.segment(JobId{8, 8}, "a"));
}

TEST_CASE("segments last as long as an actor of the job may come back here") {
  SegmentFixture f;
  const HostId one = f.run_in_job(1);
  const HostId two = f.run_in_job(2);
  f.keep(one, "a");
  f.end(one);
  f.kill(2, false);
  f.end(two);
  CHECK(f.open.size() == 1);  // the first one may come back
  f.advance(2s + f.config.keep_segments - 1ms);
  CHECK(f.open.size() == 1);
  f.advance(1ms);
  CHECK(f.open.empty());
  CHECK(!f.state.segment(f.job, "a"));
}

TEST_CASE("segments go at once with the last actor that ends for good") {
  SegmentFixture f;
  const HostId one = f.run_in_job(1);
  const HostId two = f.run_in_job(2);
  f.keep(one, "a");
  f.kill(1, false);
  f.end(one);
  CHECK(f.open.size() == 1);  // the second one runs
  f.kill(2, false);
  f.end(two);
  CHECK(f.open.empty());
}

TEST_CASE("who waits and dies is forgotten") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId other = f.run_in_job(2);
  f.keep(owner, "a");
  f.kill(1, true);
  f.ask(other, "a");
  f.end(other);
  f.end(owner);
  CHECK(!f.answer());
  CHECK(f.open.size() == 1);
  const HostId next = f.run_in_job(2, 2);
  f.ask(next, "a");
  CHECK(f.answered() == Code::kOk);
}

TEST_CASE("segments of a job and questions of a process are bounded") {
  SegmentFixture f;
  const HostId owner = f.run_in_job(1);
  const HostId other = f.run_in_job(2);
  for (std::size_t i = 0; i < f.config.segments_max + 3; ++i) f.keep(owner, std::to_string(i));
  CHECK(f.open.size() == f.config.segments_max);
  f.kill(1, true);
  for (std::uint64_t i = 0; i < f.config.attaches_max; ++i) f.ask(other, "0", 5000, i);
  CHECK(!f.answer());
  f.ask(other, "0", 5000, 1000);
  CHECK(f.answered() == Code::kOverloaded);
}

}  // namespace
}  // namespace troupe::scheduler::tests
