// The head's decisions one by one: placing, restarting, ending, failing, coming back.

#include <algorithm>

#include "desk.h"
#include "runtime/base/limits.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;
using std::chrono::milliseconds;

TEST_CASE("a spec that is too large is refused by its size, whoever made it") {
  Desk desk;
  auto large = Desk::spec(kActor);
  large.constructor_arguments.resize(limits::kActorSpecBytesMax - 1000);
  large.environment["A"] = std::string(2000, 'a');
  desk.create({large});
  const auto refused = desk.sent<wire::Reply>(kDriver);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].status.code() == Code::kInvalidArgument);
  const std::string why = refused[0].status.message();
  CHECK_MESSAGE(why.find("of Counter has 10495") != std::string::npos, why);
  CHECK(why.find("first call") != std::string::npos);
  CHECK(desk.head.actors().empty());
  large.environment.clear();
  desk.create({large});
  CHECK(desk.sent<wire::Reply>(kDriver).at(0).status.ok());
}

TEST_CASE("an actor waits for a node, starts, and is ready") {
  Desk desk;
  desk.create({Desk::spec(kActor)});
  CHECK(desk.answer().ok());
  CHECK(desk.info().state == wire::ActorState::kPending);
  desk.node(kNodeOne, kIdOne, 2);
  REQUIRE(desk.sent<wire::StartActor>(kNodeOne).size() == 1);
  CHECK(desk.info().state == wire::ActorState::kStarting);
  desk.ready(kNodeOne, kActor, 1);
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info().pid == 42);
  CHECK(amount_of(desk.head.nodes().at(kIdOne).info.available, "CPU") == wire::kResourceUnit);
}

TEST_CASE("what awaits nodes is not refused where no present node could hold it") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  auto awaits = Desk::spec({1, 1}, 3);
  awaits.awaits_nodes = true;
  SUBCASE("one by one") {
    desk.create({Desk::spec(kActor, 1), awaits});
    REQUIRE(desk.answer().ok());
    CHECK(desk.info(kActor).state == wire::ActorState::kStarting);
    CHECK(desk.info({1, 1}).state == wire::ActorState::kPending);
    desk.node(kNodeTwo, kIdTwo, 4);
    CHECK(desk.info({1, 1}).node_id == kIdTwo);
  }
  SUBCASE("a gang, which waits as a whole") {
    desk.create({Desk::spec(kActor, 1), awaits}, true);
    REQUIRE(desk.answer().ok());
    CHECK(desk.info(kActor).state == wire::ActorState::kPending);
    desk.node(kNodeTwo, kIdTwo, 4);
    CHECK(desk.info({1, 1}).node_id == kIdTwo);
    CHECK(desk.info(kActor).state == wire::ActorState::kStarting);
  }
  SUBCASE("of a gang, one that does not await nodes must fit on those that are there") {
    desk.create({Desk::spec(kActor, 3), awaits}, true);
    CHECK(desk.answer().code() == Code::kResourceExhausted);
  }
  SUBCASE("not to wait goes before") {
    desk.create({awaits}, false, true);
    CHECK(desk.answer().code() == Code::kResourceExhausted);
  }
}

TEST_CASE("what never fits is refused in words, what does not fit now waits") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.create({Desk::spec(kActor, 3)});
  CHECK(desk.answer().code() == Code::kResourceExhausted);
  CHECK(desk.answer().message().find("needs CPU 3") != std::string::npos);
  desk.create({Desk::spec({1, 0}, 2)});
  CHECK(desk.answer().ok());
  desk.create({Desk::spec({2, 0}, 1)}, false, true);
  CHECK(desk.answer().code() == Code::kResourceExhausted);
  desk.create({Desk::spec({3, 0}, 1)});
  CHECK(desk.answer().ok());
  CHECK(desk.info({3, 0}).state == wire::ActorState::kPending);
  desk.say(kDriver, wire::ListActors{5, true});
  bool explained = false;
  const auto lists = desk.sent<wire::ActorList>(kDriver);
  REQUIRE(lists.size() == 1);
  for (const auto& actor : lists[0].actors) {
    explained =
        explained || actor.pending_why.find("machine has CPU 0 of 2 free") != std::string::npos;
  }
  CHECK(explained);
}

