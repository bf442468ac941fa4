// Nodes that are drained, or that leave.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

const ActorId kMovable{1, 1};
const ActorId kBound{2, 2};
const ActorId kFixed{3, 3};

struct Two : Desk {
  Two() {
    node(kNodeOne, kIdOne, 8);
    wire::ActorSpec fixed = spec(kFixed, 1, 1);
    fixed.node_affinity = kIdOne;
    create({spec(kMovable, 1, 1), spec(kBound), fixed});
    for (ActorId id : {kMovable, kBound, kFixed}) ready(kNodeOne, id, 1);
    node(kNodeTwo, kIdTwo, 8);
  }
  Status drain(NodeId id) {
    say(kDriver, wire::DrainNode{16, id, 5'000, "a new disk"});
    return answer();
  }
  const std::vector<std::pair<PeerId, NodeId>> both{{kNodeOne, kIdOne}, {kNodeTwo, kIdTwo}};
};

}  // namespace

TEST_CASE("a drained node takes nothing new; what may move finishes first and goes elsewhere") {
  Two desk;
  CHECK(desk.drain(kIdOne).ok());
  CHECK(desk.head.nodes().at(kIdOne).info.state == wire::NodeState::kDraining);
  const auto stops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].actor_id == kMovable);
  CHECK(stops[0].drain);
  CHECK(stops[0].comes_back);
  CHECK(stops[0].grace_ms == 5'000);
  desk.killed(kNodeOne, kMovable, 1);
  desk.pass(milliseconds(20), desk.both);
  CHECK(desk.info(kMovable).node_id == kIdTwo);
  // It was no failure: the budget is whole.
  desk.ready(kNodeTwo, kMovable, 2);
  desk.killed(kNodeTwo, kMovable, 2);
  CHECK(desk.info(kMovable).state == wire::ActorState::kRestarting);
  // What cannot be elsewhere stays.
  CHECK(desk.info(kBound).state == wire::ActorState::kAlive);
  CHECK(desk.info(kFixed).state == wire::ActorState::kAlive);
  desk.create({Desk::spec({8, 8})});
  CHECK(desk.info({8, 8}).node_id == kIdTwo);
}

TEST_CASE("a node that joined for a run ends once it is drained") {
  Two desk;
  CHECK(desk.drain(kIdOne).ok());
  CHECK(desk.sent<wire::ShutdownNode>(kNodeOne).empty());
  desk.say(kDriver, wire::DrainNode{17, kIdOne, 5'000, "a new disk", true});
  CHECK(desk.answer().ok());
  const auto ends = desk.sent<wire::ShutdownNode>(kNodeOne);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].drain);
  CHECK(ends[0].grace_ms == 5'000);
  CHECK(ends[0].reason == "a new disk");
  CHECK(desk.sent<wire::ShutdownNode>(kNodeTwo).empty());
}

TEST_CASE("who waits because nodes are drained is told so, and how they take actors again") {
  Two desk;
  REQUIRE(desk.drain(kIdOne).ok());
  REQUIRE(desk.drain(kIdTwo).ok());
  desk.create({Desk::spec({8, 8})});
  CHECK(desk.seen({8, 8}).pending_why ==
        "needs CPU 1; no node is there that takes actors (troupe worker starts one); 2 nodes are "
        "drained, machine-2 among "
        "them (a "
        "node takes actors again when its worker is started anew)");
}

TEST_CASE("a node stays drained over its connection's and the head's loss") {
  Two desk;
  REQUIRE(desk.drain(kIdOne).ok());
  SUBCASE("its connection") {
    desk.lose(kNodeOne);
    desk.node(13, kIdOne, 8);
  }
  SUBCASE("the head") {
    desk.restart();
    desk.node(13, kIdOne, 8);
  }
  CHECK(desk.head.nodes().at(kIdOne).info.state == wire::NodeState::kDraining);
}

TEST_CASE("placement groups leave a drained node, unless an actor in them has to stay") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 4);
  const GroupId group{5, 5};
  desk.create(Desk::group(group, {2}));
  desk.agree({kNodeOne});
  wire::ActorSpec member = Desk::spec(kMovable);
  bool moves = false;
  SUBCASE("it moves") {
    member.restart.max_restarts = 1;
    moves = true;
  }
  SUBCASE("it stays") {}
  member.placement_group = group;
  desk.create({member});
  desk.ready(kNodeOne, kMovable, 1);
  desk.node(kNodeTwo, kIdTwo, 4);
  desk.say(kDriver, wire::DrainNode{16, kIdOne, 5'000, ""});
  if (!moves) {
    CHECK(desk.group_info(group).state == wire::PlacementGroupState::kCreated);
    CHECK(desk.info(kMovable).state == wire::ActorState::kAlive);
    return;
  }
  CHECK(desk.sent<wire::StopActor>(kNodeOne).size() == 1);
  desk.agree({kNodeTwo});
  CHECK(desk.group_info(group).state == wire::PlacementGroupState::kCreated);
  CHECK(desk.group_info(group).bundles[0].node_id == kIdTwo);
  // Nobody hurries it: it has its time.
  CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());
  desk.killed(kNodeOne, kMovable, 1);
  desk.pass(milliseconds(20), {{kNodeOne, kIdOne}, {kNodeTwo, kIdTwo}});
  CHECK(desk.info(kMovable).node_id == kIdTwo);
}

TEST_CASE(
    "a node that leaves: its actors are started elsewhere, and that is no failure of theirs") {
  Two desk;
  wire::NodeUpdate leaving;
  leaving.node.node_id = kIdOne;
  leaving.node.state = wire::NodeState::kDraining;
  desk.say(kNodeOne, leaving);
  CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());  // it does so itself
  desk.killed(kNodeOne, kMovable, 1);
  desk.pass(milliseconds(20), desk.both);
  CHECK(desk.info(kMovable).node_id == kIdTwo);
  CHECK(desk.head.actors().at(kMovable).restarts_unix_us.empty());
}

TEST_CASE("nodes that are not there cannot be drained") {
  Two desk;
  CHECK(desk.drain({9, 9}).code() == Code::kNotFound);
  wire::NodeUpdate gone;
  gone.node.node_id = kIdTwo;
  gone.node.state = wire::NodeState::kDead;
  desk.say(kNodeTwo, gone);
  CHECK(desk.drain(kIdTwo).code() == Code::kFailedPrecondition);
}
