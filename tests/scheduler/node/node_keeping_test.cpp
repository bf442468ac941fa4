// A daemon that was killed, seen from the state of the one after it.

#include <doctest/doctest.h>

#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

constexpr ActorId kOne{1, 1};
constexpr ActorId kTwo{1, 2};

TEST_CASE("the next daemon registers what runs, and its exits are reported") {
  NodeDriver d;
  d.join();
  const HostId one = d.run(1);
  const HostId two = d.run(2);
  d.leader_ends(two);
  d.restart();
  CHECK(d.being_killed.contains(two));  // whom its leader left behind
  d.apply(node_event::HeadUp{});
  const auto* said = d.said<wire::RegisterNode>();
  REQUIRE(said);
  REQUIRE(said->running.size() == 2);
  CHECK(said->running[0].spec.actor_id == kOne);
  CHECK(said->running[0].generation == 1);
  CHECK(said->running[0].pid == 100 + static_cast<std::int64_t>(one));
  CHECK(said->running[0].ready);
  d.apply(node_event::FromHead{wire::RegisterNodeReply{}});
  REQUIRE(d.said<wire::NodeNote>());
  CHECK(d.said<wire::NodeNote>()->kind == "daemon_restarted");
  d.group_goes(two);
  REQUIRE(d.did<node_command::ReportExit>());
  CHECK(d.did<node_command::ReportExit>()->exited.actor_id == kTwo);
  CHECK(d.did<node_command::ReportExit>()->exited.exit.signal == 9);
  // It goes on as if nothing had been: calls arrive, an end is an end.
  d.apply(node_event::ConnectionArrived{kOne, d.fd(), {}});
  CHECK(d.told<wire::HostConnection>());
  d.end(one);
  CHECK(d.did<node_command::ReportExit>());
}

TEST_CASE("a node that the head gave another name calls itself by that one, its next daemon too") {
  NodeDriver d;
  const auto absent = [&] { return d.state.check_actor(ActorId{9, 9}).message(); };
  CHECK(absent().ends_with("on node n"));
  d.apply(node_event::HeadUp{});
  wire::RegisterNodeReply reply;
  reply.name = "n-2";
  d.apply(node_event::FromHead{reply});
  REQUIRE(d.did<node_command::Registered>());
  CHECK(d.did<node_command::Registered>()->name == "n-2");
  CHECK(absent().ends_with("on node n-2"));
  d.restart();
  CHECK(absent().ends_with("on node n-2"));
  // It goes on wishing its own name: the other node of that name may be gone by now.
  d.apply(node_event::HeadUp{});
  CHECK(d.said<wire::RegisterNode>()->node.name == "n");
  reply.name = "n";
  d.apply(node_event::FromHead{reply});
  REQUIRE(d.said<wire::NodeNote>());
  CHECK(d.said<wire::NodeNote>()->text.find("node n-2 has a new daemon") != std::string::npos);
  CHECK(absent().ends_with("on node n"));
}

TEST_CASE("a process that was being started is told once more, or reported") {
  NodeDriver d;
  d.join();
  d.apply(node_event::FromHead{d.start_message(1, 1)});
  const HostId told = d.spawned();
  d.apply(node_event::FromHead{d.start_message(2, 1)});
  CHECK(d.spawning.size() == 1);  // asked for, and never started
  d.restart();
  // The first one is there and may have been told or not; the second is none.
  CHECK(d.state.process_count() == 1);
  d.join();
  d.apply(node_event::FromHost{told, wire::HostReady{}});
  CHECK(d.said<wire::ActorReady>());
  d.restart();
  CHECK(!d.told<wire::HostStart>());  // it is ready
}