TEST_CASE("long lists come in pieces, each of which begins behind the last one") {
  Desk desk;
  wire::CreateSupervisor supervisor;
  supervisor.request_id = 3;
  for (std::uint64_t i = 1; i <= 300; ++i) {
    wire::ActorSpec spec = Desk::spec({1, i});
    spec.name = std::string(10'000, 'n') + std::to_string(i);
    desk.create({spec});
    wire::PlacementGroupSpec group;
    group.group_id = {2, i};
    group.name = spec.name;
    group.bundles = {{{{"CPU", wire::kResourceUnit}}, {}}};
    desk.say(kDriver, wire::CreatePlacementGroup{2, group});
    supervisor.spec.supervisor_id = {3, i};
    supervisor.spec.name = spec.name;
    desk.say(kDriver, supervisor);
  }
  const auto check = [&](auto request, auto list_of) {
    std::uint64_t seen = 0;
    int pieces = 0;
    for (bool more = true; more; ++pieces) {
      desk.say(kDriver, request);
      more = list_of([&](const auto& list, const auto& items, auto id) {
        CHECK(wire::encode(list).size() < 4 * limits::kListPieceBytes);
        for (const auto& item : items) CHECK((item.*id).low == ++seen);
        request.after = items.back().*id;
        return list.more;
      });
    }
    CHECK(seen == 300);
    CHECK(pieces > 2);
    CHECK(pieces < 10);
  };
  check(wire::ListActors{5}, [&](auto take) {
    const auto list = desk.sent<wire::ActorList>(kDriver).at(0);
    return take(list, list.actors, &wire::ActorInfo::actor_id);
  });
  check(wire::ListPlacementGroups{5}, [&](auto take) {
    const auto list = desk.sent<wire::PlacementGroupList>(kDriver).at(0);
    return take(list, list.groups, &wire::PlacementGroupInfo::group_id);
  });
  check(wire::ListSupervisors{5}, [&](auto take) {
    const auto list = desk.sent<wire::SupervisorList>(kDriver).at(0);
    return take(list, list.supervisors, &wire::SupervisorInfo::supervisor_id);
  });
  // What is left out takes no room in a piece.
  for (std::uint64_t i = 1; i <= 299; ++i) {
    desk.say(kDriver, wire::KillActor{3, {1, i}});
  }
  desk.say(kDriver, wire::ListActors{5, false});
  const auto list = desk.sent<wire::ActorList>(kDriver).at(0);
  CHECK(list.actors.size() == 1);
  CHECK_FALSE(list.more);
}

TEST_CASE("what a node that is away could hold waits for it") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  desk.node(kNodeTwo, kIdTwo, 1);
  desk.lose(kNodeOne);
  desk.create({Desk::spec(kActor, 4)});
  CHECK(desk.answer().ok());
  CHECK(desk.info().state == wire::ActorState::kPending);
  desk.node(13, kIdOne, 8);
  CHECK(desk.info().state == wire::ActorState::kStarting);
  // Dead, it is not waited for.
  desk.lose(13);
  desk.pass(milliseconds(5'000), {{kNodeTwo, kIdTwo}});
  desk.create({Desk::spec({8, 8}, 4)});
  CHECK(desk.answer().code() == Code::kResourceExhausted);
}

TEST_CASE("a gang is placed whole or not at all, and ends together while it waits") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.create({Desk::spec({1, 0})});
  desk.create({Desk::spec({2, 0}), Desk::spec({3, 0})}, true);
  CHECK(desk.info({2, 0}).state == wire::ActorState::kPending);
  CHECK(desk.info({3, 0}).state == wire::ActorState::kPending);
  SUBCASE("room comes") {
    desk.killed(kNodeOne, {1, 0}, 1);
    CHECK(desk.sent<wire::StartActor>(kNodeOne).size() == 2);
  }
  SUBCASE("a member is ended") {
    desk.say(kDriver, wire::KillActor{4, {2, 0}, false, 0, ""});
    CHECK(desk.info({2, 0}).state == wire::ActorState::kDead);
    CHECK(desk.info({3, 0}).state == wire::ActorState::kDead);
    CHECK(desk.info({3, 0}).death.code() == Code::kAborted);
  }
}

TEST_CASE("a killed actor is restarted in its place, after a growing back-off, within its budget") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 2)});
  desk.create({Desk::spec({8, 8})});  // waits for the place, and does not get it meanwhile
  for (std::uint64_t generation : {1u, 2u}) {
    desk.ready(kNodeOne, kActor, generation);
    desk.killed(kNodeOne, kActor, generation);
    CHECK(desk.info().state == wire::ActorState::kRestarting);
    CHECK(desk.info({8, 8}).state == wire::ActorState::kPending);
    desk.pass(milliseconds(generation == 1 ? 10 : 20), {{kNodeOne, kIdOne}});
    CHECK(desk.info().state == wire::ActorState::kStarting);
    CHECK(desk.info().generation == generation + 1);
  }
  desk.killed(kNodeOne, kActor, 3);
  CHECK(desk.info().state == wire::ActorState::kDead);
  CHECK(desk.info().death.code() == Code::kActorDied);
  CHECK(desk.info().death.message().find("SIGKILL") != std::string::npos);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kStarting);
}

