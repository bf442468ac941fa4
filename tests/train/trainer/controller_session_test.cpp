#include "train/trainer/controller_session.h"

#include <doctest/doctest.h>

#include "train/report/run_event.h"

namespace troupe::train::controller_session_test {
namespace {

using std::chrono::seconds;
using wire::ActorState;

const NodeId kNode{1, 2};

TimePoint at(int s) { return TimePoint(seconds(s)); }

wire::ActorInfo info(ActorState state, std::uint64_t generation, Status death = {}) {
  wire::ActorInfo info;
  info.state = state;
  info.generation = generation;
  info.node_id = kNode;
  info.pid = 100 + static_cast<std::int64_t>(generation);
  info.death = std::move(death);
  return info;
}

RunSettings two_ranks() {
  RunSettings settings;
  settings.world_size = 2;
  return settings;
}

template <typename T>
std::vector<T> all(const ControllerActions& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

// Two trainers with the run's data; generation 1 runs.
ControllerSession running() {
  ControllerSession session(two_ranks(), 1);
  session.data_arrived(at(0));
  session.add_trainers(2);
  for (const int trainer : {0, 1}) {
    session.changed(trainer, info(ActorState::kAlive, 1), at(1));
    session.data_given(trainer, 1, {}, "", at(1));
  }
  REQUIRE(session.state().running());
  return session;
}

ControllerActions step_finished(ControllerSession& session, std::int64_t step) {
  return session.report(0, StepReport{.generation = 1, .step = step}, at(2));
}

}  // namespace

TEST_CASE("a generation begins when all trainers have the data, once that is saved") {
  ControllerSession session(two_ranks(), 1);
  session.data_arrived(at(0));
  session.add_trainers(2);
  for (const int trainer : {0, 1}) {
    const auto given = all<GiveData>(session.changed(trainer, info(ActorState::kAlive, 1), at(1)));
    REQUIRE(given.size() == 1);
    CHECK(given[0].trainer == trainer);
    CHECK(given[0].incarnation == 1);
  }
  CHECK(all<BeginGeneration>(session.data_given(0, 1, {}, "", at(1))).empty());
  const ControllerActions actions = session.data_given(1, 1, {}, "", at(1));
  REQUIRE(actions.size() >= 2);
  CHECK(std::holds_alternative<SaveMemory>(actions[0]));
  const auto begun = all<BeginGeneration>(actions);
  REQUIRE(begun.size() == 1);
  CHECK(begun[0].generation == 1);
}

TEST_CASE("without the run's data trainers wait, and a process that refuses them is ended") {
  ControllerSession session(two_ranks(), 1);
  session.add_trainers(2);
  CHECK(all<GiveData>(session.changed(1, info(ActorState::kAlive, 1), at(1))).empty());
  // Nobody is ended for what the controller does not have.
  CHECK(all<RestartTrainer>(session.time_passed(at(20))).empty());
  const auto given = all<GiveData>(session.data_arrived(at(21)));
  REQUIRE(given.size() == 1);
  CHECK(given[0].trainer == 1);
  session.data_given(1, 1, error(Code::kUnavailable, "no route"), "", at(22));
  CHECK(all<RestartTrainer>(session.time_passed(at(23))).empty());
  const auto ended = all<RestartTrainer>(session.time_passed(at(25)));
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].trainer == 1);
}

TEST_CASE("what was reported before, or by nobody of the run, is no news") {
  ControllerSession session = running();
  CHECK(all<TellUser>(step_finished(session, 1)).size() == 1);
  CHECK(session.state().last_step() == 1);
  CHECK(step_finished(session, 1).empty());
  CHECK(session.report(2, WarningReport{"slow"}, at(2)).empty());
  CHECK(session.report(-1, WarningReport{"slow"}, at(2)).empty());
  CHECK(all<TellUser>(session.report(1, WarningReport{"slow"}, at(2))).size() == 1);
  const TrainerUnfit unfit{0, 1, error(Code::kUnavailable, "no room")};
  CHECK(session.report(-1, unfit, at(2)).empty());  // it has a rank
}

TEST_CASE("a rank that is to be killed is the process of the trainer that has it") {
  ControllerSession session = running();
  const auto killed =
      all<RestartTrainer>(session.tell(TrainerStuck{.rank = 1, .generation = 1}, at(3)));
  REQUIRE(killed.size() == 1);
  CHECK(killed[0].trainer == 1);
}

TEST_CASE("a rank's dead process is looked back at, and its keeper's end is told once") {
  ControllerSession session = running();
  Status death = error(Code::kActorDied, "killed by signal 9");
  death.with("keeper", "died");
  int keepers = 0;
  for (const int trainer : {0, 1}) {
    const auto actions = session.changed(trainer, info(ActorState::kRestarting, 1, death), at(3));
    const auto looked = all<LookBack>(actions);
    REQUIRE(looked.size() == 1);
    CHECK(looked[0].rank == trainer);
    CHECK(looked[0].incarnation == 1);
    for (const auto& event : all<RecordEvent>(actions)) keepers += event.event == events::kKeeper;
  }
  CHECK(keepers == 1);
}

