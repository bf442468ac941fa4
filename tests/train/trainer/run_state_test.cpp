#include "train/trainer/run_state.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "runtime/base/random.h"
#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train {
namespace {

using run_state_test::find;
using run_state_test::killed;
using run_state_test::record;
using std::chrono::milliseconds;

TEST_CASE("a generation begins when every rank is alive and ends when every rank has finished") {
  RunState run({.world_size = 2});
  CHECK(run.apply(TrainerAlive{0, 1}, {}).empty());
  const auto begun = run.apply(TrainerAlive{1, 1}, {});
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->generation == 1);
  CHECK(run.apply(TrainerLoaded{0, 1, 0}, {}).empty());
  run.apply(StepFinished{1, 1}, {});
  CHECK(run.apply(TrainerFinished{0, 1}, {}).empty());
  const auto ended = run.apply(TrainerFinished{1, 1}, {});
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.ok());
  CHECK(run.apply(TrainerDied{0, 1, "n", killed()}, {}).empty());
}

TEST_CASE("a death aborts the others, waits for them and the new process, and is recovered") {
  RunState run({.world_size = 2});
  TimePoint now{};
  run.apply(TrainerAlive{0, 1}, now);
  run.apply(TrainerAlive{1, 1}, now);
  for (int step = 1; step <= 17; ++step) run.apply(StepFinished{1, step}, now);
  const auto died = run.apply(TrainerDied{1, 1, "node-a", killed()}, now);
  REQUIRE(record(died, "death"));
  CHECK(record(died, "death")->node == "node-a");
  REQUIRE(find<AbortGeneration>(died));
  CHECK(!find<BeginGeneration>(run.apply(TrainerAlive{1, 2}, now)));
  const auto again = run.apply(TrainerStopped{0, 1, error(Code::kAborted, "peer")}, now);
  REQUIRE(find<BeginGeneration>(again));
  CHECK(find<BeginGeneration>(again)->generation == 2);
  CHECK(run.failures() == 1);
  CHECK(record(run.apply(TrainerLoaded{0, 2, 10}, now), "reload"));
  const auto loaded = run.apply(TrainerLoaded{1, 2, 10}, now);
  CHECK(record(loaded, "reload"));
  CHECK(record(loaded, "resume")->step == 10);
  const auto recovered = run.apply(StepFinished{2, 11}, now + milliseconds(250));
  REQUIRE(record(recovered, "recovered"));
  CHECK(record(recovered, "recovered")->lost_steps == 7);
  CHECK(record(recovered, "recovered")->times->whole == milliseconds(250));
  CHECK(run.apply(StepFinished{1, 18}, now).empty());  // a message of the old generation
  CHECK(run.last_step() == 11);
}

TEST_CASE("a rank that finishes after another was lost takes part in the next generation") {
  RunState run({.world_size = 2});
  TimePoint now{};
  run.apply(TrainerAlive{0, 1}, now);
  run.apply(TrainerAlive{1, 1}, now);
  run.apply(StepFinished{1, 7}, now);
  run.apply(TrainerDied{0, 1, "n", killed()}, now);
  run.apply(TrainerFinished{1, 1}, now);
  REQUIRE(find<BeginGeneration>(run.apply(TrainerAlive{0, 2}, now)));
  // The last step's checkpoint had been written: nothing is left to compute.
  run.apply(TrainerLoaded{0, 2, 8}, now);
  CHECK(run.last_step() == 8);
  run.apply(TrainerLoaded{1, 2, 8}, now);
  run.apply(TrainerFinished{0, 2}, now);
  const auto ended = run.apply(TrainerFinished{1, 2}, now + milliseconds(40));
  REQUIRE(record(ended, "recovered"));
  CHECK(record(ended, "recovered")->step == 8);
  CHECK(record(ended, "recovered")->lost_steps == 0);
  CHECK(record(ended, "recovered")->times->whole == milliseconds(40));
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.ok());
}

