// Spares, and what the successor of a controller knows.

#include <doctest/doctest.h>

#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/run_state.h"

namespace troupe::train {
namespace {

using run_state_test::all_running;
using run_state_test::find;
using run_state_test::killed;
using run_state_test::record;
using std::chrono::seconds;

TEST_CASE("a rank whose process dies goes on with a spare of its node at once") {
  RunState run = all_running({.world_size = 2, .spares = 2}, {"a", "b", "a", "b"});
  CHECK(run.generation() == 1);
  run.apply(StepFinished{1, 3}, {});
  const auto died = run.apply(TrainerDied{1, 1, "b", killed()}, {});
  CHECK(record(died, "death")->rank == 1);
  CHECK(record(died, "spare")->rank == 1);
  CHECK(record(died, "spare")->node == "b");
  CHECK(run.trainer_of(1) == 3);
  // Nothing more is waited for than that the survivors leave.
  const auto begun = run.apply(TrainerStopped{0, 1, killed()}, {});
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 3});
  // The next process of the one that died stands by, and serves the next death.
  CHECK(run.apply(TrainerAlive{1, 2, "b"}, {}).empty());
  CHECK(run.generation() == 2);
  run.apply(StepFinished{2, 4}, {});
  CHECK(record(run.apply(TrainerDied{3, 1, "b", killed()}, {}), "spare"));
  CHECK(run.trainer_of(1) == 1);
}

TEST_CASE("ranks on GPUs go on with a spare of their own GPU, where one could be made ready") {
  RunState run({.world_size = 2, .spares = 2});
  const std::vector<std::string> gpus = {"GPU-0", "GPU-1", "GPU-0", "GPU-1"};
  for (int trainer = 3; trainer >= 0; --trainer)
    run.apply(TrainerAlive{trainer, 1, "n", gpus[static_cast<std::size_t>(trainer)]}, {});
  REQUIRE(run.running());
  CHECK(run.apply(TrainerUnfit{3, 1, error(Code::kUnavailable, "the GPU takes one process")}, {})
            .empty());
  const auto second = run.apply(TrainerDied{1, 1, "n", killed()}, {});
  CHECK_FALSE(record(second, "spare"));
  CHECK(record(run.apply(TrainerAlive{1, 2, "n", "GPU-1"}, {}), "respawn"));
  for (int rank = 0; rank < 2; ++rank) run.apply(TrainerStopped{rank, 1, killed()}, {});
  REQUIRE(run.running());
  const auto first = run.apply(TrainerDied{0, 1, "n", killed()}, {});
  REQUIRE(record(first, "spare"));
  CHECK(run.trainer_of(0) == 2);
  // Of one that has a rank it says nothing; its generation will.
  CHECK(run.apply(TrainerUnfit{2, 1, killed()}, {}).empty());
  CHECK(run.places().find(2)->fit());
}

TEST_CASE("a successor of a controller that found the run knows which spares are fit") {
  const TrainerFound found[] = {
      {.trainer = 0,
       .incarnation = 1,
       .node = "n",
       .generation = 1,
       .rank = 0,
       .in_generation = true,
       .gpu = "GPU-0"},
      {.trainer = 1, .incarnation = 1, .node = "n", .gpu = "GPU-0", .fit = false},
      {.trainer = 2, .incarnation = 1, .node = "n", .gpu = "GPU-1"}};
  RunState run = RunState::adopt_found({.world_size = 1, .spares = 2}, found, 1, {});
  CHECK_FALSE(record(run.apply(TrainerDied{0, 1, "n", killed()}, {}), "spare"));
}