TEST_CASE("the next process of a controller says again what was said last, and watches") {
  ControllerSession before = running();
  step_finished(before, 4);
  const RunMemory memory = before.state().memory();
  const auto trainers = before.processes().saved();
  ControllerSession session(two_ranks(), 2);
  ControllerActions actions = session.restore(memory, trainers, at(9));
  CHECK(all<BeginGeneration>(actions).size() == 1);
  CHECK(all<WatchTrainers>(actions).size() == 1);
  CHECK(session.processes()[1].pid == 101);
  CHECK(session.state().last_step() == 4);

  before.tell(StopRequested{error(Code::kCancelled, "enough")}, at(9));
  ControllerSession after_end(two_ranks(), 2);
  actions = after_end.restore(before.state().memory(), trainers, at(9));
  CHECK(all<EndRun>(actions).size() == 1);
  CHECK(all<WatchTrainers>(actions).empty());
}

TEST_CASE("a controller without memory asks, adopts, ends the silent, then hears what was told") {
  ControllerSession session(two_ranks(), 2);
  session.data_arrived(at(0));
  session.find();
  CHECK(step_finished(session, 8).empty());
  CHECK(session.report(0, TrainerStopped{0, 3, error(Code::kAborted, "lost")}, at(2)).empty());
  ControllerSession::Found found;
  found.trainers = {TrainerStatus{.incarnation = 2,
                                  .node_id = kNode,
                                  .pid = 7,
                                  .generation = 3,
                                  .rank = 0,
                                  .in_generation = true,
                                  .has_bundle = true,
                                  .step = 7},
                    std::nullopt};
  found.generations = 3;
  const ControllerActions actions = session.found(found, at(4));
  CHECK(std::holds_alternative<RecordEvent>(actions[0]));
  CHECK(std::holds_alternative<SaveMemory>(actions[1]));
  CHECK(all<AbortGeneration>(actions).size() == 1);
  CHECK(all<WatchTrainers>(actions).size() == 1);
  const auto ended = all<RestartTrainer>(actions);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].trainer == 1);
  CHECK(session.state().generation() == 3);
  CHECK(session.processes()[0].served == 2);
  CHECK(session.processes()[0].pid == 7);
  // It has heard that rank 0 left.
  CHECK(session.state().memory().ranks[0].phase == RunMemory::RankPhase::kReady);
}

TEST_CASE("no machine of a fixed world may leave, whether or not the run has begun") {
  ControllerSession session(two_ranks(), 1);
  CHECK_FALSE(session.changes_world());
  for (const bool placed : {false, true}) {
    CAPTURE(placed);
    if (placed) session.add_trainers(2);
    for (const int machine : {0, 1}) {
      CHECK(session.machine_leaves(machine, at(1)).empty());
      CHECK_FALSE(session.may_leave(machine));
    }
  }
}

TEST_CASE("any machine may be needed by a run that is looked for") {
  RunSettings settings = two_ranks();
  settings.ranks_per_machine = 1;
  settings.first_machines = {0};
  ControllerSession session(settings, 2);
  CHECK(!session.has_machine(1));
  session.find();
  CHECK(session.has_machine(1));
  ControllerSession::Found found;
  found.trainers.resize(2);
  session.found(found, at(1));
  CHECK(session.has_machine(0));
  CHECK(!session.has_machine(1));
}

TEST_CASE("a run that is not there, or was begun anew meanwhile, is not adopted") {
  ControllerSession session(two_ranks(), 2);
  session.find();
  CHECK(session.found({}, at(1)).empty());
  session.find();
  session.add_trainers(2);
  session.report(1, WarningReport{"slow"}, at(2));
  ControllerSession::Found found;
  found.trainers.resize(2);
  const ControllerActions actions = session.found(found, at(4));
  REQUIRE(actions.size() == 1);
  CHECK(std::holds_alternative<TellUser>(actions[0]));
}

TEST_CASE("a trainer that does not answer or has no data yet is not one that lives") {
  const TrainerStatus with_data{.incarnation = 4,
                                .generation = 2,
                                .rank = 1,
                                .has_bundle = true,
                                .world = {3, {0, 2}},
                                .former = {{2, {0, 1}}}};
  const auto living = living_trainers({std::nullopt, TrainerStatus{}, with_data});
  REQUIRE(living.size() == 1);
  CHECK(living[0].trainer == 2);
  CHECK(living[0].incarnation == 4);
  CHECK(living[0].generation == 2);
  CHECK(living[0].rank == 1);
  CHECK(living[0].world.trainers == std::vector<std::int32_t>{0, 2});
  REQUIRE(living[0].former.size() == 1);
  CHECK(living[0].former[0].number == 2);
}

}  // namespace troupe::train::controller_session_test
