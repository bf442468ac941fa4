// Supervisors: who is restarted with whom, when a group gives up, and what a new head knows of it.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;
using wire::ActorState;
using wire::RestartStrategy;
using wire::SupervisorState;

namespace {

const SupervisorId kSupervisor{50, 1};
const SupervisorId kOuter{50, 2};
const ActorId kA{1, 1};
const ActorId kB{2, 2};
const ActorId kC{3, 3};
constexpr int kRestarts = 2;

struct Group : Desk {
  explicit Group(RestartStrategy strategy = RestartStrategy::kOneForOne) {
    node(kNodeOne, kIdOne, 8);
    REQUIRE(supervise(kSupervisor, strategy).ok());
    for (ActorId id : {kA, kB, kC}) add(id, kSupervisor);
  }
  static wire::SupervisorSpec supervisor(SupervisorId id, RestartStrategy strategy,
                                         SupervisorId parent = {}) {
    wire::SupervisorSpec spec;
    spec.supervisor_id = id;
    spec.name = "group " + std::to_string(id.low);
    spec.strategy = strategy;
    spec.restart = {.max_restarts = kRestarts,
                    .window_ms = 10'000,
                    .backoff_initial_ms = 10,
                    .backoff_max_ms = 1'000};
    spec.parent = parent;
    return spec;
  }
  Status supervise(SupervisorId id, RestartStrategy strategy, SupervisorId parent = {}) {
    say(kDriver, wire::CreateSupervisor{12, supervisor(id, strategy, parent)});
    return answer();
  }
  void add(ActorId id, SupervisorId group, PeerId node = kNodeOne) {
    wire::ActorSpec member = spec(id);
    member.supervisor = group;
    create({member});
    REQUIRE(answer().ok());
    ready(node, id, 1);
  }
  // Whom the head told the node to stop, and to start again.
  std::vector<ActorId> stopped(bool comes_back = true, PeerId node = kNodeOne) const {
    std::vector<ActorId> ids;
    for (const auto& stop : sent<wire::StopActor>(node)) {
      if (stop.comes_back == comes_back) ids.push_back(stop.actor_id);
    }
    return ids;
  }
  // Its process dies by itself, and those that are stopped for it, too; then the back-off.
  void fails(ActorId id) {
    killed(kNodeOne, id, info(id).generation);
    for (ActorId other : stopped()) killed(kNodeOne, other, info(other).generation);
    pass(milliseconds(50), {{kNodeOne, kIdOne}});
    for (const auto& [actor, record] : head.actors()) {
      if (record.info.state == ActorState::kStarting) {
        ready(kNodeOne, actor, record.info.generation);
      }
    }
  }
  std::vector<std::uint64_t> generations() {
    return {info(kA).generation, info(kB).generation, info(kC).generation};
  }
  wire::SupervisorInfo seen(SupervisorId id) {
    say(kDriver, wire::WatchSupervisor{13, id, false});
    const auto updates = sent<wire::SupervisorUpdate>(kDriver);
    REQUIRE(updates.size() == 1);
    return updates[0].supervisor;
  }
  std::vector<std::string> events() {
    wire::ListEvents list;
    list.request_id = 14;
    say(kDriver, list);
    std::vector<std::string> kinds;
    const auto lists = sent<wire::EventList>(kDriver);
    REQUIRE(lists.size() == 1);
    for (const auto& event : lists[0].events) kinds.push_back(event.kind);
    return kinds;
  }
};

using Ids = std::vector<ActorId>;
using Generations = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("one-for-one: the one that failed is restarted") {
  Group desk(RestartStrategy::kOneForOne);
  desk.fails(kB);
  CHECK(desk.generations() == Generations{1, 2, 1});
  CHECK(desk.info(kB).state == ActorState::kAlive);
  const wire::SupervisorInfo seen = desk.seen(kSupervisor);
  CHECK(seen.restarts == 1);
  CHECK(seen.state == SupervisorState::kRunning);
  CHECK(seen.why.message().find("SIGKILL") != std::string::npos);
  REQUIRE(seen.members.size() == 3);
  CHECK(seen.members[1].actor == kB);
}

TEST_CASE("all-for-one: everybody is stopped, and all start when the last is gone") {
  Group desk(RestartStrategy::kAllForOne);
  desk.killed(kNodeOne, kB, 1);
  CHECK(desk.stopped() == Ids{kA, kC});
  CHECK(desk.seen(kSupervisor).state == SupervisorState::kRestarting);
  desk.killed(kNodeOne, kA, 1);
  desk.pass(milliseconds(500), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kA).state == ActorState::kRestarting);
  CHECK(desk.info(kB).state == ActorState::kRestarting);
  desk.killed(kNodeOne, kC, 1);
  CHECK(desk.seen(kSupervisor).state == SupervisorState::kRunning);
  CHECK(desk.info(kA).state == ActorState::kRestarting);  // the back-off
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  CHECK(desk.generations() == Generations{2, 2, 2});
  CHECK(desk.seen(kSupervisor).restarts == 1);
}

TEST_CASE("rest-for-one: those that were added later go with it") {
  Group desk(RestartStrategy::kRestForOne);
  desk.killed(kNodeOne, kB, 1);
  CHECK(desk.stopped() == Ids{kC});
  desk.killed(kNodeOne, kC, 1);
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  CHECK(desk.generations() == Generations{1, 2, 2});
  desk.pass(milliseconds(11'000), {{kNodeOne, kIdOne}});
  // The first one fails while the others are being stopped: they are waited for together.
  desk.ready(kNodeOne, kB, 2);
  desk.ready(kNodeOne, kC, 2);
  desk.killed(kNodeOne, kB, 2);
  desk.killed(kNodeOne, kA, 1);
  CHECK(desk.info(kA).state == ActorState::kRestarting);
  desk.pass(milliseconds(500), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kA).state == ActorState::kRestarting);
  desk.killed(kNodeOne, kC, 2);
  desk.pass(milliseconds(100), {{kNodeOne, kIdOne}});
  CHECK(desk.generations() == Generations{2, 3, 3});
}

TEST_CASE("a group that fails too often gives up: all end, and its owner is told why") {
  Group desk(RestartStrategy::kOneForOne);
  CHECK(desk.seen(kSupervisor).state == SupervisorState::kRunning);  // watched from here on
  desk.fails(kA);
  desk.fails(kB);
  desk.killed(kNodeOne, kC, 1);
  CHECK(desk.stopped(false) == Ids{kA, kB});
  const auto told = desk.sent<wire::SupervisorUpdate>(kDriver);
  REQUIRE(told.size() == 1);
  CHECK(told[0].supervisor.state == SupervisorState::kEnded);
  CHECK(told[0].supervisor.why.code() == Code::kAborted);
  CHECK(told[0].supervisor.why.message().find("gave up after 2 restarts within 10000 ms") !=
        std::string::npos);
  CHECK(told[0].supervisor.why.message().find("SIGKILL") != std::string::npos);
  CHECK(desk.info(kC).state == ActorState::kDead);
  desk.killed(kNodeOne, kA, 2);
  desk.killed(kNodeOne, kB, 2);
  CHECK(desk.info(kA).death.message().find("gave up after 2 restarts") != std::string::npos);
  // It takes nobody any more.
  wire::ActorSpec late = Desk::spec({9, 9});
  late.supervisor = kSupervisor;
  desk.create({late});
  CHECK(desk.answer().code() == Code::kFailedPrecondition);
}

TEST_CASE("restarts of a group outside of its window count no more") {
  Group desk(RestartStrategy::kOneForOne);
  for (int i = 0; i < 2 * kRestarts; ++i) {
    desk.fails(kA);
    desk.pass(milliseconds(6'000), {{kNodeOne, kIdOne}});
  }
  CHECK(desk.seen(kSupervisor).state == SupervisorState::kRunning);
}

TEST_CASE("the back-off grows with the group's restarts") {
  Group desk(RestartStrategy::kOneForOne);
  desk.killed(kNodeOne, kA, 1);
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kA).state == ActorState::kStarting);
  desk.killed(kNodeOne, kB, 1);
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kB).state == ActorState::kRestarting);
  desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kB).state == ActorState::kStarting);
}

