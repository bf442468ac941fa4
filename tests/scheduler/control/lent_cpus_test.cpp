// Processes that only wait lend their CPUs, and have them back as these come free.

#include "tests/scheduler/control/desk.h"

namespace troupe::scheduler::tests {
namespace {

const ActorId kLargeTask{7, 8};

struct LendingDesk : Desk {
  LendingDesk() {
    node(kNodeOne, kIdOne, 2);
    auto waits = spec(kActor, 2);
    waits.lends_cpus = true;
    create({waits});
    ready(kNodeOne, kActor, 1);
  }
  void lend(bool back, std::uint64_t generation = 1, ActorId id = kActor) {
    say(kDriver, wire::LendCpus{4, id, generation, back});
  }
  // Starts a task that needs every lent CPU. Returns what runs on the node then.
  std::vector<wire::RunningActor> with_large_task() {
    create({spec(kLargeTask, 2)});
    ready(kNodeOne, kLargeTask, 1);
    std::vector<wire::RunningActor> running;
    for (const ActorId id : {kActor, kLargeTask})
      running.push_back({head.actors().at(id).spec, 1, 42, true});
    return running;
  }
  std::int64_t free() {
    return amount_of(head.nodes().at(kIdOne).info.available, kCpu) / wire::kResourceUnit;
  }
};

TEST_CASE("what waits for tasks lends its CPUs to them, and has them back after") {
  LendingDesk desk;
  desk.create({Desk::spec(kLargeTask, 2)});
  CHECK(desk.info(kLargeTask).state == wire::ActorState::kPending);
  desk.lend(false, 2);  // of another process
  CHECK(desk.info(kLargeTask).state == wire::ActorState::kPending);
  desk.lend(false);
  CHECK(desk.answer().ok());
  CHECK(desk.info(kLargeTask).state == wire::ActorState::kStarting);
  CHECK(desk.free() == 0);
  desk.ready(kNodeOne, kLargeTask, 1);
  desk.lend(true);  // there are none: it goes on without
  CHECK(desk.answer().ok());
  desk.create({Desk::spec(ActorId{7, 9}, 1)});
  desk.killed(kNodeOne, kLargeTask, 1);
  // It comes before those that wait for room.
  CHECK(desk.free() == 0);
  CHECK(desk.info(ActorId{7, 9}).state == wire::ActorState::kPending);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.info(ActorId{7, 9}).state == wire::ActorState::kStarting);
  CHECK(desk.free() == 1);
}

TEST_CASE("the end of who has lent leaves nothing behind, and others may not lend") {
  LendingDesk desk;
  desk.lend(false);
  CHECK(desk.free() == 2);
  desk.lend(false);
  CHECK(desk.free() == 2);
  desk.lend(true);
  CHECK(desk.free() == 0);
  desk.lend(false);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.free() == 2);
  desk.create({Desk::spec(kLargeTask, 1)});
  desk.ready(kNodeOne, kLargeTask, 1);
  desk.lend(false, 1, kLargeTask);
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  CHECK(desk.free() == 1);
}

TEST_CASE("a node comes back whose CPUs were lent: all that runs there stays") {
  LendingDesk desk;
  desk.lend(false);
  const auto running = desk.with_large_task();
  desk.lose(kNodeOne);
  desk.node(kNodeOne, kIdOne, 2, running);
  CHECK(desk.info().state == wire::ActorState::kAlive);
  CHECK(desk.info(kLargeTask).state == wire::ActorState::kAlive);
  CHECK(desk.free() == 0);
  desk.lend(true);
  desk.killed(kNodeOne, kLargeTask, 1);
  CHECK(desk.free() == 0);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.free() == 2);
}

TEST_CASE("what a process lends it lends also after its node, or the head, came back") {
  LendingDesk desk;
  desk.lend(false);
  const auto running = desk.with_large_task();
  SUBCASE("the node") {
    desk.lose(kNodeOne);
    desk.node(kNodeOne, kIdOne, 2, running);
  }
  SUBCASE("the head, and the process before the node") {
    desk.restart();
    desk.introduce_driver();
    desk.lend(false);
    desk.node(kNodeOne, kIdOne, 2, running);
  }
  SUBCASE("the head, and the node before the process") {
    desk.restart();
    desk.introduce_driver();
    desk.node(kNodeOne, kIdOne, 2, running);
    desk.lend(false);
  }
  CHECK(desk.free() == 0);
  // The next of the tasks for which it waits has room when this one is done.
  const ActorId next{7, 9};
  desk.create({Desk::spec(next, 2)});
  CHECK(desk.info(next).state == wire::ActorState::kPending);
  desk.killed(kNodeOne, kLargeTask, 1);
  CHECK(desk.info(next).state == wire::ActorState::kStarting);
}

}  // namespace
}  // namespace troupe::scheduler::tests