TEST_CASE("restarts outside the window count no more") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    desk.killed(kNodeOne, kActor, generation);
    CHECK(desk.info().state == wire::ActorState::kRestarting);
    desk.pass(milliseconds(61'000), {{kNodeOne, kIdOne}});
    CHECK(desk.info().generation == generation + 1);
  }
}

TEST_CASE("a report about an old generation changes nothing") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 5)});
  desk.killed(kNodeOne, kActor, 1);
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  desk.killed(kNodeOne, kActor, 1);
  desk.say(kNodeOne, wire::ActorReady{kActor, 1});
  CHECK(desk.info().state == wire::ActorState::kStarting);
  CHECK(desk.info().generation == 2);
}

TEST_CASE("a kill frees the place only when the exit is seen") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor)});
  desk.ready(kNodeOne, kActor, 1);
  desk.create({Desk::spec({8, 8})});
  desk.say(kDriver, wire::KillActor{4, kActor, false, 0, "enough"});
  REQUIRE(desk.sent<wire::StopActor>(kNodeOne).size() == 1);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kPending);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.info().state == wire::ActorState::kDead);
  CHECK(desk.info().death.message().find("enough") != std::string::npos);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kStarting);
}

TEST_CASE(
    "a silent node is dead after its time-out; actors that must not run twice start elsewhere "
    "after the fence, others at once") {
  bool fenced = false;
  SUBCASE("must not") { fenced = true; }
  SUBCASE("may") {}
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  auto spec = Desk::spec(kActor, 1, 3);
  if (fenced) spec.on_head_loss = wire::OnHeadLoss::kFence;
  desk.create({spec});
  desk.ready(kNodeOne, kActor, 1);
  desk.node(kNodeTwo, kIdTwo, 1);
  desk.pass(milliseconds(2'400), {{kNodeTwo, kIdTwo}});
  CHECK(desk.head.nodes().at(kIdOne).info.state == wire::NodeState::kAlive);
  desk.pass(milliseconds(200), {{kNodeTwo, kIdTwo}});
  CHECK(desk.head.nodes().at(kIdOne).info.state == wire::NodeState::kDead);
  if (fenced) {
    CHECK(desk.info().state == wire::ActorState::kRestarting);
    desk.pass(milliseconds(800), {{kNodeTwo, kIdTwo}});
    CHECK(desk.info().state == wire::ActorState::kRestarting);
    desk.pass(milliseconds(300), {{kNodeTwo, kIdTwo}});
  }
  CHECK(desk.info().state == wire::ActorState::kStarting);
  CHECK(desk.info().node_id == kIdTwo);
  CHECK(desk.info().generation == 2);
}

TEST_CASE("a node that comes back in time keeps its actors; one that lost them says so") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.create({Desk::spec(kActor, 1, 1), Desk::spec({8, 8}, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.ready(kNodeOne, {8, 8}, 1);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(500));
  wire::RunningActor running;
  running.spec = Desk::spec(kActor);
  running.generation = 1;
  running.pid = 42;
  running.ready = true;
  wire::RunningActor stranger = running;
  stranger.spec.actor_id = ActorId{5, 5};
  stranger.spec.resources = {};
  desk.node(13, kIdOne, 2, {running, stranger});
  const auto replies = desk.sent<wire::RegisterNodeReply>(13);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].status.ok());
  REQUIRE(replies[0].stop.size() == 1);
  CHECK(replies[0].stop[0].first == ActorId{5, 5});
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kRestarting);
}