TEST_CASE("a group inside another escalates: its parent restarts it whole, then gives up itself") {
  Group desk(RestartStrategy::kOneForOne);
  REQUIRE(desk.supervise(kOuter, RestartStrategy::kOneForOne).ok());
  const SupervisorId inner{50, 3};
  REQUIRE(desk.supervise(inner, RestartStrategy::kOneForOne, kOuter).ok());
  const ActorId beside{4, 4};
  const ActorId one{5, 5};
  const ActorId two{6, 6};
  desk.add(beside, kOuter);
  desk.add(one, inner);
  desk.add(two, inner);
  for (int escalation = 1; escalation <= kRestarts; ++escalation) {
    for (int i = 0; i < kRestarts; ++i) desk.fails(one);
    const std::uint64_t before = desk.info(two).generation;
    desk.killed(kNodeOne, one, desk.info(one).generation);
    CHECK(desk.stopped() == Ids{two});
    CHECK(desk.info(beside).generation == 1);
    desk.killed(kNodeOne, two, before);
    desk.pass(milliseconds(50), {{kNodeOne, kIdOne}});
    desk.ready(kNodeOne, one, desk.info(one).generation);
    desk.ready(kNodeOne, two, desk.info(two).generation);
    CHECK(desk.info(two).generation == before + 1);
    CHECK(desk.seen(kOuter).restarts == escalation);
    CHECK(desk.seen(inner).state == SupervisorState::kRunning);
  }
  for (int i = 0; i < kRestarts; ++i) desk.fails(one);
  desk.killed(kNodeOne, one, desk.info(one).generation);
  CHECK(desk.stopped(false) == Ids{two, beside});
  CHECK(desk.seen(kOuter).state == SupervisorState::kEnded);
  CHECK(desk.seen(kOuter).why.code() == Code::kAborted);
  CHECK(desk.seen(inner).state == SupervisorState::kEnded);
  CHECK(desk.seen(kSupervisor).state == SupervisorState::kRunning);
  const auto events = desk.events();
  CHECK(std::count(events.begin(), events.end(), "supervisor_escalated") == 3);
}

