// What a node does about actors that drain, and about those that are not well.

#include <doctest/doctest.h>

#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

struct Driver : NodeDriver {
  Driver() { join(); }
  // With a health check each 100 ms that may take 50 ms.
  HostId run_checked(std::uint64_t n) {
    wire::StartActor start = start_message(n, 1);
    start.spec.health = {.interval_ms = 100, .timeout_ms = 50};
    apply(node_event::FromHead{start});
    const HostId host = spawned();
    apply(node_event::FromHost{host, wire::HostReady{}});
    return host;
  }
  void stop(std::int64_t grace_ms, bool comes_back = false) {
    apply(node_event::FromHead{
        wire::StopActor{ActorId{1, 1}, 1, grace_ms, "enough", comes_back, true}});
  }
  const wire::ActorExited& exit_of(HostId host) {
    end(host);
    REQUIRE(did<node_command::ReportExit>());
    return did<node_command::ReportExit>()->exited;
  }
};

TEST_CASE("an actor that drains has its time, says what it did not get to, and ends") {
  Driver d;
  const HostId host = d.run(1);
  d.stop(1'000);
  REQUIRE(d.told<wire::HostStop>());
  CHECK(d.told<wire::HostStop>()->drain);
  CHECK_FALSE(d.told<wire::HostStop>()->comes_back);
  SUBCASE("nothing is left: it ends by itself") {
    d.apply(node_event::FromHost{host, wire::HostDrained{0}});
    d.advance(400ms);
    CHECK_FALSE(d.did<node_command::KillGroup>());
    CHECK(d.exit_of(host).calls_dropped == 0);
  }
  SUBCASE("something is left: it is ended") {
    d.advance(1'000ms);
    CHECK_FALSE(d.did<node_command::KillGroup>());  // it has a moment to say so
    d.apply(node_event::FromHost{host, wire::HostDrained{7}});
    CHECK_FALSE(d.did<node_command::KillGroup>());
    d.advance(50ms);
    CHECK(d.did<node_command::KillGroup>());
    CHECK(d.exit_of(host).calls_dropped == 7);
  }
  SUBCASE("it says nothing: it is ended, and nobody knows") {
    d.advance(1'500ms);
    CHECK(d.did<node_command::KillGroup>());
    CHECK(d.exit_of(host).calls_dropped == -1);
  }
}

TEST_CASE("callers of an actor that comes back elsewhere are told so") {
  Driver d;
  d.run(1);
  SUBCASE("as the head says") { d.stop(1'000, true); }
  SUBCASE("where its node leaves") { d.apply(node_event::ShutDown{"it leaves", true}); }
  REQUIRE(d.told<wire::HostStop>());
  CHECK(d.told<wire::HostStop>()->drain);
  CHECK(d.told<wire::HostStop>()->comes_back);
}

TEST_CASE("a report that nobody asked for changes nothing") {
  Driver d;
  const HostId host = d.run(1);
  d.apply(node_event::FromHost{host, wire::HostDrained{7}});
  CHECK(d.exit_of(host).calls_dropped == -1);
}

TEST_CASE("an actor that says it is well runs on; one that says it is not is ended") {
  Driver d;
  const HostId host = d.run_checked(1);
  for (int i = 0; i < 10; ++i) {
    d.advance(100ms);
    CHECK_FALSE(d.did<node_command::KillGroup>());
    d.apply(node_event::FromHost{host, wire::HostHealth{}});
  }
  d.apply(
      node_event::FromHost{host, wire::HostHealth{Status(Code::kUnavailable, "the disk is gone")}});
  CHECK(d.did<node_command::KillGroup>());
  const wire::ActorExited exited = d.exit_of(host);
  CHECK(exited.cause.code() == Code::kAborted);
  CHECK(exited.cause.message().find("the disk is gone") != std::string::npos);
}

TEST_CASE("an actor that does not answer is ended") {
  Driver d;
  const HostId host = d.run_checked(1);
  d.apply(node_event::FromHost{host, wire::HostHealth{}});
  d.advance(149ms);
  CHECK_FALSE(d.did<node_command::KillGroup>());
  d.advance(1ms);
  CHECK(d.did<node_command::KillGroup>());
  CHECK(d.exit_of(host).cause.message().find("no answer for 150 ms") != std::string::npos);
}

TEST_CASE("nobody asks an actor that is stopping, or that was not to be asked") {
  Driver d;
  SUBCASE("it is stopping") {
    const HostId host = d.run_checked(1);
    d.stop(10'000);
    d.advance(1s);
    CHECK(d.state.process_count() == 1);
    CHECK_FALSE(d.being_killed.contains(host));
  }
  SUBCASE("no health check") {
    d.run(1);
    d.advance(1min);
    CHECK(d.being_killed.empty());
  }
}

TEST_CASE("a daemon that comes after another goes on asking") {
  Driver d;
  const HostId host = d.run_checked(1);
  d.restart();
  d.advance(150ms);
  CHECK(d.being_killed.contains(host));
}

}  // namespace
}  // namespace troupe::scheduler::tests
