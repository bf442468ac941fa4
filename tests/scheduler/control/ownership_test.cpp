// Actors that end with their owner: a driver, another actor, its process.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

const ActorId kOwner{1, 1};
const ActorId kChild{2, 2};
const ActorId kGrandchild{3, 3};

wire::ActorSpec owned(ActorId id, ActorId owner, std::uint64_t generation = 0) {
  wire::ActorSpec spec = Desk::spec(id);
  spec.owner_actor = owner;
  spec.owner_generation = generation;
  return spec;
}

// An owner that may restart, its child, and that one's child, all alive on one node.
struct Family : Desk {
  explicit Family(std::uint64_t generation = 0) {
    node(kNodeOne, kIdOne, 8);
    create({spec(kOwner, 1, 1)});
    ready(kNodeOne, kOwner, 1);
    create({owned(kChild, kOwner, generation)});
    REQUIRE(answer().ok());
    ready(kNodeOne, kChild, 1);
    create({owned(kGrandchild, kChild)});
    ready(kNodeOne, kGrandchild, 1);
  }
  bool told_to_stop(ActorId id, PeerId peer = kNodeOne) const {
    for (const auto& stop : sent<wire::StopActor>(peer)) {
      if (stop.actor_id == id && !stop.comes_back) return true;
    }
    return false;
  }
};

}  // namespace

TEST_CASE("an actor's end ends what it owns, and what that owns") {
  Family desk;
  desk.say(kDriver, wire::KillActor{4, kOwner, false, 0, "enough"});
  CHECK_FALSE(desk.told_to_stop(kChild));
  desk.killed(kNodeOne, kOwner, 1);
  CHECK(desk.told_to_stop(kChild));
  CHECK_FALSE(desk.told_to_stop(kGrandchild));
  desk.killed(kNodeOne, kChild, 1);
  CHECK(desk.info(kChild).state == wire::ActorState::kDead);
  CHECK(desk.info(kChild).death.message().find("its owner (Counter") != std::string::npos);
  CHECK(desk.told_to_stop(kGrandchild));
}

TEST_CASE("what an actor owns as such stays while it restarts, and ends when it gives up") {
  Family desk;
  desk.killed(kNodeOne, kOwner, 1);
  CHECK(desk.info(kOwner).state == wire::ActorState::kRestarting);
  CHECK_FALSE(desk.told_to_stop(kChild));
  desk.pass(milliseconds(20), {{kNodeOne, kIdOne}});
  desk.ready(kNodeOne, kOwner, 2);
  desk.killed(kNodeOne, kOwner, 2);
  CHECK(desk.info(kOwner).state == wire::ActorState::kDead);
  CHECK(desk.told_to_stop(kChild));
}

TEST_CASE("what an actor's process owns ends with that process") {
  Family desk(1);
  desk.killed(kNodeOne, kOwner, 1);
  CHECK(desk.info(kOwner).state == wire::ActorState::kRestarting);
  CHECK(desk.told_to_stop(kChild));
  desk.killed(kNodeOne, kChild, 1);
  CHECK(desk.info(kChild).death.message().find("has lost its process") != std::string::npos);
  desk.pass(milliseconds(20), {{kNodeOne, kIdOne}});
  // What it said before its end, and is heard of only now, would be nobody's.
  desk.create({owned({5, 5}, kOwner, 1)});
  CHECK(desk.answer().code() == Code::kFailedPrecondition);
  desk.create({owned({5, 5}, kOwner, 2)});
  CHECK(desk.answer().ok());
}

TEST_CASE("a node's death ends what its actors own elsewhere") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.create({Desk::spec(kOwner)});
  desk.ready(kNodeOne, kOwner, 1);
  desk.node(kNodeTwo, kIdTwo, 1);
  desk.create({owned(kChild, kOwner)});
  desk.ready(kNodeTwo, kChild, 1);
  desk.lose(kNodeOne);
  desk.pass(milliseconds(4'100), {{kNodeTwo, kIdTwo}});
  const auto stops = desk.sent<wire::StopActor>(kNodeTwo);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].actor_id == kChild);
}

