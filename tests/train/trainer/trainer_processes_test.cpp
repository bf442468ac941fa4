#include "train/trainer/trainer_processes.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

using std::chrono::seconds;
using wire::ActorState;

const NodeId kNodeA{1, 2};
const NodeId kNodeB{3, 4};

wire::ActorInfo info(ActorState state, std::uint64_t generation, NodeId node = kNodeA) {
  wire::ActorInfo info;
  info.state = state;
  info.generation = generation;
  info.node_id = node;
  return info;
}

TimePoint at(int s) { return TimePoint(seconds(s)); }

TrainerProcesses one_alive() {
  TrainerProcesses processes;
  processes.add();
  CHECK_FALSE(processes.changed(0, info(ActorState::kStarting, 1), at(0)).wants_data);
  CHECK(processes.changed(0, info(ActorState::kAlive, 1), at(0)).wants_data);
  processes.serving(0);
  CHECK(processes.served(0, 1, true, at(0)));
  return processes;
}

TEST_CASE("a death is told once, with the node where the process ran") {
  auto processes = one_alive();
  const auto died = processes.changed(0, info(ActorState::kRestarting, 1, kNodeB), at(1));
  CHECK(died.died == 1);
  CHECK(died.was_alive);
  CHECK(died.node == kNodeA.brief());
  CHECK_FALSE(died.gone);
  CHECK(processes.changed(0, info(ActorState::kRestarting, 1), at(1)).died == 0);
  const auto next = processes.changed(0, info(ActorState::kAlive, 2, kNodeB), at(2));
  CHECK(next.died == 0);
  CHECK(next.wants_data);
  CHECK(processes[0].node == kNodeB.brief());
}

TEST_CASE("a death that nobody saw is known by the process after it") {
  auto processes = one_alive();
  const auto change = processes.changed(0, info(ActorState::kAlive, 3), at(1));
  CHECK(change.died == 1);
  // The head tells no death of a process that lives.
  CHECK(change.cause.code() == Code::kActorDied);
  CHECK(change.wants_data);
  CHECK_FALSE(processes.changed(0, info(ActorState::kAlive, 3), at(1)).wants_data);
}

TEST_CASE("a process that never came alive left nothing") {
  auto processes = one_alive();
  CHECK(processes.changed(0, info(ActorState::kRestarting, 1), at(1)).was_alive);
  const auto change = processes.changed(0, info(ActorState::kRestarting, 2), at(2));
  CHECK(change.died == 2);
  CHECK_FALSE(change.was_alive);
  const auto gone = processes.changed(0, info(ActorState::kDead, 2), at(3));
  CHECK(gone.died == 0);
  CHECK(gone.gone);
}

TEST_CASE("a node that was taken for dead and is back: its process is ended") {
  auto processes = one_alive();
  CHECK(processes.changed(0, info(ActorState::kRestarting, 1), at(1)).died == 1);
  // The head says after all that the same process lives.
  const auto back = processes.changed(0, info(ActorState::kAlive, 1), at(2));
  CHECK(back.died == 0);
  CHECK_FALSE(back.wants_data);
  CHECK(processes.to_end(at(2)) == std::vector{0});
  // Named again where the killing failed.
  CHECK(processes.to_end(at(3)).empty());
  CHECK(processes.to_end(at(4)) == std::vector{0});
  CHECK(processes.changed(0, info(ActorState::kAlive, 2), at(7)).wants_data);
}

TEST_CASE("what became of giving the data counts for the process that was given them") {
  auto processes = one_alive();
  CHECK(processes.changed(0, info(ActorState::kAlive, 2), at(1)).wants_data);
  CHECK_FALSE(processes.served(0, 1, true, at(1)));
  CHECK(processes[0].served == 1);
  CHECK(processes.served(0, 2, false, at(1)));
  CHECK(processes.unserved() == std::vector{0});
  CHECK(processes.to_end(at(3)) == std::vector{0});
  // It died meanwhile: nothing is left to end, and what comes later of it is past.
  CHECK(processes.changed(0, info(ActorState::kRestarting, 2), at(3)).died == 2);
  CHECK(processes.unserved().empty());
  CHECK_FALSE(processes.served(0, 2, true, at(3)));
}

TEST_CASE("without the run's data, those who live wait for them") {
  auto processes = one_alive();
  processes.add();
  CHECK(processes.changed(1, info(ActorState::kAlive, 1), at(1)).wants_data);
  processes.cannot_serve(1, at(1));
  CHECK(processes.unserved() == std::vector{1});
  processes.serving(1);
  CHECK(processes.unserved().empty());
}

TEST_CASE("a new controller asks those that had no data yet again") {
  TrainerProcesses processes;
  processes.add();
  processes.restore(0,
                    {.served = 2, .died = 1, .node = "node"});  // process 3 was alive and had none
  CHECK(processes.changed(0, info(ActorState::kAlive, 3), at(1)).died == 2);
  processes.add();
  processes.restore(1, {.served = 2, .died = 1, .node = "node"});
  CHECK_FALSE(processes.changed(1, info(ActorState::kAlive, 2), at(1)).wants_data);
  processes.found(0, 3, kNodeB, 77);
  CHECK(processes[0].served == 3);
  CHECK(processes[0].node == kNodeB.brief());
  CHECK(processes.saved()[0].pid == 77);
}

}  // namespace
}  // namespace troupe::train