TEST_CASE("an all-for-one parent swallows the restart of a group inside") {
  Group desk(RestartStrategy::kOneForOne);
  REQUIRE(desk.supervise(kOuter, RestartStrategy::kAllForOne).ok());
  const SupervisorId inner{50, 3};
  REQUIRE(desk.supervise(inner, RestartStrategy::kAllForOne, kOuter).ok());
  const ActorId beside{4, 4};
  const ActorId one{5, 5};
  const ActorId two{6, 6};
  desk.add(beside, kOuter);
  desk.add(one, inner);
  desk.add(two, inner);
  desk.killed(kNodeOne, one, 1);
  CHECK(desk.stopped() == Ids{two});
  desk.killed(kNodeOne, beside, 1);  // while that goes on
  desk.killed(kNodeOne, two, 1);
  desk.pass(milliseconds(50), {{kNodeOne, kIdOne}});
  for (ActorId id : {beside, one, two}) CHECK(desk.info(id).generation == 2);
}

TEST_CASE("a member that is ended on purpose leaves; one that is killed with restart has failed") {
  Group desk(RestartStrategy::kAllForOne);
  desk.say(kDriver, wire::KillActor{4, kA, false, 0, "enough"});
  desk.killed(kNodeOne, kA, 1);
  CHECK(desk.info(kA).state == ActorState::kDead);
  CHECK(desk.generations() == Generations{1, 1, 1});
  CHECK(desk.seen(kSupervisor).members.size() == 2);
  desk.say(kDriver, wire::KillActor{4, kB, true, 0, "again"});
  desk.killed(kNodeOne, kB, 1);
  CHECK(desk.stopped() == Ids{kC});
  // … also while the others wait for it.
  desk.say(kDriver, wire::KillActor{4, kC, false, 0, "enough"});
  desk.killed(kNodeOne, kC, 1);
  desk.pass(milliseconds(50), {{kNodeOne, kIdOne}});
  CHECK(desk.info(kC).state == ActorState::kDead);
  CHECK(desk.info(kB).generation == 2);
}

