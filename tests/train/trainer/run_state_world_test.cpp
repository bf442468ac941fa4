// Worlds that change: machines come, leave and are lost.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/train/trainer/elastic_run.h"

namespace troupe::train {
namespace {

using run_state_test::check_resize;
using run_state_test::ElasticRun;
using run_state_test::find;
using run_state_test::killed;
using run_state_test::record;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a machine that comes is taken in after the step under way") {
  ElasticRun elastic({0});
  REQUIRE(find<BeginGeneration>(elastic.begun));
  CHECK(find<BeginGeneration>(elastic.begun)->trainers == std::vector<int>{0, 1});
  elastic.tell(StepFinished{1, 4});
  const auto half = elastic.tell(TrainerAlive{4, 1, "n2"});
  CHECK_FALSE(find<PauseAfterStep>(half));  // not before all of its trainers are there
  const auto came = elastic.tell(TrainerAlive{5, 1, "n2"});
  CHECK(find<PauseAfterStep>(came));
  CHECK_FALSE(find<AbortGeneration>(came));
  CHECK(find<PauseAfterStep>(came)->generation == 1);
  CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(1))));  // it was told
  // It is told again when a step ends, which it may have ended before it heard.
  CHECK(find<PauseAfterStep>(elastic.tell(StepFinished{1, 5})));
  const auto begun = elastic.all_pause(6);
  check_resize(begun, 4, "machine 2 came");
  const auto* plan = find<BeginGeneration>(begun);
  REQUIRE(plan);
  CHECK(plan->trainers == std::vector<int>{0, 1, 4, 5});
  CHECK(plan->world.number == 1);
  REQUIRE(plan->former.size() == 1);
  CHECK(plan->former[0].number == 0);
  CHECK(plan->former[0].trainers == std::vector<std::int32_t>{0, 1});
  CHECK(elastic.run.failures() == 0);
  CHECK(elastic.run.last_step() == 6);
  // Until a step stands in the new world, the one before is where the state may yet be needed.
  CHECK(elastic.run.memory().former.size() == 1);
  elastic.tell(StepFinished{2, 7});
  CHECK(elastic.run.memory().former.empty());
}

TEST_CASE("a machine that is lost is done without when nothing takes its place for a second") {
  ElasticRun elastic({0, 1, 2});
  elastic.tell(StepFinished{1, 4});
  CHECK(find<AbortGeneration>(elastic.die(1)));
  CHECK_FALSE(find<BeginGeneration>(elastic.all_stop()));
  SUBCASE("it is lost for good") {
    elastic.nowhere(1);
    CHECK_FALSE(find<BeginGeneration>(elastic.later(milliseconds(900))));
    const auto begun = elastic.later(milliseconds(100));
    check_resize(begun, 4, "machine 1 is lost");
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 1, 4, 5});
    CHECK(elastic.run.failures() == 1);
    // It comes back, and is one that comes.
    elastic.tell(StepFinished{2, 5});
    CHECK(find<PauseAfterStep>(elastic.come_on_new_node(1)));
    check_resize(elastic.all_pause(6), 6, "machine 1 came");
  }
  SUBCASE("it comes back in time") {
    elastic.now += milliseconds(500);
    const auto begun = elastic.come_on_new_node(1);
    REQUIRE(find<BeginGeneration>(begun));
    CHECK_FALSE(record(begun, "resize"));
    CHECK(elastic.run.world().number == 0);
  }
  SUBCASE("its trainers have a place and start slowly: they are waited for") {
    CHECK_FALSE(find<BeginGeneration>(elastic.later(seconds(10))));
    CHECK(find<BeginGeneration>(elastic.come_on_new_node(1)));
    CHECK(elastic.run.world().number == 0);
  }
  SUBCASE("another one is lost before that") {
    elastic.nowhere(1);
    elastic.die(2);
    elastic.nowhere(2);
    check_resize(elastic.later(seconds(1)), 2, "machine 1 is lost, machine 2 is lost");
    CHECK(elastic.trainers() == std::vector<int>{0, 1});
    CHECK(elastic.run.failures() == 1);
  }
}

TEST_CASE("a machine lost while its world begins: the next world knows both before it") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  CHECK(elastic.run.world().number == 1);
  elastic.die(1);
  elastic.nowhere(1);
  elastic.all_stop();
  const auto begun = elastic.later(seconds(1));
  const auto* plan = find<BeginGeneration>(begun);
  REQUIRE(plan);
  CHECK(plan->world.number == 2);
  CHECK(plan->trainers == std::vector<int>{0, 1, 4, 5});
  REQUIRE(plan->former.size() == 2);
  CHECK(plan->former[0].number == 1);
  CHECK(plan->former[1].number == 0);
}

