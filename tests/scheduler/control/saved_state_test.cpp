// What the head knows of the states that actors have saved, and what it says when they start again.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

struct Saver : Desk {
  const std::vector<std::pair<PeerId, NodeId>> both{{kNodeOne, kIdOne}, {kNodeTwo, kIdTwo}};

  // An actor on node one that has saved something; node two is there.
  explicit Saver(wire::ActorSpec what = spec(kActor, 1, 2)) {
    node(kNodeOne, kIdOne, "one", cpus(8));
    create({std::move(what)});
    ready(kNodeOne, kActor, 1);
    say(kNodeOne, wire::ActorSaved{kActor, 1});
    node(kNodeTwo, kIdTwo, "two", cpus(8));
  }
  // What the node is told when the actor's next process is to start there.
  wire::StartActor start(PeerId node) {
    auto starts = sent<wire::StartActor>(node);
    REQUIRE(starts.size() == 1);
    return starts[0];
  }
  void node_one_leaves() {
    wire::NodeUpdate gone;
    gone.node.node_id = kIdOne;
    gone.node.state = wire::NodeState::kDead;
    say(kNodeOne, gone);
  }
  void start_fails(PeerId node, std::uint64_t generation, Status why, bool constructor = false) {
    wire::ActorExited exited{kActor, generation};
    exited.cause = std::move(why);
    exited.constructor_failed = constructor;
    say(node, exited);
  }
  std::size_t logged(const std::string& kind) const {
    std::size_t count = 0;
    for (const Delta& delta : journal) {
      const auto* event = get_if<EventLogged>(&delta);
      count += event != nullptr && event->event.kind == kind ? 1 : 0;
    }
    return count;
  }
};

}  // namespace

TEST_CASE(
    "where an actor's saved state lies is known, journalled once, and said at its next start") {
  Saver desk;
  CHECK(desk.info().saved_state_node == kIdOne);
  const std::size_t before = desk.journal.size();
  desk.say(kNodeOne, wire::ActorSaved{kActor, 1});
  CHECK(desk.sent<wire::ActorSaved>(kNodeOne).size() == 1);  // its process waits for that
  CHECK(desk.journal.size() == before);
  // Nobody else's word counts, and no earlier process's.
  desk.say(kNodeTwo, wire::ActorSaved{kActor, 1});
  desk.say(kNodeOne, wire::ActorSaved{kActor, 9});
  CHECK(desk.info().saved_state_node == kIdOne);
  desk.restart();
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(8), {}, {{Desk::spec(kActor, 1, 2), 1, 42, true}});
  desk.killed(kNodeOne, kActor, 1);
  desk.pass(milliseconds(50), desk.both);
  const auto start = desk.start(kNodeOne);
  CHECK(start.saved_state_node == kIdOne);
  CHECK(start.state_lost_with.empty());
  CHECK(desk.info().state_lost_generation == 0);
}

TEST_CASE("an actor that saved nothing is started as ever") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.node(kNodeTwo, kIdTwo, 8);
  wire::NodeUpdate gone;
  gone.node.node_id = kIdOne;
  gone.node.state = wire::NodeState::kDead;
  desk.say(kNodeOne, gone);
  desk.pass(milliseconds(50), {{kNodeTwo, kIdTwo}});
  const auto starts = desk.sent<wire::StartActor>(kNodeTwo);
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].saved_state_node.empty());
  CHECK(starts[0].state_lost_with.empty());
  CHECK(desk.info().state_lost_generation == 0);
}

