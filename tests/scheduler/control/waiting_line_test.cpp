// Who goes first among those that wait for room, and that nobody waits for ever.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;
using State = wire::PlacementGroupState;

namespace {

const GroupId kLarge{5, 5};

// One node of 4 CPUs on which small actors come and go: never all CPUs are free.
struct Churn : Desk {
  std::uint64_t next = 1;
  std::uint64_t oldest = 1;
  Churn() {
    node(kNodeOne, kIdOne, "one", cpus(4));
    for (int i = 0; i < 4; ++i) arrive();
  }
  void arrive() { create({spec({1, next++})}); }
  // A moment later the oldest small one that runs ends, and another one has come.
  void turn_over(milliseconds time) {
    pass(time, {{kNodeOne, kIdOne}});
    arrive();
    if (oldest < next && info({1, oldest}).state == wire::ActorState::kStarting) {
      killed(kNodeOne, {1, oldest++}, 1);
    }
  }
};

// Whether it ran within so many rounds of 500 ms.
template <typename Runs>
bool runs_within(Churn& churn, int rounds, Runs runs) {
  for (int i = 0; i < rounds && !runs(); ++i) {
    churn.turn_over(milliseconds(500));
    if (!churn.sent<wire::PrepareBundles>(kNodeOne).empty()) churn.agree({kNodeOne});
  }
  return runs();
}

}  // namespace

TEST_CASE("an owner is told once, unasked, that its actor has to wait; nobody where none does") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kActor, 1, 1)});
  CHECK(desk.sent<wire::ActorUpdate>(kDriver).empty());  // it has room
  desk.ready(kNodeOne, kActor, 1);
  const ActorId second{7, 8};
  desk.create({Desk::spec(second)});
  auto told = desk.sent<wire::ActorUpdate>(kDriver);
  REQUIRE(told.size() == 1);
  CHECK(told[0].actor.actor_id == second);
  CHECK(told[0].actor.state == wire::ActorState::kPending);
  CHECK(told[0].actor.pending_why.empty());  // whoever wants to know asks
  CHECK(desk.seen(second).pending_why.find("needs CPU 1") != std::string::npos);
}

TEST_CASE("small actors do not overtake a gang for ever") {
  Churn churn;
  churn.create({Desk::spec({2, 1}, 2), Desk::spec({2, 2}, 2)}, true);
  CHECK(churn.info({2, 1}).state == wire::ActorState::kPending);
  // Within its patience it is overtaken.
  for (int i = 0; i < 8; ++i) churn.turn_over(milliseconds(500));
  CHECK(churn.info({2, 1}).state == wire::ActorState::kPending);
  CHECK(churn.info({1, 5}).generation == 1);
  CHECK(runs_within(churn, 12, [&] {
    return churn.info({2, 1}).state == wire::ActorState::kStarting;
  }));
  CHECK(churn.info({2, 2}).state == wire::ActorState::kStarting);
}

TEST_CASE("nor a placement group, nor a large actor") {
  Churn churn;
  SUBCASE("group") {
    churn.create(Desk::group(kLarge, {2, 2}, wire::PlacementStrategy::kStrictPack));
    CHECK(
        runs_within(churn, 20, [&] { return churn.group_info(kLarge).state == State::kCreated; }));
  }
  SUBCASE("actor") {
    churn.create({Desk::spec({2, 1}, 4)});
    CHECK(runs_within(churn, 20, [&] {
      return churn.info({2, 1}).state == wire::ActorState::kStarting;
    }));
  }
}

