// What a node does about the states that actors save: says so, gives them on, fetches them, drops
// what is old.

#include "node_driver.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;
using namespace std::chrono_literals;

namespace {

const NodeId kOther{9, 9};
const ActorId kActor{1, 1};

struct Saver : NodeDriver {
  Saver() { join(); }
  wire::StartActor start_of(std::uint64_t generation, NodeId saved_on, std::string lost = {}) {
    wire::StartActor start = start_message(1, generation);
    start.saved_state_node = saved_on;
    start.saved_state_endpoint = {"10.0.0.9", 700, ""};
    start.state_lost_with = std::move(lost);
    return start;
  }
  void starts(wire::StartActor start) { apply(node_event::FromHead{std::move(start)}); }
  void saves(HostId host) { apply(node_event::FromHost{host, wire::HostSavedState{1}, fd()}); }
  bool keeps_state() const { return kept.contains(saved_state_key(kActor)); }
};

}  // namespace

TEST_CASE(
    "the first state that an actor saves is told to the head; on its next process, not again") {
  Saver d;
  HostId host = d.run(1);
  d.saves(host);
  REQUIRE(d.said<wire::ActorSaved>());
  CHECK(d.said<wire::ActorSaved>()->actor_id == kActor);
  CHECK(d.said<wire::ActorSaved>()->generation == 1);
  // Once the head knows of it the process is told, and answers its call.
  d.apply(node_event::FromHead{wire::ActorSaved{kActor, 1}});
  CHECK(d.told<wire::HostSavedState>());
  d.saves(host);
  CHECK_FALSE(d.said<wire::ActorSaved>());
  CHECK(d.state.saved_state(kActor).status().code() == Code::kUnavailable);  // it still writes
  d.end(host);
  CHECK(d.state.saved_state(kActor).ok());
  d.starts(d.start_of(2, d.config.node.node_id));
  host = d.spawned();
  CHECK(d.told<wire::HostStart>()->has_saved_state);
  CHECK_FALSE(d.said<wire::ActorSaved>());
  // A head that comes back may not have heard of it.
  d.apply(node_event::HeadDown{Status(Code::kUnavailable, "x")});
  d.apply(node_event::HeadUp{});
  CHECK(d.said<wire::ActorSaved>());
}

TEST_CASE("a head that has not heard of a state that lies here: the actor gets it all the same") {
  Saver d;
  const HostId host = d.run(1);
  d.saves(host);
  d.end(host);
  d.starts(d.start_of(2, {}));
  CHECK(d.said<wire::ActorSaved>()->generation == 2);
  d.spawned();
  CHECK(d.told<wire::HostStart>()->has_saved_state);
}

TEST_CASE("a state waits for room with its actor, until the head says that it is over") {
  Saver d;
  const HostId host = d.run(1);
  d.saves(host);
  d.end(host);
  for (int i = 0; i < 10; ++i) {
    d.advance(2 * d.config.keep_segments);
    CHECK(d.said<wire::ActorSaved>());  // is it needed?
    CHECK(d.state.saved_state(kActor).ok());
  }
  CHECK(d.keeps_state());
  d.apply(node_event::FromHead{wire::StopActor{kActor, 2, 0, "it has ended", false}});
  CHECK_FALSE(d.state.saved_state(kActor).ok());
  CHECK_FALSE(d.keeps_state());
  CHECK(d.open.empty());
}

TEST_CASE("a state that lies elsewhere is fetched before the process starts") {
  Saver d;
  d.starts(d.start_of(2, kOther));
  CHECK_FALSE(d.did<node_command::SpawnHost>());
  REQUIRE(d.did<node_command::FetchState>());
  const auto fetch = *d.did<node_command::FetchState>();
  CHECK(fetch.actor_id == kActor);
  CHECK(fetch.from.port == 700);
  SUBCASE("it comes") {
    d.apply(node_event::StateFetched{fetch.host, {}, d.fd()});
    CHECK(d.said<wire::ActorSaved>()->generation == 2);
    REQUIRE(d.did<node_command::SpawnHost>());
    d.spawned();
    CHECK(d.told<wire::HostStart>()->has_saved_state);
    CHECK(d.keeps_state());
    d.restart();  // a next daemon finds it
    CHECK(d.keeps_state());
  }
  SUBCASE("the other node keeps nothing of it: the state is lost") {
    d.apply(node_event::StateFetched{fetch.host, Status(Code::kNotFound, "it keeps none"), kNoFd});
    const auto* report = d.did<node_command::ReportExit>();
    REQUIRE(report);
    CHECK(report->exited.cause.code() == Code::kDataLoss);
    CHECK_FALSE(report->exited.constructor_failed);
  }
  SUBCASE("the other node cannot be reached: nothing is said to be lost") {
    d.apply(node_event::StateFetched{fetch.host, Status(Code::kDeadlineExceeded, "x"), kNoFd});
    REQUIRE(d.did<node_command::ReportExit>());
    CHECK(d.did<node_command::ReportExit>()->exited.cause.code() == Code::kUnavailable);
  }
  SUBCASE("it is not wanted any more") {
    d.apply(node_event::FromHead{wire::StopActor{kActor, 2, 0, "enough", false}});
    CHECK(d.did<node_command::ReportExit>());
    d.apply(node_event::StateFetched{fetch.host, {}, d.fd()});
    CHECK(d.open.empty());
    CHECK_FALSE(d.did<node_command::SpawnHost>());
  }
}