// A head that could not keep its last decisions (a full disk) and was restarted.
TEST_CASE("what a node runs and the head forgot is ended, and its generation is not given again") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 3);
  desk.create({Desk::spec(kActor, 1, 3)});
  desk.ready(kNodeOne, kActor, 1);
  desk.lose(kNodeOne);
  wire::RunningActor forgotten;
  forgotten.spec = Desk::spec(kActor, 1, 3);
  forgotten.generation = 2;
  forgotten.ready = true;
  wire::RunningActor unknown = forgotten;
  unknown.spec.actor_id = ActorId{5, 5};
  unknown.generation = 1;
  desk.node(13, kIdOne, 3, {forgotten, unknown});
  const auto replies = desk.sent<wire::RegisterNodeReply>(13);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].stop.size() == 2);
  // Its driver was never told that it was created, and asks again.
  desk.create({Desk::spec({5, 5}, 1, 0)});
  CHECK(desk.info({5, 5}).generation == 2);
  desk.pass(milliseconds(300), {{13, kIdOne}});
  CHECK(desk.info().state != wire::ActorState::kAlive);
  desk.killed(13, kActor, 2);
  desk.pass(milliseconds(300), {{13, kIdOne}});
  CHECK(desk.info().state == wire::ActorState::kStarting);
  CHECK(desk.info().generation == 3);
}

TEST_CASE("a node whose connection closed keeps its actors until it has fenced itself for sure") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(3'990));
  CHECK(desk.info().state == wire::ActorState::kAlive);
  desk.pass(milliseconds(40));  // a second look
  CHECK(desk.info().state == wire::ActorState::kRestarting);
}

TEST_CASE("a draining node whose connection closes may run actors still, until it says farewell") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.node(kNodeTwo, kIdTwo, 1);
  wire::NodeUpdate draining;
  draining.node.node_id = kIdOne;
  draining.node.state = wire::NodeState::kDraining;
  desk.say(kNodeOne, draining);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(3'990), {{kNodeTwo, kIdTwo}});
  CHECK(desk.info().generation == 1);
  CHECK(desk.info().state == wire::ActorState::kAlive);
  desk.pass(milliseconds(50), {{kNodeTwo, kIdTwo}});
  CHECK(desk.info().node_id == kIdTwo);
  CHECK(desk.info().generation == 2);
  // One that has said it is gone at once.
  draining.node.node_id = kIdTwo;
  draining.node.state = wire::NodeState::kDead;
  desk.say(kNodeTwo, draining);
  CHECK(desk.info().state != wire::ActorState::kStarting);
}

TEST_CASE("a node that comes back says what ended meanwhile, and of what") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(500));
  wire::RegisterNode back;
  back.node.node_id = kIdOne;
  back.node.total = {{"CPU", 2 * wire::kResourceUnit}};
  wire::ActorExited exited{kActor, 1};
  exited.exit.signal = 9;
  back.exited = {exited};
  desk.say(13, back);
  CHECK(desk.info().state == wire::ActorState::kRestarting);
  CHECK(desk.info().death.message().find("SIGKILL") != std::string::npos);
  // What happens on a node is found among the cluster's events.
  desk.say(13, wire::NodeNote{"keeper_lost", "the keeper was killed"});
  wire::ListEvents list;
  list.request_id = 4;
  desk.say(kDriver, list);
  const auto events = desk.sent<wire::EventList>(kDriver);
  REQUIRE(events.size() == 1);
  CHECK(events[0].events.back().kind == "keeper_lost");
  CHECK(events[0].events.back().node_id == kIdOne);
}

TEST_CASE("what a node says of an end beside its words comes to whoever watches the actor") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  wire::ActorExited exited{kActor, 1};
  exited.cause = Status(Code::kAborted, "it was killed with the keeper").with("keeper", "lost");
  desk.say(kNodeOne, exited);
  CHECK(desk.info().death.context("keeper") == "lost");
}