TEST_CASE(
    "three fruitless failures end the run; a finished step in between starts the count again") {
  RunState run({.world_size = 1});
  std::uint64_t incarnation = 1;
  run.apply(TrainerAlive{0, incarnation}, {});
  const auto die = [&] {
    auto commands = run.apply(TrainerDied{0, incarnation, "n", killed()}, {});
    run.apply(TrainerAlive{0, ++incarnation}, {});
    return commands;
  };
  CHECK(!find<EndRun>(die()));
  CHECK(!find<EndRun>(die()));
  run.apply(StepFinished{run.generation(), 1}, {});
  CHECK(!find<EndRun>(die()));
  CHECK(!find<EndRun>(die()));
  die();
  // What its memory holds is saved before.
  const auto last = run.apply(TrainerSaved{0, run.generation(), 1}, {});
  REQUIRE(find<EndRun>(last));
  CHECK(find<EndRun>(last)->status.message() ==
        "the run saved step 1 and ended: 3 failures in a row without a new step between them; the "
        "last one: killed by signal 9");
}

TEST_CASE("a step that always kills ends the run, though steps before it are finished again") {
  RunState run({.world_size = 1});
  std::uint64_t incarnation = 1;
  run.apply(TrainerAlive{0, incarnation}, {});
  for (int death = 1;; ++death) {
    run.apply(StepFinished{run.generation(), 1}, {});
    run.apply(StepFinished{run.generation(), 2}, {});
    run.apply(TrainerDied{0, incarnation, "n", killed()}, {});
    if (run.memory().ending) {
      CHECK(death == 3);
      break;
    }
    REQUIRE(death < 10);
    run.apply(TrainerAlive{0, ++incarnation}, {});
  }
}

TEST_CASE("deaths of several ranks at once are one failure") {
  RunState run({.world_size = 4});
  for (int rank = 0; rank < 4; ++rank) run.apply(TrainerAlive{rank, 1}, {});
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(!find<EndRun>(run.apply(TrainerDied{rank, 1, "n", killed()}, {})));
  }
  CHECK(run.failures() == 1);
  for (int rank = 0; rank < 3; ++rank) run.apply(TrainerAlive{rank, 2}, {});
  CHECK(find<BeginGeneration>(run.apply(TrainerAlive{3, 2}, {})));
}

TEST_CASE("a process that dies before its generation can begin counts each time") {
  RunState run({.world_size = 2});
  run.apply(TrainerAlive{0, 1}, {});
  CHECK(!find<EndRun>(run.apply(TrainerDied{1, 1, "n", killed()}, {})));
  CHECK(!find<EndRun>(run.apply(TrainerDied{1, 2, "n", killed()}, {})));
  CHECK(!find<EndRun>(run.apply(TrainerDied{1, 3, "n", killed()}, {})));
  CHECK(find<EndRun>(run.apply(TrainerDied{1, 4, "n", killed()}, {})));
}

TEST_CASE("the budget of restarts is that of the whole run, and the failure after it is the end") {
  for (const int budget : {0, 1, 2}) {
    CAPTURE(budget);
    RunState run({.world_size = 1, .restarts_max = budget});
    for (std::uint64_t process = 1; process <= std::uint64_t(budget) + 1; ++process) {
      run.apply(TrainerAlive{0, process}, {});
      run.apply(StepFinished{run.generation(), std::int64_t(process)}, {});
      run.apply(TrainerDied{0, process, "n", killed()}, {});
      CHECK(run.memory().ending.has_value() == (process == std::uint64_t(budget) + 1));
    }
  }
}

TEST_CASE("a rank that finished takes part again when another dies before it finished") {
  RunState run({.world_size = 2});
  run.apply(TrainerAlive{0, 1}, {});
  run.apply(TrainerAlive{1, 1}, {});
  run.apply(TrainerFinished{0, 1}, {});
  run.apply(TrainerDied{1, 1, "n", killed()}, {});
  CHECK(find<BeginGeneration>(run.apply(TrainerAlive{1, 2}, {})));
}

TEST_CASE("a rank that finds no place ends the run with the reason, after its time") {
  RunState run({.world_size = 2, .respawn_timeout = std::chrono::seconds(10)});
  TimePoint now{};
  run.apply(TrainerAlive{0, 1}, now);
  CHECK(run.apply(TimePassed{}, now + std::chrono::hours(1)).empty());  // rank 1 waits for a node
  run.apply(TrainerAlive{1, 1}, now);
  run.apply(TrainerDied{1, 1, "n", killed()}, now);
  run.apply(TrainerWaiting{1, "needs CPU 2"}, now);
  CHECK(!find<EndRun>(run.apply(TimePassed{}, now + std::chrono::seconds(9))));
  const auto ended = run.apply(TimePassed{}, now + std::chrono::seconds(10));
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.message().find("needs CPU 2") != std::string::npos);
}