TEST_CASE("a machine that leaves hands over after the step under way") {
  ElasticRun elastic({0, 1, 2}, 2);
  elastic.tell(StepFinished{1, 4});
  CHECK(find<PauseAfterStep>(elastic.tell(MachineLeaves{0})));
  CHECK(elastic.run.has_machine(0));
  SUBCASE("no further one than machines_min allows") {
    elastic.tell(MachineLeaves{1});
    check_resize(elastic.all_pause(5), 4, "machine 0 leaves");
    CHECK(elastic.trainers() == std::vector<int>{2, 3, 4, 5});
    CHECK(elastic.run.has_machine(0));  // until a step stands without it
    // It is not taken in again as long as it is there. Another one with its number is.
    CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(1))));
    elastic.tell(StepFinished{2, 6});
    CHECK_FALSE(elastic.run.has_machine(0));
    elastic.die(0);
    CHECK(elastic.run.failures() == 0);
    CHECK(find<PauseAfterStep>(elastic.come_on_new_node(0)));
  }
  SUBCASE("of several at once one goes with each step: a state has one copy") {
    ElasticRun three({0, 1, 2});
    three.tell(StepFinished{1, 4});
    three.tell(MachineLeaves{1});
    three.tell(MachineLeaves{2});
    check_resize(three.all_pause(5), 4, "machine 1 leaves");
    CHECK(three.run.has_machine(2));
    CHECK(find<PauseAfterStep>(three.tell(StepFinished{2, 6})));
    check_resize(three.all_pause(7), 2, "machine 2 leaves");
  }
  SUBCASE("one that is lost as the others take over: it comes back with what it holds") {
    ElasticRun three({0, 1, 2});
    three.tell(StepFinished{1, 4});
    three.tell(MachineLeaves{2});
    check_resize(three.all_pause(5), 4, "machine 2 leaves");
    three.die(0);
    three.nowhere(0);
    three.all_stop();
    check_resize(three.later(seconds(1)), 4, "machine 0 is lost, machine 2 came");
    CHECK(three.trainers() == std::vector<int>{2, 3, 4, 5});
    CHECK(find<PauseAfterStep>(three.tell(StepFinished{3, 6})));
    check_resize(three.all_pause(7), 2, "machine 2 leaves");
  }
  SUBCASE("not with the one whose copy it may have") {
    elastic.die(1);
    elastic.nowhere(1);
    elastic.all_stop();
    check_resize(elastic.later(seconds(1)), 4, "machine 1 is lost");
    CHECK(elastic.trainers() == std::vector<int>{0, 1, 4, 5});
  }
  SUBCASE("it is gone before: its process might have come again with what it holds") {
    elastic.die(0);
    elastic.nowhere(0);
    CHECK_FALSE(record(elastic.all_stop(), "resize"));
    check_resize(elastic.later(seconds(1)), 4, "machine 0 leaves");
  }
  SUBCASE("rank 0 is lost with the word of the pause: it is told again") {
    elastic.die(1);
    elastic.all_stop();
    const auto begun = elastic.come_again(1);
    check_resize(begun, 4, "machine 0 leaves");
  }
  SUBCASE("not before a step stands with whoever took a lost one's place") {
    elastic.die(1);
    elastic.all_stop();
    const auto begun = elastic.come_on_new_node(1);
    CHECK(find<BeginGeneration>(begun));
    CHECK_FALSE(record(begun, "resize"));
    CHECK(find<PauseAfterStep>(elastic.tell(StepFinished{2, 5})));
    check_resize(elastic.all_pause(6), 4, "machine 0 leaves");
  }
  SUBCASE("nor where a late word of a step before the loss comes after that one") {
    elastic.die(1);
    elastic.come_on_new_node(1);
    const auto begun = elastic.all_leave([&](int rank) {
      return TrainerStopped{rank, elastic.run.generation(), error(Code::kAborted, "peer"),
                            Reached::kStep};
    });
    CHECK(find<BeginGeneration>(begun));
    CHECK_FALSE(record(begun, "resize"));
  }
  SUBCASE("nor does another one before a step stands in the world without it") {
    ElasticRun three({0, 1, 2});
    three.tell(StepFinished{1, 4});
    three.tell(MachineLeaves{0});
    check_resize(three.all_pause(5), 4, "machine 0 leaves");
    three.tell(MachineLeaves{1});
    const auto begun = three.all_stop();
    CHECK(find<BeginGeneration>(begun));
    CHECK_FALSE(record(begun, "resize"));
    CHECK(find<PauseAfterStep>(three.tell(StepFinished{3, 6})));
    check_resize(three.all_pause(7), 2, "machine 1 leaves");
  }
  SUBCASE("a new controller tells rank 0 once more") {
    const RunState next =
        RunState::adopt({.world_size = 6, .ranks_per_machine = 2, .machines_min = 2},
                        elastic.run.memory(), elastic.now);
    CHECK(find<PauseAfterStep>(next.commands_again()));
  }
}