TEST_CASE("an actor that moves takes its state along; the node it left is told to drop it") {
  Saver desk;
  SUBCASE("its node is drained") {
    desk.say(kDriver, wire::DrainNode{16, kIdOne, 5'000, "a new disk"});
  }
  SUBCASE("its node leaves") {
    wire::NodeUpdate leaving;
    leaving.node.node_id = kIdOne;
    leaving.node.state = wire::NodeState::kDraining;
    desk.say(kNodeOne, leaving);
  }
  desk.killed(kNodeOne, kActor, 1);
  desk.pass(milliseconds(50), desk.both);
  const auto start = desk.start(kNodeTwo);
  CHECK(start.saved_state_node == kIdOne);
  CHECK(start.saved_state_endpoint == desk.head.nodes().at(kIdOne).info.endpoint);
  desk.say(kNodeTwo, wire::ActorSaved{kActor, 2});
  CHECK(desk.info().saved_state_node == kIdTwo);
  const auto drops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(drops.size() == 1);
  CHECK(drops[0].generation == 2);
  desk.ready(kNodeTwo, kActor, 2);
  CHECK(desk.info().state_lost_generation == 0);
  CHECK(desk.logged("state_lost") == 0);
}

TEST_CASE("a state that has a copy: whether it is lost with its node the next process says") {
  wire::ActorSpec spec = Desk::spec(kActor, 1, 5);
  spec.replicas = 1;
  Saver desk(spec);
  desk.node_one_leaves();
  desk.pass(milliseconds(50), desk.both);
  CHECK(desk.start(kNodeTwo).state_lost_with == "one");
  CHECK(desk.info().state_lost_generation == 0);
  CHECK(desk.logged("state_lost") == 0);
  SUBCASE("it goes on with the copy") {
    desk.say(kNodeTwo, wire::ActorSaved{kActor, 2});
    desk.ready(kNodeTwo, kActor, 2);
    CHECK(desk.info().saved_state_node == kIdTwo);
    CHECK(desk.info().state_lost_generation == 0);
    desk.killed(kNodeTwo, kActor, 2);
    desk.pass(milliseconds(100), {{kNodeTwo, kIdTwo}});
    CHECK(desk.start(kNodeTwo).state_lost_with.empty());
    CHECK(desk.start(kNodeTwo).saved_state_node == kIdTwo);
  }
  SUBCASE("it found none, and begins without: callers are told") {
    desk.say(kNodeTwo, wire::ActorReady{kActor, 2, true});
    CHECK(desk.info().state == wire::ActorState::kAlive);
    CHECK(desk.info().state_lost_generation == 2);
    CHECK(desk.logged("state_lost") == 1);
    desk.say(kNodeTwo, wire::ActorReady{kActor, 2, true});  // said again, over a new connection
    CHECK(desk.logged("state_lost") == 1);
  }
  SUBCASE("it was killed before it could say: the next one looks for the copy again") {
    desk.killed(kNodeTwo, kActor, 2);
    desk.pass(milliseconds(100), {{kNodeTwo, kIdTwo}});
    CHECK(desk.start(kNodeTwo).state_lost_with == "one");
    CHECK(desk.info().state_lost_generation == 0);
  }
}

TEST_CASE("a state that is lost with its node: said to whoever starts the actor, until it saves") {
  const wire::ActorSpec spec = Desk::spec(kActor, 1, 5);
  Saver desk(spec);
  desk.node_one_leaves();
  desk.pass(milliseconds(50), desk.both);
  CHECK(desk.start(kNodeTwo).state_lost_with == "one");
  CHECK(desk.start(kNodeTwo).saved_state_node.empty());
  CHECK(desk.info().state_lost_generation == 2);
  CHECK(desk.logged("state_lost") == 1);
  desk.ready(kNodeTwo, kActor, 2);
  // It has saved nothing before it is killed: the next one is no wiser, and callers were told.
  desk.restart();
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(8), {}, {{spec, 2, 42, true}});
  desk.killed(kNodeTwo, kActor, 2);
  desk.pass(milliseconds(50), {{kNodeTwo, kIdTwo}});
  CHECK(desk.start(kNodeTwo).state_lost_with == "one");
  CHECK(desk.info().state_lost_generation == 2);
  CHECK(desk.logged("state_lost") == 1);
  desk.ready(kNodeTwo, kActor, 3);
  desk.say(kNodeTwo, wire::ActorSaved{kActor, 3});
  desk.killed(kNodeTwo, kActor, 3);
  desk.pass(milliseconds(100), {{kNodeTwo, kIdTwo}});
  CHECK(desk.start(kNodeTwo).state_lost_with.empty());
  CHECK(desk.start(kNodeTwo).saved_state_node == kIdTwo);
}

TEST_CASE("members of a supervisor's group are told of their loss as others are") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(8));
  wire::CreateSupervisor group;
  group.request_id = 20;
  group.spec.supervisor_id = SupervisorId{6, 6};
  group.spec.strategy = wire::RestartStrategy::kAllForOne;
  group.spec.restart.max_restarts = 5;
  desk.say(kDriver, group);
  wire::ActorSpec member = Desk::spec(kActor);
  wire::ActorSpec other = Desk::spec({8, 8});
  member.supervisor = other.supervisor = group.spec.supervisor_id;
  desk.create({member, other});
  desk.ready(kNodeOne, kActor, 1);
  desk.ready(kNodeOne, {8, 8}, 1);
  desk.say(kNodeOne, wire::ActorSaved{kActor, 1});
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(8));
  wire::NodeUpdate gone;
  gone.node.node_id = kIdOne;
  gone.node.state = wire::NodeState::kDead;
  desk.say(kNodeOne, gone);
  desk.pass(milliseconds(100), {{kNodeTwo, kIdTwo}});
  const auto starts = desk.sent<wire::StartActor>(kNodeTwo);
  REQUIRE(starts.size() == 2);
  for (const auto& start : starts) {
    CHECK(start.state_lost_with == (start.spec.actor_id == kActor ? "one" : ""));
  }
  CHECK(desk.info().state_lost_generation == 2);
}