TEST_CASE("a rank that cannot go on where its next process is waits for another one") {
  using std::chrono::seconds;
  RunState run =
      run_state_test::all_running({.world_size = 2, .respawn_timeout = seconds(10)}, {"a", "b"});
  const Status no_folder = error(Code::kNotFound, "node c lacks /data/out");
  run.apply(StepFinished{1, 4}, {});
  run.apply(TrainerDied{1, 1, "b", killed()}, {});
  run.apply(TrainerStopped{0, 1, killed()}, {});
  REQUIRE(find<BeginGeneration>(run.apply(TrainerAlive{1, 2, "c"}, {})));
  const auto told = run.apply(TrainerFailed{1, 2, no_folder}, {});
  CHECK(find<AbortGeneration>(told));
  REQUIRE(record(told, "notice"));
  CHECK(record(told, "notice")->text ==
        "rank 1 on node c cannot take part: node c lacks /data/out; mend that and start its "
        "machine's command anew");
  run.apply(TrainerStopped{0, 2, killed()}, {});
  SUBCASE("it comes") {
    run.apply(TrainerDied{1, 2, "c", killed()}, {});
    CHECK(find<BeginGeneration>(run.apply(TrainerAlive{1, 3, "d"}, {})));
    CHECK(run.failures() == 1);
    // Where steps stood, what fails is the run's.
    run.apply(StepFinished{3, 5}, {});
    CHECK(find<EndRun>(run.apply(TrainerFailed{1, 3, no_folder}, {})));
  }
  SUBCASE("it does not: rank 0 saves before the end, alone") {
    const auto begun = run.apply(TimePassed{}, TimePoint(seconds(10)));
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSaveAlone);
  }
}

TEST_CASE("which ranks are awaited is said within two seconds, and every ten seconds") {
  using std::chrono::seconds;
  RunState run({.world_size = 3, .respawn_timeout = seconds(100)});
  for (int rank = 0; rank < 3; ++rank) run.apply(TrainerAlive{rank, 1}, {});
  const auto at = [](int second) { return TimePoint(seconds(second)); };
  // A process that comes back at once is not waited for.
  run.apply(TrainerDied{1, 1, "n", killed()}, at(0));
  run.apply(TrainerWaiting{1, "needs CPU 2"}, at(0));
  CHECK_FALSE(record(run.apply(TimePassed{}, at(0)), "waiting"));
  run.apply(TrainerDied{2, 1, "n", killed()}, at(0));
  std::vector<std::string> told;
  for (int second = 1; second <= 25; ++second) {
    const auto commands = run.apply(TimePassed{}, at(second));
    if (const auto* waiting = record(commands, "waiting")) told.push_back(waiting->text);
    if (second == 20) run.apply(TrainerAlive{2, 2}, at(20));
  }
  REQUIRE(told.size() == 3);
  CHECK(told[0] == "waiting for ranks 1, 2, for 1 s of 100 (troupe.join_timeout_s): needs CPU 2");
  CHECK(told[1] == "waiting for ranks 1, 2, for 11 s of 100 (troupe.join_timeout_s): needs CPU 2");
  CHECK(told[2] == "waiting for rank 1, for 21 s of 100 (troupe.join_timeout_s): needs CPU 2");
  run.apply(TrainerStopped{0, 1, killed()}, at(30));
  CHECK(find<BeginGeneration>(run.apply(TrainerAlive{1, 2}, at(40))));
  CHECK(run.apply(TimePassed{}, at(90)).empty());
}

TEST_CASE("a run that stands in the cluster's line waits as long as it takes, and says so once") {
  using std::chrono::hours;
  RunState run({.world_size = 2});
  const auto waits = run.apply(TrainerWaiting{0, "needs CPU 2"}, {});
  REQUIRE(record(waits, "waiting"));
  CHECK(record(waits, "waiting")->cause == "needs CPU 2");
  CHECK(run.apply(TrainerWaiting{1, "needs CPU 2"}, {}).empty());
  CHECK(run.apply(TimePassed{}, TimePoint(hours(100))).empty());
  CHECK(run.apply(TrainerWaiting{0, "needs CPU 2"}, TimePoint(hours(100))).empty());
  // Told to stop meanwhile, it ends at once: there is nothing to save.
  const auto ended = run.apply(SaveRequested{}, TimePoint(hours(101)));
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.code() == Code::kCancelled);
}