TEST_CASE("a machine that leaves and is in no world yet is not taken in") {
  ElasticRun elastic({0});
  elastic.tell(TrainerAlive{2, 1, "n1"});
  CHECK_FALSE(find<AbortGeneration>(elastic.tell(MachineLeaves{1})));
  CHECK_FALSE(find<PauseAfterStep>(elastic.tell(TrainerAlive{3, 1, "n1"})));
  CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(1))));
}

TEST_CASE("who announced its end and died has no part in whoever comes with its number") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.tell(MachineLeaves{1});
  elastic.die(1);
  elastic.nowhere(1);
  elastic.all_stop();
  check_resize(elastic.later(seconds(1)), 2, "machine 1 leaves");
  elastic.tell(StepFinished{2, 5});
  CHECK(find<PauseAfterStep>(elastic.come_on_new_node(1)));
  check_resize(elastic.all_pause(6), 4, "machine 1 came");
}

TEST_CASE("the dead do not stay: who would leave too few is needed, also when it said so before") {
  ElasticRun elastic({0, 1, 2}, 2);
  elastic.tell(StepFinished{1, 4});
  SUBCASE("it is lost for good, and then one wants to leave") {
    elastic.die(2);
    elastic.nowhere(2);
    elastic.later(seconds(1));
    elastic.tell(MachineLeaves{1});
    CHECK(elastic.run.memory().leaving.empty());
  }
  SUBCASE("one is lost afterwards") {
    elastic.tell(MachineLeaves{1});
    elastic.die(2);
    elastic.nowhere(2);
    elastic.all_stop();
    CHECK(elastic.run.memory().leaving.size() == 1);  // it may come back
    check_resize(elastic.later(seconds(1)), 4, "machine 2 is lost");
    CHECK(elastic.run.memory().leaving.empty());
    CHECK(elastic.trainers() == std::vector<int>{0, 1, 2, 3});
  }
}

TEST_CASE("a controller that finds the run anew knows its world, and who has just come") {
  const World world{1, {0, 1, 2, 3}}, before{0, {0, 1}};
  std::vector<TrainerFound> found;
  for (const int trainer : {0, 1, 2, 3}) {
    found.push_back({.trainer = trainer,
                     .incarnation = 1,
                     .node = "n",
                     .generation = 2,
                     .rank = trainer,
                     .step = 5,
                     .world = world,
                     .former = {before}});
  }
  RunState run = RunState::adopt_found(
      {.world_size = 6, .ranks_per_machine = 2, .first_machines = {0}}, found, 0, {});
  const auto begun = run.apply(TimePassed{}, {});
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 1, 2, 3});
  CHECK(find<BeginGeneration>(begun)->former.size() == 1);
  CHECK(find<BeginGeneration>(begun)->tries_newcomers);
  // A machine may have lost what it held with the controller: the others stay until a step stands.
  run.apply(TrainerStopped{0, 3, error(Code::kAborted, "peer")}, {});
  run.apply(MachineLeaves{0}, {});
  for (const int rank : {1, 2, 3})
    CHECK_FALSE(
        record(run.apply(TrainerStopped{rank, 3, error(Code::kAborted, "peer")}, {}), "resize"));
  CHECK(run.running());
  CHECK(find<PauseAfterStep>(run.apply(StepFinished{4, 6}, {})));
}

TEST_CASE("saved and stopped while a machine is lost: by those that are left, from its copy") {
  ElasticRun elastic({0, 1}, 2);
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.nowhere(1);
  elastic.all_stop();
  CHECK_FALSE(find<BeginGeneration>(elastic.later(seconds(2))));  // machines_min
  const auto asked = elastic.tell(SaveRequested{});
  CHECK_FALSE(find<BeginGeneration>(asked));
  const auto begun = elastic.later(milliseconds(200));
  check_resize(begun, 2, "machine 1 is lost");
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
  CHECK(find<BeginGeneration>(begun)->former.size() == 1);
}

TEST_CASE("saved and stopped while a machine has come that holds nothing yet: without it") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  elastic.tell(SaveRequested{});
  elastic.later(seconds(4));  // no step stands: it is given up
  const auto begun = elastic.all_stop();
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE(
    "told to stop, and a machine lost behind which nothing may fail: it is saved all the same") {
  ElasticRun elastic({0, 1}, 1, 0);
  elastic.tell(StepFinished{1, 4});
  elastic.tell(SaveRequested{});
  CHECK_FALSE(find<EndRun>(elastic.die(1)));
  elastic.nowhere(1);
  const auto begun = elastic.all_stop();
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
  const auto ended = elastic.all_stop();  // this one fails, too
  REQUIRE(find<EndRun>(ended));
  CHECK_FALSE(find<EndRun>(ended)->status.ok());
}