TEST_CASE("it says that room is kept, and the others why they wait") {
  Churn churn;
  churn.create({Desk::spec({2, 1}, 4)});
  churn.pass(milliseconds(5'100), {{kNodeOne, kIdOne}});
  churn.killed(kNodeOne, {1, 1}, 1);
  churn.create({Desk::spec({3, 1}, 1)});
  CHECK(churn.info({3, 1}).state == wire::ActorState::kPending);
  CHECK(churn.seen(ActorId{2, 1}).pending_why.find("it is its turn") != std::string::npos);
  CHECK(churn.seen(ActorId{3, 1}).pending_why.find("4 kept for what waits longer") !=
        std::string::npos);
  // What needs nothing of it goes on.
  auto free = Desk::spec({3, 2});
  free.resources.clear();
  churn.create({free});
  CHECK(churn.info({3, 2}).state == wire::ActorState::kStarting);
  // Its turn ends before what runs does: the others go on meanwhile. They may be what it waits for.
  churn.pass(milliseconds(5'100), {{kNodeOne, kIdOne}});
  CHECK(churn.info({3, 1}).state == wire::ActorState::kStarting);
}

TEST_CASE("room is kept where it could be had, and the rest of the cluster goes on") {
  Churn churn;
  churn.create({Desk::spec({2, 1}, 4)});
  churn.pass(milliseconds(5'100), {{kNodeOne, kIdOne}});
  churn.node(kNodeTwo, kIdTwo, "two", Desk::cpus(3));
  churn.create({Desk::spec({3, 1}, 1)});
  CHECK(churn.info({3, 1}).state == wire::ActorState::kStarting);
  CHECK(churn.info({3, 1}).node_id == kIdTwo);
}

TEST_CASE("what no node could ever hold keeps nobody waiting") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(4));
  desk.create(Desk::group(kLarge, {10'000}));
  desk.pass(milliseconds(6'000), {{kNodeOne, kIdOne}});
  desk.create({Desk::spec({1, 1}, 4)});
  CHECK(desk.info({1, 1}).state == wire::ActorState::kStarting);
}

TEST_CASE("a turn ends with what had it") {
  Churn churn;
  churn.create({Desk::spec({2, 1}, 4)});
  churn.pass(milliseconds(5'100), {{kNodeOne, kIdOne}});
  churn.killed(kNodeOne, {1, 1}, 1);
  churn.create({Desk::spec({3, 1}, 1)});
  CHECK(churn.info({3, 1}).state == wire::ActorState::kPending);
  churn.say(kDriver, wire::KillActor{4, {2, 1}, false, 0, ""});
  CHECK(churn.info({3, 1}).state == wire::ActorState::kStarting);
}

TEST_CASE("larger priorities go first, whoever asked before; what runs is not stopped") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.create({Desk::spec({1, 1}, 2)});
  desk.create({Desk::spec({2, 1}, 2)});
  auto urgent = Desk::group(kLarge, {2});
  urgent.priority = 5;
  desk.create(urgent);
  auto gang = std::vector{Desk::spec({3, 1}, 1), Desk::spec({3, 2}, 1)};
  gang[1].priority = 9;  // a gang has the largest of its members'
  desk.create(gang, true);
  CHECK(desk.info({1, 1}).state == wire::ActorState::kStarting);
  desk.killed(kNodeOne, {1, 1}, 1);
  CHECK(desk.info({3, 1}).state == wire::ActorState::kStarting);
  CHECK(desk.info({3, 2}).state == wire::ActorState::kStarting);
  desk.killed(kNodeOne, {3, 1}, 1);
  desk.killed(kNodeOne, {3, 2}, 1);
  CHECK(desk.group_info(kLarge).state == State::kPreparing);
  CHECK(desk.info({2, 1}).state == wire::ActorState::kPending);
  desk.restart();  // the order is remembered
  CHECK(desk.info({2, 1}).state == wire::ActorState::kPending);
  desk.node(21, kIdOne, "one", Desk::cpus(2));
  CHECK(desk.group_info(kLarge).state == State::kPreparing);
  CHECK(desk.info({2, 1}).state == wire::ActorState::kPending);
}

TEST_CASE("a group that lost its node waits where it was in line") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.create(Desk::group(kLarge, {2}));
  desk.agree({kNodeOne});
  desk.create({Desk::spec({2, 1}, 2)});
  desk.lose(kNodeOne);
  desk.pass(milliseconds(4'100));
  CHECK(desk.group_info(kLarge).state == State::kRescheduling);
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(2));
  CHECK(desk.group_info(kLarge).state == State::kPreparing);
  CHECK(desk.info({2, 1}).state == wire::ActorState::kPending);
}