TEST_CASE("a rank that was placed and gets no first process ends the run after the same time") {
  using std::chrono::seconds;
  RunState run({.world_size = 2, .respawn_timeout = seconds(10)});
  const TimePoint placed{seconds(3600)};  // until then it may have waited for nodes
  run.apply(TimePassed{}, placed);
  CHECK(run.apply(TrainersPlaced{}, placed).empty());
  run.apply(TrainerAlive{0, 1}, placed + seconds(1));
  run.apply(TrainerWaiting{1, "it did not get the run's data"}, placed + seconds(2));
  CHECK(!find<EndRun>(run.apply(TimePassed{}, placed + seconds(9))));
  const auto ended = run.apply(TimePassed{}, placed + seconds(10));
  REQUIRE(find<EndRun>(ended));
  const Status& status = find<EndRun>(ended)->status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.message() ==
        "rank 1 was placed and could not be started for 10 s (troupe.join_timeout_s): it did not "
        "get the run's data");

  RunState good({.world_size = 2, .respawn_timeout = seconds(10)});
  good.apply(TrainersPlaced{}, placed);
  good.apply(TrainerAlive{0, 1}, placed);
  // Its process died instead of coming alive: the next one has as long.
  good.apply(TrainerDied{1, 1, "n", killed()}, placed + seconds(8));
  CHECK(!find<EndRun>(good.apply(TimePassed{}, placed + seconds(17))));
  CHECK(find<BeginGeneration>(good.apply(TrainerAlive{1, 2}, placed + seconds(17))));
  // A tick that was posted before is handled after.
  CHECK(good.apply(TimePassed{}, placed + seconds(16)).empty());
  CHECK(good.apply(TimePassed{}, placed + seconds(1000)).empty());
}

TEST_CASE("a rank that does not leave a lost generation is killed, and its successor takes part") {
  using std::chrono::minutes;
  using std::chrono::seconds;
  const auto lost = [](RunState& run) {
    for (int rank = 0; rank < 3; ++rank) run.apply(TrainerAlive{rank, 1}, {});
    run.apply(StepFinished{1, 5}, {});
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(500))).empty());
    run.apply(TrainerStopped{1, 1, error(Code::kAborted, "peer")}, TimePoint(minutes(500)));
    run.apply(TrainerDied{2, 1, "n", killed()}, TimePoint(minutes(500)));
    run.apply(TrainerAlive{2, 2}, TimePoint(minutes(501)));
    // A save's write may last ten minutes.
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(511) - seconds(1))).empty());
    const auto late = run.apply(TimePassed{}, TimePoint(minutes(511)));
    REQUIRE(late.size() == 1);
    REQUIRE(find<KillTrainer>(late));
    CHECK(find<KillTrainer>(late)->rank == 0);
    CHECK(find<KillTrainer>(late)->reason.find("generation 1 for 660 s") != std::string::npos);
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(511) + seconds(59))).empty());
  };
  SUBCASE("it dies") {
    RunState run({.world_size = 3});
    lost(run);
    CHECK_FALSE(find<EndRun>(run.apply(TrainerDied{0, 1, "n", killed()}, TimePoint(minutes(511)))));
    CHECK(run.failures() == 1);
    REQUIRE(find<BeginGeneration>(run.apply(TrainerAlive{0, 2}, TimePoint(minutes(511)))));
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(900))).empty());
    // The next loss has its own time.
    run.apply(TrainerStopped{0, 2, error(Code::kAborted, "peer")}, TimePoint(minutes(900)));
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(910))).empty());
    CHECK(run.apply(TimePassed{}, TimePoint(minutes(911))).size() == 2);
  }
  SUBCASE("it leaves after all") {
    RunState run({.world_size = 3});
    lost(run);
    CHECK(find<BeginGeneration>(run.apply(TrainerStopped{0, 1, killed()}, {})));
  }
  SUBCASE("not even that ends it") {
    RunState run({.world_size = 3});
    lost(run);
    const auto ended = run.apply(TimePassed{}, TimePoint(minutes(512)));
    REQUIRE(find<EndRun>(ended));
    const Status& status = find<EndRun>(ended)->status;
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(status.message().find("rank 0 did not leave generation 1 for 660 s") == 0);
  }
}