TEST_CASE(
    "a lost node that lived on is told to end what has a successor, is dead, or is forgotten") {
  Desk desk;
  const ActorId over{7, 8};
  const ActorId strange{7, 9};
  desk.node(kNodeOne, kIdOne, 4);
  desk.create({Desk::spec(kActor, 1, 1), Desk::spec(over, 1, 0)});
  desk.ready(kNodeOne, kActor, 1);
  desk.ready(kNodeOne, over, 1);
  desk.node(kNodeTwo, kIdTwo, 4);
  desk.pass(milliseconds(4'000), {{kNodeTwo, kIdTwo}});  // silent; its actors run on
  CHECK(desk.info().node_id == kIdTwo);
  CHECK(desk.info().generation == 2);
  CHECK(desk.info(over).state == wire::ActorState::kDead);
  desk.ready(kNodeTwo, kActor, 2);
  // What it says is of a process that does not count.
  desk.node(13, kIdOne, 4,
            {{Desk::spec(kActor), 1, 42, true},
             {Desk::spec(over), 1, 43, true},
             {Desk::spec(strange), 5, 44, true}});
  const std::vector<LeaseKey> all{{kActor, 1}, {over, 1}, {strange, 5}};
  CHECK(desk.sent<wire::RegisterNodeReply>(13).at(0).stop == all);
  for (const auto& [id, generation] : all) desk.killed(13, id, generation);
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info().generation == 2);
  CHECK(desk.info().restarts == 1);
  CHECK(desk.head.nodes().at(kIdOne).leases.empty());
}

TEST_CASE("a node that comes back late gives back what nobody started anew") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(4'500));
  CHECK(desk.info().state == wire::ActorState::kRestarting);
  wire::RunningActor running;
  running.spec = Desk::spec(kActor);
  running.generation = 1;
  running.ready = true;
  desk.node(13, kIdOne, 1, {running});
  CHECK(desk.sent<wire::RegisterNodeReply>(13).at(0).stop.empty());
  CHECK(desk.sent<wire::StartActor>(13).empty());
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info().generation == 1);
}

TEST_CASE("actors end with their owner, unless detached or it comes back") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  wire::ActorSpec detached = Desk::spec({8, 8});
  detached.detached = true;
  desk.create({Desk::spec(kActor), detached});
  desk.lose(kDriver);
  SUBCASE("gone") {
    desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}});
    const auto stops = desk.sent<wire::StopActor>(kNodeOne);
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].actor_id == kActor);
  }
  SUBCASE("back") {
    desk.pass(milliseconds(500), {{kNodeOne, kIdOne}});
    wire::ClientHello hello;
    hello.client_id = ClientId{9, 9};
    hello.reconnect = true;
    desk.say(2, hello);
    desk.pass(milliseconds(2'000), {{kNodeOne, kIdOne}});
    CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());
  }
}

TEST_CASE("what an actor creates belongs to the owner that it names, if there is one") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 2);
  constexpr PeerId kActorProcess = 3;
  wire::ClientHello hello;
  hello.client_id = ClientId{7, 7};
  hello.kind = "actor";
  desk.say(kActorProcess, hello);
  wire::CreateActors request;
  request.specs = {Desk::spec(kActor), Desk::spec({8, 8})};
  request.specs[0].owner = ClientId{9, 9};  // the driver
  request.specs[1].owner = ClientId{6, 6};  // nobody: the process itself
  desk.say(kActorProcess, request);
  desk.lose(kActorProcess);
  desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}});
  auto stops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].actor_id == ActorId{8, 8});
  desk.lose(kDriver);
  desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}});
  stops = desk.sent<wire::StopActor>(kNodeOne);
  CHECK(stops.back().actor_id == kActor);
}

TEST_CASE("names are unique among the living") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 4);
  wire::ActorSpec named = Desk::spec(kActor);
  named.name = "counter";
  desk.create({named});
  CHECK(desk.answer().ok());
  desk.create({named});  // the same request again
  CHECK(desk.answer().ok());
  named.actor_id = {8, 8};
  desk.create({named});
  CHECK(desk.answer().code() == Code::kAlreadyExists);
  desk.killed(kNodeOne, kActor, 1);
  desk.create({named});
  CHECK(desk.answer().ok());
}