TEST_CASE("a node that holds an older state never gives it to the actor") {
  Saver d;
  const HostId host = d.run(1);
  d.saves(host);
  d.end(host);
  REQUIRE(d.keeps_state());
  SUBCASE("the newer one is elsewhere") {
    d.starts(d.start_of(5, kOther));
    CHECK_FALSE(d.keeps_state());
    CHECK(d.did<node_command::FetchState>());
  }
  SUBCASE("the newer one is lost") {
    d.starts(d.start_of(5, {}, "other"));
    CHECK_FALSE(d.keeps_state());
    d.spawned();
    const auto* start = d.told<wire::HostStart>();
    CHECK_FALSE(start->has_saved_state);
    CHECK(start->state_lost_with == "other");
    // … as the next daemon says, too, to a process that may not have heard.
    d.restart();
    CHECK(d.told<wire::HostStart>()->state_lost_with == "other");
  }
  SUBCASE("the actor runs elsewhere, on what was fetched from here") {
    d.apply(node_event::FromHead{wire::StopActor{kActor, 2, 0, "it is elsewhere", false}});
    CHECK_FALSE(d.keeps_state());
  }
  CHECK(d.open.empty());
}

TEST_CASE("what the keeper held is gone: the actor does not start without a word") {
  Saver d;
  const HostId host = d.run(1);
  d.saves(host);
  d.apply(node_event::KeeperLost{});
  d.end(host);
  d.starts(d.start_of(2, d.config.node.node_id));
  CHECK_FALSE(d.did<node_command::SpawnHost>());
  const auto* report = d.did<node_command::ReportExit>();
  REQUIRE(report);
  CHECK(report->exited.cause.code() == Code::kDataLoss);
  // Then the head says that it is lost.
  d.starts(d.start_of(3, {}, "n"));
  d.spawned();
  CHECK(d.told<wire::HostStart>()->state_lost_with == "n");
}

TEST_CASE("a node that leaves waits until others have fetched what was saved on it") {
  Saver d;
  const HostId host = d.run(1);
  d.saves(host);
  d.apply(node_event::ShutDown{"enough", true});
  d.end(host);
  CHECK_FALSE(d.did<node_command::EndNode>());
  CHECK(d.state.saved_state(kActor).ok());
  SUBCASE("they have") {
    d.apply(node_event::FromHead{wire::StopActor{kActor, 2, 0, "it is elsewhere", false}});
    CHECK(d.did<node_command::EndNode>());
  }
  SUBCASE("nobody comes") {
    d.advance(2 * d.config.shutdown_grace);
    CHECK(d.did<node_command::EndNode>());
  }
  SUBCASE("as long as somebody reads") {
    d.advance(2 * d.config.shutdown_grace - 1ms);
    d.apply(node_event::StateRead{});
    d.advance(d.config.shutdown_grace - 1ms);
    CHECK_FALSE(d.did<node_command::EndNode>());
    d.advance(1ms);
    CHECK(d.did<node_command::EndNode>());
  }
  CHECK(d.open.empty());
}

TEST_CASE("a node that is told to end, or whose actors do not come back, does not wait") {
  Saver d;
  HostId host = 0;
  bool drain = false;
  SUBCASE("told to end") { host = d.run(1); }
  SUBCASE("for good") {
    wire::StartActor start = d.start_message(1, 1);
    start.spec.restart.max_restarts = 0;
    d.starts(start);
    host = d.spawned();
    drain = true;
  }
  d.saves(host);
  d.apply(node_event::ShutDown{"enough", drain});
  d.end(host);
  CHECK(d.did<node_command::EndNode>());
  CHECK(d.open.empty());
}