TEST_CASE("at the limit of failures, who lost its peers does not hide why") {
  using std::chrono::seconds;
  const Status peer = error(Code::kAborted, "rank 1 closed its connection");
  const auto stopped = [&] {
    RunState run({.world_size = 3, .restarts_max = 0});
    for (int rank = 0; rank < 3; ++rank) run.apply(TrainerAlive{rank, 1}, {});
    const auto commands = run.apply(TrainerStopped{0, 1, peer}, {});
    CHECK(find<AbortGeneration>(commands));
    CHECK_FALSE(find<EndRun>(commands));
    return run;
  };
  const auto end_of = [](const std::vector<RunCommand>& commands) {
    const auto* ended = find<EndRun>(commands);
    return ended ? ended->status.message() : std::string();
  };
  const char* budget =
      "the run may be restarted 0 times (troupe.max_restarts, or MAX_RESTARTS) and failed once "
      "more: ";
  SUBCASE("a failure") {
    RunState run = stopped();
    CHECK(end_of(run.apply(TrainerFailed{1, 1, error(Code::kResourceExhausted, "disk full")},
                           {})) == "disk full");
  }
  SUBCASE("a death") {
    RunState run = stopped();
    CHECK(end_of(run.apply(TrainerDied{1, 1, "n", killed()}, {})) == budget + killed().message());
    CHECK(run.failures() == 1);
  }
  SUBCASE("all have left and none knows better") {
    RunState run = stopped();
    CHECK(run.apply(TrainerStopped{2, 1, error(Code::kAborted, "aborted")}, {}).empty());
    const auto ended = run.apply(TrainerStopped{1, 1, error(Code::kAborted, "aborted")}, {});
    CHECK_FALSE(find<BeginGeneration>(ended));
    CHECK(end_of(ended) == budget + peer.message());
  }
  SUBCASE("one does not leave") {
    RunState run = stopped();
    CHECK(run.apply(TrainerFinished{2, 1}, {}).empty());
    CHECK(run.apply(TimePassed{}, TimePoint(seconds(9))).empty());
    CHECK(end_of(run.apply(TimePassed{}, TimePoint(seconds(10)))) == budget + peer.message());
  }
}

RunState two_running() {
  RunState run({.world_size = 2});
  run.apply(TrainerAlive{0, 1}, {});
  run.apply(TrainerAlive{1, 1}, {});
  run.apply(StepFinished{1, 4}, {});
  return run;
}

TEST_CASE("the end after saving is told from other ends") {
  CHECK(saved_stop(17).code() == Code::kCancelled);
  CHECK(saved_stop(17).message() == "stopped at step 17 after saving");
  CHECK(saved_step_of(saved_stop(17)) == 17);
  CHECK(saved_step_of(saved_stop(0).prefixed("rank 1").with("rank", 1)) == 0);
  CHECK_FALSE(saved_step_of({}));
  for (const char* other :
       {"interrupted", "stopped at step ", "stopped at step x after saving", "stopped at step 3",
        "stopped at step 99999999999999999999 after saving"}) {
    CHECK_FALSE(saved_step_of(Status(Code::kCancelled, other)));
  }
  CHECK_FALSE(saved_step_of(Status(Code::kAborted, "stopped at step 3 after saving")));
}

TEST_CASE("a run that is to save and to stop ends in order once all ranks have") {
  RunState run = two_running();
  const auto asked = run.apply(SaveRequested{}, {});
  CHECK(asked.size() == 1);
  CHECK(find<SaveAndStop>(asked));
  CHECK(run.apply(SaveRequested{}, {}).empty());
  CHECK(run.apply(StepFinished{1, 5}, {}).empty());
  CHECK(run.apply(TrainerSaved{1, 1, 5}, {}).empty());
  CHECK(run.apply(TrainerSaved{0, 0, 5}, {}).empty());  // of another generation
  const auto ended = run.apply(TrainerSaved{0, 1, 5}, {});
  REQUIRE(find<EndRun>(ended));
  CHECK(saved_step_of(find<EndRun>(ended)->status) == 5);
  CHECK(run.last_step() == 5);
  CHECK(run.failures() == 0);
}