TEST_CASE("strangers are refused: no introduction, another protocol") {
  Desk desk;
  desk.say(50, wire::ListNodes{77});
  CHECK(desk.sent<wire::Reply>(50).at(0).status.code() == Code::kFailedPrecondition);
  wire::RegisterNode message;
  message.protocol_version = 99;
  message.node.node_id = kIdOne;
  desk.say(51, message);
  CHECK(desk.sent<wire::RegisterNodeReply>(51).at(0).status.code() == Code::kProtocol);
  CHECK(desk.head.nodes().empty());
}

TEST_CASE("stopping ends actors, nodes, then the head") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 5)});
  desk.create({Desk::spec({8, 8})});
  desk.say(kDriver, wire::StopCluster{6, "done"});
  CHECK(desk.sent<wire::ShutdownNode>(kNodeOne).size() == 1);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kDead);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.info().state == wire::ActorState::kDead);
  desk.lose(kNodeOne);
  REQUIRE(!desk.commands.empty());
  CHECK(holds_alternative<EndHead>(desk.commands.back()));
}

TEST_CASE(
    "a node of which nothing is left is dead at once, and its actors come back; those that must "
    "not run twice after its lease") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.node(kNodeTwo, kIdTwo, 1);
  auto spec = Desk::spec(kActor, 1, 1);
  bool fenced = false;
  SUBCASE("must not") { fenced = true; }
  SUBCASE("may") {}
  if (fenced) spec.on_head_loss = wire::OnHeadLoss::kFence;
  desk.create({spec});
  desk.ready(desk.info().node_id == kIdOne ? kNodeOne : kNodeTwo, kActor, 1);
  const NodeId lost = desk.info().node_id;
  const PeerId other = lost == kIdOne ? kNodeTwo : kNodeOne;
  const NodeId other_id = lost == kIdOne ? kIdTwo : kIdOne;
  desk.lose(lost == kIdOne ? kNodeOne : kNodeTwo);
  const auto* probe = get_if<ProbeNode>(&desk.commands.back());
  REQUIRE(probe != nullptr);
  CHECK(probe->node_id == lost);
  const NodeGone gone{lost, probe->endpoint};
  SUBCASE("it is gone") {
    desk.take(desk.head.apply(gone, desk.now));
    CHECK(desk.head.nodes().at(lost).info.state == wire::NodeState::kDead);
    if (fenced) {
      desk.pass(milliseconds(3400), {{other, other_id}});
      CHECK(desk.sent<wire::StartActor>(other).empty());
    }
    desk.pass(milliseconds(200), {{other, other_id}});
    CHECK(desk.sent<wire::StartActor>(other).size() == 1);
  }
  SUBCASE("it has come back meanwhile") {
    wire::RunningActor running;
    running.spec = Desk::spec(kActor, 1, 1);
    running.generation = 1;
    running.ready = true;
    desk.node(31, lost, 1, {running});
    desk.take(desk.head.apply(gone, desk.now));
    CHECK(desk.head.nodes().at(lost).info.state == wire::NodeState::kAlive);
    CHECK(desk.info().state == wire::ActorState::kAlive);
  }
  SUBCASE("of another address nothing is said") {
    desk.take(desk.head.apply(NodeGone{lost, {"10.0.0.1", 7, ""}}, desk.now));
    CHECK(desk.head.nodes().at(lost).info.state == wire::NodeState::kAlive);
  }
}

TEST_CASE("a watch of an actor that is not there yet waits for its creation, for a while") {
  Desk desk;
  desk.say(kDriver, wire::WatchActor{20, kActor, "", false});
  CHECK(desk.sent<wire::Reply>(kDriver).empty());
  SUBCASE("it comes") {
    desk.create({Desk::spec(kActor)});
    const auto replies = desk.sent<wire::Reply>(kDriver);
    REQUIRE(replies.size() == 2);
    CHECK(replies[1].request_id == 20);
    CHECK(replies[1].status.ok());
    CHECK(desk.sent<wire::ActorUpdate>(kDriver).at(0).actor.actor_id == kActor);
  }
  SUBCASE("it does not") {
    desk.pass(milliseconds(2100));
    CHECK(desk.answer().code() == Code::kNotFound);
    desk.node(kNodeOne, kIdOne, 1);
    desk.create({Desk::spec(kActor)});
    CHECK(desk.sent<wire::ActorUpdate>(kDriver).empty());
  }
  SUBCASE("nobody waits any more") {
    desk.say(kDriver, wire::WatchActor{21, kActor, "", true});
    // The one that is given up has its answer, too.
    const auto replies = desk.sent<wire::Reply>(kDriver);
    REQUIRE(replies.size() == 2);
    CHECK(replies[0].request_id == 20);
    CHECK(replies[0].status.code() == Code::kNotFound);
    CHECK(replies[1].request_id == 21);
    CHECK(replies[1].status.ok());
    desk.pass(milliseconds(2100));
    CHECK(desk.sent<wire::Reply>(kDriver).size() == 2);
  }
  SUBCASE("who waited is gone") {
    desk.lose(kDriver);
    desk.pass(milliseconds(2100));
  }
}