TEST_CASE("segments, saved state and owners outlive the daemon") {
  NodeDriver d;
  d.join();
  const HostId owner = d.run(1);
  const HostId other = d.run(2);
  d.apply(node_event::FromHost{owner, wire::HostKeepSegment{"a", false}, d.fd()});
  d.apply(node_event::FromHost{owner, wire::HostKeepSegment{"b", false}, d.fd()});
  d.apply(node_event::FromHost{owner, wire::HostKeepSegment{"b", true}});
  d.apply(node_event::FromHost{owner, wire::HostSavedState{1}, d.fd()});
  d.restart();
  d.join();
  CHECK(d.open.size() == 2);
  CHECK(d.state.segment(JobId{}, "a"));
  CHECK(!d.state.segment(JobId{}, "b"));
  d.apply(node_event::FromHost{other, wire::HostAttachSegment{1, "a", 1000}});
  CHECK(d.told<wire::HostAttachReply>()->status.code() == Code::kFailedPrecondition);
  d.end(owner);
  d.restart();
  d.join();
  d.apply(node_event::FromHost{other, wire::HostAttachSegment{1, "a", 1000}});
  CHECK(d.told<wire::HostAttachReply>()->status.ok());
  d.restart();
  d.join();
  d.apply(node_event::FromHead{d.start_message(1, 2)});
  const HostId again = d.spawned();
  CHECK(again > other);
  CHECK(d.told<wire::HostStart>()->has_saved_state);
  d.apply(node_event::FromHost{again, wire::HostAttachSegment{1, "a", 1000}});
  CHECK(d.told<wire::HostAttachReply>()->status.code() == Code::kFailedPrecondition);
  d.end(again);
  d.end(other);
  d.restart();
  // Nobody can start it again while the head is away: its time begins when the head is there.
  d.advance(5min);
  CHECK(d.open.size() == 2);
  d.join();
  d.is_over(kOne, 2);
  d.advance(5min);
  CHECK(d.open.empty());
  CHECK(d.kept.size() == 1);  // the node itself
}

// Whether the keeper was told to drop the actor's saved state, and after that its record.
bool dropped_in_order(const NodeDriver& d, ActorId id) {
  std::vector<std::string> dropped;
  for (const NodeCommand& command : d.last) {
    if (const auto* unkeep = get_if<node_command::Unkeep>(&command)) {
      dropped.push_back(unkeep->key);
    }
  }
  return dropped == std::vector{saved_state_key(id), actor_key(id)};
}

TEST_CASE("saved state goes before the record by which a next daemon finds it") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.apply(node_event::FromHost{host, wire::HostSavedState{1}, d.fd()});
  SUBCASE("of an actor that is to end") {
    wire::StopActor stop;
    stop.actor_id = kOne;
    stop.generation = 1;
    d.apply(node_event::FromHead{stop});
    d.end(host);
  }
  SUBCASE("of one that does not come back") {
    d.end(host);
    CHECK(d.kept.contains(saved_state_key(kOne)));
    d.is_over(kOne, 1);
  }
  CHECK(dropped_in_order(d, kOne));
}

TEST_CASE("the lease goes on where the daemon before left it") {
  NodeDriver d;
  d.join(500, 3000);
  const HostId host = d.run_fenced(1);
  d.advance(500ms);
  d.apply(node_event::FromHead{*d.said<wire::Heartbeat>()});
  d.clock.advance(2s);
  d.restart();
  CHECK(d.being_killed.empty());
  d.advance(1499ms);
  CHECK(d.being_killed.empty());
  d.advance(1ms);  // 3.5 s after the last heartbeat that was answered
  CHECK(d.being_killed.contains(host));
}

TEST_CASE("a node that loses its keeper says so, and has nothing left") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.apply(node_event::FromHost{host, wire::HostKeepSegment{"a", false}, d.fd()});
  d.apply(node_event::FromHost{host, wire::HostSavedState{1}, d.fd()});
  d.apply(node_event::KeeperLost{});
  CHECK(d.open.empty());
  REQUIRE(d.said<wire::NodeNote>());
  CHECK(d.said<wire::NodeNote>()->kind == "keeper_lost");
  d.end(host);
  const auto* report = d.did<node_command::ReportExit>();
  REQUIRE(report);
  CHECK(report->exited.cause.code() == Code::kAborted);
  CHECK(report->exited.cause.message().find("keeper") != std::string::npos);
  d.apply(node_event::FromHead{d.start_message(1, 2)});
  d.spawned();
  CHECK_FALSE(d.told<wire::HostStart>()->has_saved_state);
}

TEST_CASE("the next keeper gets whole records, and a daemon after it finds them") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  const HostId other = d.run(2);
  d.end(other);
  d.kept.clear();
  d.apply(node_event::KeeperLost{});
  // The node's record is the first: without it a next daemon takes up nothing.
  REQUIRE(d.did<node_command::Keep>());
  CHECK(d.did<node_command::Keep>()->key == kNodeKey);
  d.end(host);
  // Its process ended after the keeper: it may come back, and the next daemon is to know it.
  REQUIRE(d.kept.contains(actor_key(ActorId{1, 1})));
  CHECK(d.kept.at(actor_key(ActorId{1, 1})).start);
  d.restart();
  CHECK(d.state.check_actor(ActorId{1, 1}).ok());
}

}  // namespace
}  // namespace troupe::scheduler::tests