TEST_CASE("a driver's end ends the whole tree, whichever of it is detached stays with its own") {
  Family desk;
  wire::ActorSpec detached = owned({4, 4}, kOwner);
  detached.detached = true;
  desk.create({detached});
  desk.ready(kNodeOne, {4, 4}, 1);
  desk.create({owned({5, 5}, {4, 4})});
  desk.ready(kNodeOne, {5, 5}, 1);
  desk.lose(kDriver);
  desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}});
  CHECK(desk.told_to_stop(kOwner));
  CHECK_FALSE(desk.told_to_stop(kChild));  // in its turn
  desk.killed(kNodeOne, kOwner, 1);
  CHECK(desk.told_to_stop(kChild));
  desk.killed(kNodeOne, kChild, 1);
  desk.killed(kNodeOne, kGrandchild, 1);
  for (ActorId id : {kOwner, kChild, kGrandchild}) {
    CHECK(desk.info(id).state == wire::ActorState::kDead);
  }
  CHECK(desk.info({4, 4}).state == wire::ActorState::kAlive);
  CHECK(desk.info({5, 5}).state == wire::ActorState::kAlive);
  // It ends with the one that is detached.
  desk.killed(kNodeOne, {4, 4}, 1);
  CHECK(desk.told_to_stop({5, 5}));
}

// peer: DefaultActorLifetimeTest
TEST_CASE("a detached child outlives the actor that made it") {
  Family desk;
  wire::ActorSpec detached = owned({4, 4}, kOwner, 1);
  detached.detached = true;
  desk.create({detached});
  desk.ready(kNodeOne, {4, 4}, 1);
  desk.say(kDriver, wire::KillActor{4, kOwner, false, 0, "enough"});
  desk.killed(kNodeOne, kOwner, 1);
  CHECK(desk.info({4, 4}).state == wire::ActorState::kAlive);
  CHECK(desk.info({4, 4}).detached);
  CHECK_FALSE(desk.told_to_stop({4, 4}));
}

TEST_CASE("the end of a job spares what detached actors own") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  const auto of_job = [](wire::ActorSpec spec) {
    spec.job_id = JobId{6, 6};
    return spec;
  };
  wire::ActorSpec detached = of_job(Desk::spec(kOwner));
  detached.detached = true;
  desk.create({detached});
  desk.create({of_job(owned(kChild, kOwner)), of_job(Desk::spec(kGrandchild))});
  for (ActorId id : {kOwner, kChild, kGrandchild}) desk.ready(kNodeOne, id, 1);
  desk.say(kDriver, wire::EndJob{5, JobId{6, 6}, "done"});
  const auto stops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].actor_id == kGrandchild);
}

TEST_CASE("an owner that is gone takes nothing new") {
  Family desk;
  desk.say(kDriver, wire::KillActor{4, kOwner, false, 0, "enough"});
  desk.create({owned({5, 5}, kOwner)});
  CHECK(desk.answer().code() == Code::kFailedPrecondition);
  desk.create({owned({5, 5}, {99, 99})});
  CHECK(desk.answer().code() == Code::kFailedPrecondition);
}

TEST_CASE("a head that comes back knows who owns whom") {
  Family desk;
  SUBCASE("and ends what is owned with its owner") {
    desk.restart();
    std::vector<wire::RunningActor> running;
    for (ActorId id : {kOwner, kChild, kGrandchild}) {
      running.push_back({desk.head.actors().at(id).spec, 1, 42, true});
    }
    desk.node(21, kIdOne, 8, running);
    desk.say(21, wire::ActorExited{kOwner, 1, {0, 9}});
    desk.pass(milliseconds(20), {{21, kIdOne}});
    desk.ready(21, kOwner, 2);
    CHECK_FALSE(desk.told_to_stop(kChild, 21));
    desk.say(21, wire::ActorExited{kOwner, 2, {0, 9}});
    CHECK(desk.told_to_stop(kChild, 21));
  }
  SUBCASE("also where its journal ends in the middle of that") {
    desk.say(kDriver, wire::KillActor{4, kOwner, false, 0, "enough"});
    desk.killed(kNodeOne, kOwner, 1);
    // Without the last delta of the child.
    HeadState second;
    for (const Delta& delta : desk.journal) {
      const auto* changed = get_if<ActorChanged>(&delta);
      if (changed != nullptr && changed->info.actor_id == kChild && changed->stopping) continue;
      REQUIRE(second.replay(delta).ok());
    }
    CHECK_FALSE(second.actors().at(kChild).stopping);
    desk.head = std::move(second);
    desk.take(desk.head.resume(desk.now));
    CHECK(desk.head.actors().at(kChild).stopping);
  }
}