TEST_CASE("what dies after rank 0 has saved changes nothing") {
  const std::vector<RunInput> mishaps = {
      TrainerDied{1, 1, "n", killed()}, TrainerStopped{1, 1, killed()}, TrainerGone{0, killed()},
      TrainerFailed{1, 1, killed()}, StopRequested{error(Code::kCancelled, "interrupted")}};
  for (std::size_t i = 0; i < mishaps.size(); ++i) {
    CAPTURE(i);
    RunState run = two_running();
    run.apply(SaveRequested{}, {});
    CHECK(run.apply(TrainerSaved{0, 1, 5}, {}).empty());
    const auto ended = run.apply(mishaps[i], {});
    REQUIRE(find<EndRun>(ended));
    CHECK(saved_step_of(find<EndRun>(ended)->status) == 5);
    CHECK_FALSE(find<BeginGeneration>(ended));
  }
}

TEST_CASE("a death before the save: the next generation saves") {
  RunState run = two_running();
  run.apply(SaveRequested{}, {});
  // Rank 1 has left already; rank 0, which writes, is lost.
  CHECK(run.apply(TrainerSaved{1, 1, 5}, {}).empty());
  const auto died = run.apply(TrainerDied{0, 1, "n", killed()}, {});
  CHECK(find<AbortGeneration>(died));
  CHECK_FALSE(find<EndRun>(died));
  const auto again = run.apply(TrainerAlive{0, 2}, {});
  REQUIRE(find<BeginGeneration>(again));
  CHECK(find<BeginGeneration>(again)->generation == 2);
  // Nothing is computed any more.
  CHECK(find<BeginGeneration>(again)->purpose == GenerationPurpose::kSave);
  CHECK_FALSE(find<SaveAndStop>(again));
  run.apply(TrainerSaved{0, 2, 5}, {});
  const auto ended = run.apply(TrainerSaved{1, 2, 5}, {});
  REQUIRE(find<EndRun>(ended));
  CHECK(saved_step_of(find<EndRun>(ended)->status) == 5);
}

TEST_CASE("rank 0 has saved in a generation that was lost meanwhile: that is enough") {
  RunState run = two_running();
  run.apply(SaveRequested{}, {});
  run.apply(TrainerDied{1, 1, "n", killed()}, {});
  const auto ended = run.apply(TrainerSaved{0, 1, 5}, {});
  REQUIRE(find<EndRun>(ended));
  CHECK(saved_step_of(find<EndRun>(ended)->status) == 5);
}

TEST_CASE("a run that is to stop before its first generation ends; at its end it is complete") {
  RunState early({.world_size = 1});
  CHECK(find<EndRun>(early.apply(SaveRequested{}, {})));

  RunState late = two_running();
  late.apply(SaveRequested{}, {});
  late.apply(TrainerFinished{0, 1}, {});
  const auto ended = late.apply(TrainerFinished{1, 1}, {});
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.ok());
}

TEST_CASE("a step that takes long is given up, and the step before it is saved") {
  using std::chrono::seconds;
  RunState run = two_running();
  const auto at = [](int second) { return TimePoint(seconds(100 + second)); };
  run.apply(SaveRequested{}, at(0));
  CHECK(run.apply(TimePassed{}, at(2)).empty());
  const auto given_up = run.apply(TimePassed{}, at(3));
  REQUIRE(find<AbortGeneration>(given_up));
  CHECK_FALSE(find<BeginGeneration>(run.apply(TrainerStopped{0, 1, killed()}, at(3))));
  SUBCASE("all leave it") {
    const auto saves = run.apply(TrainerStopped{1, 1, killed()}, at(4));
    REQUIRE(find<BeginGeneration>(saves));
    CHECK(find<BeginGeneration>(saves)->purpose == GenerationPurpose::kSave);
    CHECK(find<BeginGeneration>(saves)->trainers.size() == 2);
  }
  SUBCASE("one hangs: it is killed, and its successor takes part") {
    CHECK_FALSE(find<KillTrainer>(run.apply(TimePassed{}, at(5))));
    const auto killing = run.apply(TimePassed{}, at(6));
    REQUIRE(find<KillTrainer>(killing));
    CHECK(find<KillTrainer>(killing)->rank == 1);
    run.apply(TrainerDied{1, 1, "n", killed()}, at(6));
    const auto saves = run.apply(TrainerAlive{1, 2}, at(7));
    REQUIRE(find<BeginGeneration>(saves));
    CHECK(find<BeginGeneration>(saves)->purpose == GenerationPurpose::kSave);
  }
  CHECK(run.failures() == 0);
  // However long the writing takes, as long as bytes go to the disk.
  run.apply(TrainerSaving{0, run.generation(), 4}, at(9));
  for (int second = 10; second < 39; ++second) {
    CHECK(run.apply(TimePassed{}, at(second)).empty());
    if (second < 30) run.apply(SaveMoves{}, at(second));
  }
  const auto ended = run.apply(TimePassed{}, at(39));
  REQUIRE(find<EndRun>(ended));
  CHECK(find<EndRun>(ended)->status.code() == Code::kCancelled);
  CHECK(find<EndRun>(ended)->status.message().find("troupe.stop_timeout_s") != std::string::npos);
}