TEST_CASE("a spare that dies does not touch the run; a node without one waits") {
  RunState run = all_running({.world_size = 2, .spares = 1}, {"a", "b", "a"});
  const auto spare = run.apply(TrainerDied{2, 1, "a", killed()}, {});
  REQUIRE(spare.size() == 1);
  CHECK(record(spare, "death")->rank == -1);
  CHECK(run.failures() == 0);
  CHECK_FALSE(record(run.apply(TrainerDied{0, 1, "a", killed()}, {}), "spare"));
  run.apply(TrainerStopped{1, 1, killed()}, {});
  // The spare comes back before the dead trainer does: it serves.
  const auto begun = run.apply(TrainerAlive{2, 2, "a"}, {});
  CHECK(record(begun, "spare"));
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{2, 1});
  // For good: nothing ends.
  CHECK_FALSE(find<EndRun>(run.apply(TrainerGone{0, killed()}, {})));
  CHECK(find<EndRun>(run.apply(TrainerGone{2, killed()}, {})));
}

TEST_CASE("a successor goes on where the controller was") {
  RunState first = all_running({.world_size = 2, .spares = 1});
  first.apply(StepFinished{1, 7}, {});
  SUBCASE("in the middle of a generation: nothing happens to it") {
    RunState next = RunState::adopt({.world_size = 2, .spares = 1}, first.memory(), {});
    const auto again = next.commands_again();
    REQUIRE(again.size() == 1);  // to those that the call did not reach; others know it
    CHECK(find<BeginGeneration>(again)->generation == 1);
    CHECK(next.apply(TrainerAlive{0, 1, "n"}, {}).empty());  // what the head says to who asks anew
    CHECK(next.repeats({1, 7}));
    CHECK_FALSE(next.repeats({1, 8}));
    next.apply(TrainerFinished{0, 1}, {});
    CHECK(find<EndRun>(next.apply(TrainerFinished{1, 1}, {})));
  }
  SUBCASE("in the middle of a recovery") {
    first.apply(TrainerDied{0, 1, "n", killed()}, TimePoint(seconds(5)));
    RunState next =
        RunState::adopt({.world_size = 2, .spares = 1}, first.memory(), TimePoint(seconds(6)));
    CHECK(find<AbortGeneration>(next.commands_again())->generation == 1);
    CHECK(next.trainer_of(0) == 2);
    const auto begun = next.apply(TrainerStopped{1, 1, killed()}, TimePoint(seconds(6)));
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->generation == 2);
    CHECK(next.failures() == 1);
    const auto step = next.apply(StepFinished{2, 8}, TimePoint(seconds(7)));
    CHECK(record(step, "recovered")->times->whole == seconds(2));
  }
  SUBCASE("that was to save and to stop") {
    first.apply(SaveRequested{}, {});
    RunState next = RunState::adopt({.world_size = 2, .spares = 1}, first.memory(), {});
    CHECK(find<SaveAndStop>(next.commands_again()));
  }
  SUBCASE("that had ended") {
    first.apply(StopRequested{error(Code::kCancelled, "interrupted")}, {});
    RunState next = RunState::adopt({.world_size = 2, .spares = 1}, first.memory(), {});
    CHECK(next.ended());
    CHECK(find<EndRun>(next.commands_again())->status.message() == "interrupted");
    CHECK(next.apply(TrainerDied{0, 1, "n", killed()}, {}).empty());
  }
  SUBCASE("that waited for a process: the wait begins anew") {
    first.apply(TrainerDied{0, 1, "x", killed()}, {});  // no spare there
    RunState next =
        RunState::adopt({.world_size = 2, .spares = 1}, first.memory(), TimePoint(seconds(100)));
    next.apply(TimePassed{}, TimePoint(seconds(159)));
    CHECK_FALSE(next.memory().ending);
    next.apply(TimePassed{}, TimePoint(seconds(160)));
    CHECK(next.memory().ending);
  }
}