TEST_CASE("what dies with one node is one failure") {
  Group desk(RestartStrategy::kOneForOne);
  desk.node(kNodeTwo, kIdTwo, 8);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(4'100), {{kNodeTwo, kIdTwo}});
  CHECK(desk.seen(kSupervisor).restarts == 1);
  for (ActorId id : {kA, kB, kC}) CHECK(desk.info(id).node_id == kIdTwo);
}

TEST_CASE("a supervisor ends on request, with its owner, and with its job") {
  Group desk(RestartStrategy::kOneForOne);
  SUBCASE("on request") { desk.say(kDriver, wire::EndSupervisor{15, kSupervisor, "enough"}); }
  SUBCASE("with its driver") {
    desk.lose(kDriver);
    desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}});
  }
  SUBCASE("while it restarts its members") {
    desk.killed(kNodeOne, kA, 1);
    desk.say(kDriver, wire::EndSupervisor{15, kSupervisor, "enough"});
    CHECK(desk.info(kA).state == ActorState::kDead);
  }
  const SupervisorRecord& record = desk.head.supervisors().at(kSupervisor);
  CHECK(record.ended());
  CHECK(record.info.why.code() == Code::kCancelled);
  for (ActorId id : {kA, kB, kC}) {
    if (!desk.head.actors().at(id).dead()) desk.killed(kNodeOne, id, 1);
    CHECK(desk.info(id).state == ActorState::kDead);
  }
}

TEST_CASE("a supervisor that an actor owns ends with it") {
  Group desk;
  const ActorId owner{7, 7};
  desk.create({Desk::spec(owner)});
  desk.ready(kNodeOne, owner, 1);
  wire::SupervisorSpec spec = Group::supervisor(kOuter, RestartStrategy::kOneForOne);
  spec.owner_actor = owner;
  desk.say(kDriver, wire::CreateSupervisor{12, spec});
  desk.add({8, 8}, kOuter);
  desk.killed(kNodeOne, owner, 1);
  CHECK(desk.stopped(false) == Ids{{8, 8}});
  CHECK(desk.seen(kOuter).state == SupervisorState::kEnded);
}

TEST_CASE("what makes no sense is refused by name") {
  Group desk;
  CHECK(desk.supervise(kOuter, RestartStrategy::kOneForOne, {99, 99}).code() == Code::kNotFound);
  wire::ActorSpec spec = Desk::spec({9, 9});
  spec.supervisor = {99, 99};
  desk.create({spec});
  CHECK(desk.answer().code() == Code::kNotFound);
  spec.supervisor = kSupervisor;
  spec.restart.max_restarts = 3;
  desk.create({spec});
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  spec.restart.max_restarts = 0;
  spec.detached = true;
  desk.create({spec});
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  desk.say(kDriver, wire::EndSupervisor{15, kSupervisor, ""});
  CHECK(desk.supervise(kOuter, RestartStrategy::kOneForOne, kSupervisor).code() ==
        Code::kFailedPrecondition);
  // The same request again is done already.
  CHECK(desk.supervise(kSupervisor, RestartStrategy::kOneForOne).ok());
}

TEST_CASE("a head that comes back goes on with a restart, and with the count") {
  Group desk(RestartStrategy::kAllForOne);
  desk.fails(kA);
  desk.fails(kA);
  const auto comes_back = [&](std::vector<ActorId> running) {
    std::vector<wire::RunningActor> processes;
    for (ActorId id : running) {
      processes.push_back({desk.head.actors().at(id).spec, desk.info(id).generation, 42, true});
    }
    desk.restart();
    desk.introduce_driver();
    desk.node(kNodeTwo, kIdOne, 8, processes);
  };
  SUBCASE("in the middle of one") {
    desk.pass(milliseconds(11'000), {{kNodeOne, kIdOne}});
    desk.killed(kNodeOne, kA, 3);
    desk.killed(kNodeOne, kB, 3);
    comes_back({kC});
    CHECK(desk.info(kA).state == ActorState::kRestarting);
    const auto replies = desk.sent<wire::RegisterNodeReply>(kNodeTwo);
    REQUIRE(replies.size() == 1);
    REQUIRE(replies[0].stop.size() == 1);
    CHECK(replies[0].stop[0].first == kC);
    desk.pass(milliseconds(10'100), {{kNodeTwo, kIdOne}});
    CHECK(desk.info(kA).state == ActorState::kRestarting);
    desk.killed(kNodeTwo, kC, 3);
    desk.pass(milliseconds(1'000), {{kNodeTwo, kIdOne}});
    CHECK(desk.generations() == Generations{4, 4, 4});
  }
  SUBCASE("and it gives up when the old one would have") {
    comes_back({kA, kB, kC});
    desk.killed(kNodeTwo, kB, 3);
    CHECK(desk.seen(kSupervisor).state == SupervisorState::kEnded);
  }
}