TEST_CASE("a save that a rank does not come to is given up, and all begin it anew") {
  using std::chrono::seconds;
  RunState run = two_running();
  const auto at = [](int second) { return TimePoint(seconds(100 + second)); };
  run.apply(SaveRequested{}, at(0));
  run.apply(TrainerSaving{0, run.generation(), 4}, at(1));
  run.apply(SaveMoves{}, at(2));
  CHECK(run.apply(TimePassed{}, at(4)).empty());
  const auto given_up = run.apply(TimePassed{}, at(5));
  REQUIRE(find<AbortGeneration>(given_up));
  CHECK(find<AbortGeneration>(given_up)->reason.message().find("the save under way is given up") !=
        std::string::npos);
  run.apply(TrainerStopped{0, 1, killed()}, at(5));
  const auto saves = run.apply(TrainerStopped{1, 1, killed()}, at(6));
  REQUIRE(find<BeginGeneration>(saves));
  CHECK(find<BeginGeneration>(saves)->purpose == GenerationPurpose::kSave);
}

TEST_CASE("a run that is to stop while a rank has no place: rank 0 saves what it holds, alone") {
  using std::chrono::seconds;
  RunState run = two_running();
  const auto at = [](int second) { return TimePoint(seconds(100 + second)); };
  run.apply(TrainerDied{1, 1, "lost", killed()}, at(0));
  run.apply(TrainerStopped{0, 1, killed()}, at(0));
  SUBCASE("that is known: at once") {
    run.apply(TrainerWaiting{1, "needs node 1"}, at(1));
    const auto alone = run.apply(SaveRequested{}, at(5));
    REQUIRE(find<BeginGeneration>(alone));
    CHECK(find<BeginGeneration>(alone)->purpose == GenerationPurpose::kSaveAlone);
    CHECK(find<BeginGeneration>(alone)->trainers == std::vector<int>{0});
    SUBCASE("it saves") {
      const auto ended = run.apply(TrainerSaved{0, 2, 4}, at(6));
      REQUIRE(find<EndRun>(ended));
      CHECK(saved_step_of(find<EndRun>(ended)->status) == 4);
    }
    SUBCASE("it cannot") {
      const auto failed =
          run.apply(TrainerFailed{0, 2, error(Code::kFailedPrecondition, "a shard only")}, at(6));
      REQUIRE(find<EndRun>(failed));
      CHECK(find<EndRun>(failed)->status.code() == Code::kCancelled);
      CHECK(find<EndRun>(failed)->status.message().find("a shard only") != std::string::npos);
    }
  }
  SUBCASE("its process may come: the others wait for it a little") {
    run.apply(SaveRequested{}, at(5));
    CHECK_FALSE(find<BeginGeneration>(run.apply(TimePassed{}, at(10))));
    CHECK(find<BeginGeneration>(run.apply(TimePassed{}, at(11))));
  }
}

TEST_CASE("a run that is told to stop a second time ends at once") {
  const TimePoint now{};
  RunState second = two_running();
  second.apply(SaveRequested{}, now);
  const auto stopped = second.apply(StopRequested{error(Code::kCancelled, "interrupted")}, now);
  REQUIRE(find<EndRun>(stopped));
  CHECK(find<EndRun>(stopped)->status.message() == "interrupted");
}

}  // namespace
}  // namespace troupe::train