TEST_CASE("lost with its machine, a controller's loss is as long as nothing was finished") {
  using std::chrono::milliseconds;
  const TimePoint now(seconds(100));
  const auto recovered = [&](std::vector<TrainerFound> found) {
    RunState run = RunState::adopt_found({.world_size = 2}, found, 1, now, 7, seconds(4));
    run.apply(TrainerStopped{0, 1, killed()}, now);
    run.apply(TrainerStopped{1, 1, killed()}, now);
    if (found.size() == 1) run.apply(TrainerAlive{1, 2, "m"}, now + milliseconds(200));
    REQUIRE(run.running());
    for (int rank = 0; rank < 2; ++rank) run.apply(TrainerLoaded{rank, run.generation(), 7}, now);
    const auto done = run.apply(StepFinished{run.generation(), 8}, now + milliseconds(270));
    REQUIRE(record(done, "recovered"));
    return record(done, "recovered")->times->whole;
  };
  const TrainerFound first{0, 1, "n", 1, 0, true, 7}, second{1, 1, "m", 1, 1, true, 7};
  // Rank 1 was on that machine: no step since the last one that was written.
  CHECK(recovered({first}) == seconds(4) + milliseconds(270));
  // Both live: they trained on until the new controller came.
  CHECK(recovered({first, second}) == milliseconds(270));
}

TEST_CASE("a successor without the controller's memory lets all ranks meet again") {
  const std::vector<TrainerFound> found = {{0, 3, "a", 5, 0, true, 40},
                                           {2, 1, "b", 5, 1, true, 40}};
  RunState run = RunState::adopt_found({.world_size = 2, .spares = 1}, found, 2, {});
  CHECK(run.generation() == 5);
  CHECK(run.trainer_of(1) == 2);
  CHECK(find<AbortGeneration>(run.commands_again())->generation == 5);
  CHECK(run.apply(TrainerAlive{0, 3, "a"}, {}).empty());
  CHECK(run.apply(TrainerAlive{1, 2, "b"}, {}).empty());  // the spare now
  CHECK(run.apply(TrainerStopped{0, 5, killed()}, {}).empty());
  const auto begun = run.apply(TrainerStopped{1, 5, killed()}, {});
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->generation == 6);
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 2});
  const auto step = run.apply(StepFinished{6, 41}, {});
  CHECK(record(step, "recovered")->lost_steps == 0);

  SUBCASE("none lives: the generation's number still goes on") {
    RunState none = RunState::adopt_found({.world_size = 1}, {}, 9, {});
    const auto again = none.apply(TrainerAlive{0, 4, "a"}, {});
    CHECK(find<BeginGeneration>(again)->generation == 10);
  }
  SUBCASE("none lives, and the steps that were done are in a checkpoint in part") {
    RunState none = RunState::adopt_found({.world_size = 1}, {}, 1, {}, 47);
    CHECK(find<BeginGeneration>(none.apply(TrainerAlive{0, 4, "a"}, {}))->generation == 2);
    none.apply(TrainerFormed{0, 2}, {});
    none.apply(
        TrainerLoaded{.rank = 0, .generation = 2, .step = 40, .how = LoadedFrom::kCheckpoint}, {});
    const auto stands = none.apply(StepFinished{2, 41}, {});
    REQUIRE(record(stands, "recovered"));
    CHECK(record(stands, "recovered")->lost_steps == 7);
    CHECK(record(stands, "recovered")->recomputed_steps == 8);
  }
  SUBCASE("all have left: the next tick begins") {
    const std::vector<TrainerFound> idle = {{0, 1, "a", 5, 0, false, 40}};
    RunState one = RunState::adopt_found({.world_size = 1}, idle, 0, {});
    CHECK(find<BeginGeneration>(one.apply(TimePassed{}, {}))->generation == 6);
  }
  SUBCASE("one is in an older generation") {
    const std::vector<TrainerFound> mixed = {{0, 1, "a", 5, 0, true, 40},
                                             {1, 1, "a", 4, 1, true, 40}};
    RunState both = RunState::adopt_found({.world_size = 2}, mixed, 0, {});
    both.apply(TrainerStopped{1, 4, killed()}, {});
    CHECK(find<BeginGeneration>(both.apply(TrainerStopped{0, 5, killed()}, {})));
  }
}

}  // namespace
}  // namespace troupe::train