TEST_CASE("what a change by intent lost is told as a recovery") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 40});
  elastic.tell(MachineLeaves{1});
  elastic.all_pause(41);
  elastic.tell(TrainerFormed{0, 2});
  elastic.tell(TrainerFormed{1, 2});
  for (const int rank : {0, 1}) {
    elastic.tell(TrainerLoaded{.rank = rank,
                               .generation = 2,
                               .step = 30,
                               .how = LoadedFrom::kCheckpoint,
                               .reason = "nobody holds it"});
  }
  const auto recovered = elastic.tell(StepFinished{2, 31});
  REQUIRE(record(recovered, "recovered"));
  CHECK(record(recovered, "recovered")->lost_steps == 11);
  CHECK(elastic.run.failures() == 0);
}

TEST_CASE("who saves and stops does not change its world before") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  CHECK(find<SaveAndStop>(elastic.tell(SaveRequested{})));
  CHECK_FALSE(find<PauseAfterStep>(elastic.tell(MachineLeaves{1})));
  CHECK_FALSE(find<PauseAfterStep>(elastic.come_on_new_node(2)));
  CHECK(elastic.run.has_machine(1));
  const auto ended = elastic.all_leave([&](int rank) {
    return TrainerSaved{rank, elastic.run.generation(), 5};
  });
  CHECK(find<EndRun>(ended));
}

TEST_CASE("below machines_min the run waits, up to the limit for a rank without a place") {
  ElasticRun elastic({0, 1}, 2);
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.nowhere(1);
  elastic.all_stop();
  CHECK_FALSE(find<BeginGeneration>(elastic.later(seconds(5))));
  SUBCASE("another machine comes") {
    const auto begun = elastic.come_on_new_node(2);
    check_resize(begun, 4, "machine 1 is lost, machine 2 came");
    CHECK(find<BeginGeneration>(begun));
  }
  SUBCASE("none comes: the run ends, and what is left is saved before") {
    CHECK_FALSE(find<EndRun>(elastic.later(seconds(60))));
    const auto begun = elastic.later(milliseconds(200));
    check_resize(begun, 2, "machine 1 is lost");
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
    const auto ended = elastic.all_leave([&](int rank) {
      return TrainerSaved{rank, elastic.run.generation(), 4};
    });
    REQUIRE(find<EndRun>(ended));
    const Status& why = find<EndRun>(ended)->status;
    CHECK(why.code() == Code::kUnavailable);
    CHECK_MESSAGE(why.message().find("the run saved step 4 and ended: rank 2 died") == 0,
                  why.to_string());
  }
  SUBCASE("none comes, and nobody can save") {
    elastic.later(seconds(60));
    elastic.later(milliseconds(200));
    const auto ended = elastic.later(seconds(11));
    REQUIRE(find<EndRun>(ended));
    CHECK(find<EndRun>(ended)->status.code() == Code::kUnavailable);
  }
}

TEST_CASE("a member without memory for its new share is done without, or the run saves and ends") {
  ElasticRun elastic({0, 1, 2}, 2);
  elastic.tell(StepFinished{1, 1});
  elastic.die(2);
  elastic.nowhere(2);
  elastic.all_stop();
  elastic.later(seconds(2));
  REQUIRE(elastic.run.running());
  REQUIRE(elastic.run.world_size() == 4);
  const auto fails = [&](int rank) {
    return elastic.tell(TrainerFailed{rank, elastic.run.generation(),
                                      error(Code::kOutOfMemory, "no room for its part")});
  };
  SUBCASE("fewer are not allowed") {
    fails(3);
    CHECK_FALSE(elastic.run.ended());
    const auto begun = elastic.all_stop();
    const auto* save = find<BeginGeneration>(begun);
    REQUIRE(save);
    CHECK(save->purpose == GenerationPurpose::kSave);
    // It has none for that either.
    fails(3);
    REQUIRE(elastic.run.ended());
    CHECK(elastic.run.memory().ended->message().find("no room for its part") != std::string::npos);
  }
  SUBCASE("a third one has come") {
    elastic.come_on_new_node(2);
    elastic.tell(StepFinished{elastic.run.generation(), 2});
    elastic.all_pause(3);
    REQUIRE(elastic.run.world_size() == 6);
    elastic.tell(StepFinished{elastic.run.generation(), 4});
    fails(3);
    elastic.all_stop();
    elastic.later(seconds(2));
    CHECK(elastic.run.running());
    CHECK(elastic.trainers() == std::vector<int>{0, 1, 4, 5});
  }
}

}  // namespace
}  // namespace troupe::train