TEST_CASE("a node that does not have the state any more: lost, and no restart of the budget") {
  Saver desk(Desk::spec(kActor, 1, 1));
  desk.killed(kNodeOne, kActor, 1);
  desk.pass(milliseconds(50), desk.both);
  REQUIRE(desk.start(kNodeOne).saved_state_node == kIdOne);
  desk.start_fails(kNodeOne, 2, Status(Code::kDataLoss, "its keeper was killed"));
  desk.pass(milliseconds(50), desk.both);
  const auto start = desk.start(kNodeOne);
  CHECK(start.generation == 3);
  CHECK(start.state_lost_with == "one");
  CHECK(desk.info().state_lost_generation == 3);
  CHECK(desk.logged("state_lost") == 1);
  SUBCASE("one that goes on empty") {
    desk.ready(kNodeOne, kActor, 3);
    CHECK(desk.info().state == wire::ActorState::kAlive);
  }
  SUBCASE("one that does not begin without it is dead, with the cause, at once") {
    desk.start_fails(kNodeOne, 3, Status(Code::kDataLoss, "it does not begin without it"), true);
    CHECK(desk.info().state == wire::ActorState::kDead);
    CHECK(desk.info().death.message().find("does not begin without it") != std::string::npos);
  }
}

TEST_CASE(
    "a node that dies while another one fetches from it: lost, and no restart of the budget") {
  Saver desk(Desk::spec(kActor, 1, 1));
  desk.say(kDriver, wire::DrainNode{16, kIdOne, 5'000, ""});
  desk.killed(kNodeOne, kActor, 1);
  desk.pass(milliseconds(50), desk.both);
  REQUIRE(desk.start(kNodeTwo).saved_state_node == kIdOne);
  const auto unreachable = Status(Code::kUnavailable, "nobody answers");
  SUBCASE("it is dead") {
    desk.node_one_leaves();
    desk.start_fails(kNodeTwo, 2, unreachable);
    desk.pass(milliseconds(50), {{kNodeTwo, kIdTwo}});
    CHECK(desk.start(kNodeTwo).state_lost_with == "one");
    CHECK(desk.head.actors().at(kActor).restarts_unix_us.empty());
  }
  SUBCASE("it lives, as far as anybody knows: nothing is given up") {
    desk.start_fails(kNodeTwo, 2, unreachable);
    desk.pass(milliseconds(50), desk.both);
    CHECK(desk.start(kNodeTwo).saved_state_node == kIdOne);
    CHECK(desk.info().state_lost_generation == 0);
  }
}

TEST_CASE("a node that keeps what nobody needs any more is told so") {
  Saver desk;
  NodeId asks = kIdOne;
  ActorId actor = kActor;
  SUBCASE("the actor has ended") {
    desk.say(kDriver, wire::KillActor{17, kActor, false, 0, "", false});
    desk.killed(kNodeOne, kActor, 1);
  }
  SUBCASE("nobody knows the actor") { actor = ActorId{9, 9}; }
  SUBCASE("it goes on without what lies there") { asks = kIdTwo; }
  const PeerId peer = asks == kIdOne ? kNodeOne : kNodeTwo;
  desk.say(peer, wire::ActorSaved{actor, 1});
  const auto drops = desk.sent<wire::StopActor>(peer);
  REQUIRE(drops.size() == 1);
  CHECK(drops[0].generation == 2);
}

TEST_CASE("what an actor saved waits for room with it") {
  Saver desk(Desk::spec(kActor, 1, 5));
  desk.say(kDriver, wire::DrainNode{16, kIdTwo, 5'000, ""});
  desk.say(kDriver, wire::DrainNode{17, kIdOne, 5'000, ""});
  desk.killed(kNodeOne, kActor, 1);
  desk.say(kNodeOne, wire::ActorSaved{kActor, 1});
  CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());
}