TEST_CASE("stopping waits for a node that is away, and tells it when it comes back") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor)});
  desk.ready(kNodeOne, kActor, 1);
  desk.restart();  // the node has not come back yet
  wire::ClientHello hello;
  hello.client_id = ClientId{9, 9};
  desk.say(kDriver, hello);
  const auto ended = [&] {
    return std::any_of(desk.commands.begin(), desk.commands.end(),
                       [](const Command& command) { return holds_alternative<EndHead>(command); });
  };
  desk.say(kDriver, wire::StopCluster{6, "done"});
  CHECK_FALSE(ended());
  SUBCASE("it comes back") {
    wire::RunningActor running;
    running.spec = Desk::spec(kActor);
    running.generation = 1;
    running.ready = true;
    desk.node(21, kIdOne, 1, {running});
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).status.ok());
    CHECK(desk.sent<wire::ShutdownNode>(21).at(0).reason == "done");
    CHECK_FALSE(ended());
    desk.killed(21, kActor, 1);
    desk.lose(21);
  }
  SUBCASE("it does not") { desk.pass(milliseconds(10'500)); }
  CHECK(ended());
}

TEST_CASE("a head that comes back knows everything, and waits for its nodes") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  desk.ready(kNodeOne, kActor, 1);
  desk.create({Desk::spec({8, 8})});

  HeadState second;
  for (const Delta& delta : desk.journal) REQUIRE(second.replay(delta).ok());
  CHECK(second.snapshot() == desk.head.snapshot());
  desk.head = std::move(second);
  desk.take(desk.head.resume(desk.now));
  CHECK(desk.info().state == wire::ActorState::kAlive);
  wire::RunningActor running;
  running.spec = Desk::spec(kActor);
  running.generation = 1;
  running.ready = true;
  desk.node(21, kIdOne, 1, {running});
  CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).stop.empty());
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kPending);
}

TEST_CASE("a start that a head decided and could not say any more is said by the next one") {
  for (const bool started : {false, true}) {
    CAPTURE(started);
    Desk desk;
    desk.node(kNodeOne, kIdOne, 1);
    desk.create({Desk::spec(kActor, 1, 0)});  // it may not be restarted
    if (started) desk.say(kNodeOne, wire::ActorStarted{kActor, 1, 4711});
    HeadState second;
    for (const Delta& delta : desk.journal) REQUIRE(second.replay(delta).ok());
    desk.head = std::move(second);
    desk.take(desk.head.resume(desk.now));
    desk.node(21, kIdOne, 1);  // which runs nothing
    desk.pass(milliseconds(10));
    if (started) {
      CHECK(desk.info().state == wire::ActorState::kDead);
    } else {
      CHECK(desk.info().state == wire::ActorState::kStarting);
      CHECK(desk.sent<wire::StartActor>(21).at(0).generation == 2);
    }
  }
}

TEST_CASE("a journal that contradicts itself is told") {
  HeadState head;
  CHECK(head.replay(ActorChanged{}).code() == Code::kDataLoss);
  REQUIRE(head.replay(ActorCreated{Desk::spec(kActor), 0}).ok());
  ActorChanged changed;
  changed.info.actor_id = kActor;
  changed.queue_order = 1;
  CHECK(head.replay(changed).ok());
  changed.info.state = wire::ActorState::kStarting;
  CHECK(head.replay(changed).code() == Code::kDataLoss);
  changed.info.state = wire::ActorState::kAlive;
  CHECK(head.replay(changed).code() == Code::kDataLoss);
  changed.queue_order = 0;
  CHECK(head.replay(changed).ok());
}
