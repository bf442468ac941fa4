// What a recovery's events say: what failed, when what was reached, what was computed again.

#include <doctest/doctest.h>

#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/recovery_timeline.h"
#include "train/trainer/run_state.h"

namespace troupe::train {
namespace {

using run_state_test::all_running;
using run_state_test::find;
using run_state_test::killed;
using run_state_test::record;
using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint at_ms(int ms) { return TimePoint(seconds(1000) + milliseconds(ms)); }

TEST_CASE("causes of deaths in few words") {
  const auto cause = [](const char* text) { return short_cause(Status(Code::kActorDied, text)); };
  CHECK(cause("TrainerActor rank 1 x on node n ended: killed by signal 9 (SIGKILL); its last "
              "output:\nabc") == "killed by signal 9 (SIGKILL)");
  CHECK(cause("TrainerActor rank 1 x on node n ended: exit code 3") == "exit code 3");
  CHECK(cause("TrainerActor rank 1 x was lost: its node n did not report") == "its node was lost");
  CHECK(cause("T rank 1 x was ended: it did not take the run's data") ==
        "it did not take the run's data");
  CHECK(cause("peer closed\nmore") == "peer closed");
}

TEST_CASE("a recovery from memory: every part has its time, and no step is lost") {
  RunState run = all_running({.world_size = 2, .post_mortem_timeout = milliseconds(500)});
  run.apply(StepFinished{1, 17}, at_ms(-10));
  const auto died = run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  CHECK(find<AbortGeneration>(died));
  CHECK_FALSE(record(died, "death"));  // waits for what the dead one's memory says
  CHECK(run.apply(TrainerStopped{0, 1, killed()}, at_ms(5)).empty());
  const auto told =
      run.apply(PostMortem{1, 1, at_ms(-30), "step 18, backward of unit 3"}, at_ms(6));
  REQUIRE(record(told, "death"));
  CHECK(record(told, "death")->doing == "step 18, backward of unit 3");
  CHECK(record(told, "death")->detected_after_ms == 30);
  CHECK(record(told, "death")->cause == "killed by signal 9");
  CHECK(record(told, "death")->at == at_ms(0));
  const auto begun = run.apply(TrainerAlive{1, 2, "n"}, at_ms(100));
  CHECK(record(begun, "respawn"));
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->trainers == std::vector<int>{0, 1});
  run.apply(TrainerFormed{0, 2}, at_ms(118));
  run.apply(TrainerFormed{1, 2}, at_ms(120));
  CHECK(run.apply(TrainerLoaded{0, 2, 17, LoadedFrom::kMemory, false, 18, ""}, at_ms(125)).empty());
  const auto loaded =
      run.apply(TrainerLoaded{1, 2, 17, LoadedFrom::kMemory, false, 18, ""}, at_ms(130));
  REQUIRE(loaded.size() == 1);  // nothing was read again
  CHECK(record(loaded, "resume")->cause == "from memory");
  const auto first = run.apply(StepFinished{2, 18}, at_ms(180));
  const auto* recovered = record(first, "recovered");
  REQUIRE(recovered);
  CHECK(recovered->rank == 1);
  CHECK(recovered->lost_steps == 0);
  CHECK(recovered->recomputed_steps == 1);
  CHECK(recovered->cause == "rank 1: killed by signal 9");
  const RecoveryTimes& times = *recovered->times;
  CHECK(times.detected_after == milliseconds(30));
  CHECK(times.respawn == milliseconds(100));
  CHECK(times.reform == milliseconds(20));
  CHECK(times.attach == milliseconds(10));
  CHECK(times.first_step == milliseconds(50));
  CHECK(times.whole == milliseconds(210));
}

TEST_CASE("a step that was left behind committed is finished, not computed again") {
  RunState run = all_running({.world_size = 2});
  run.apply(StepFinished{1, 17}, at_ms(0));
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  run.apply(TrainerStopped{0, 1, killed()}, at_ms(1));
  run.apply(TrainerAlive{1, 2, "n"}, at_ms(2));
  run.apply(TrainerLoaded{0, 2, 18, LoadedFrom::kMemory, false, 0, ""}, at_ms(3));
  const auto loaded =
      run.apply(TrainerLoaded{1, 2, 18, LoadedFrom::kMemory, true, 0, ""}, at_ms(3));
  CHECK(record(loaded, "resume")->cause == "from memory; rank 1 finished step 18");
  // Told by the new generation because the old one could not: it is no step further.
  CHECK_FALSE(run.repeats({2, 18}));
  CHECK(run.apply(StepFinished{2, 18}, at_ms(4)).empty());
  CHECK(run.repeats({2, 18}));
  const auto first = run.apply(StepFinished{2, 19}, at_ms(9));
  REQUIRE(record(first, "recovered"));
  CHECK(record(first, "recovered")->lost_steps == 0);
  CHECK(record(first, "recovered")->recomputed_steps == 0);
}

TEST_CASE("a run whose memory is gone goes back to a checkpoint and says why") {
  RunState run = all_running({.world_size = 2});
  run.apply(StepFinished{1, 17}, at_ms(0));
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  run.apply(TrainerStopped{0, 1, killed()}, at_ms(1));
  run.apply(TrainerAlive{1, 2, "n"}, at_ms(2));
  const std::string why = "rank 1's memory is gone with its node's keeper";
  for (int rank = 0; rank < 2; ++rank) {
    const auto loaded =
        run.apply(TrainerLoaded{rank, 2, 10, LoadedFrom::kCheckpoint, false, 0, why}, at_ms(3));
    CHECK(record(loaded, "reload")->cause == why);
    if (rank == 1) CHECK(record(loaded, "resume")->cause == "from a checkpoint: " + why);
  }
  const auto first = run.apply(StepFinished{2, 11}, at_ms(9));
  REQUIRE(record(first, "recovered"));
  CHECK(record(first, "recovered")->lost_steps == 7);
  CHECK(record(first, "recovered")->recomputed_steps == 8);
  CHECK(run.apply(StepFinished{2, 11}, at_ms(9)).empty());  // told twice
}

TEST_CASE("a step that is told before the last rank's load: every event is there, in order") {
  RunState run = all_running({.world_size = 2});
  run.apply(StepFinished{1, 17}, at_ms(0));
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  run.apply(TrainerStopped{0, 1, killed()}, at_ms(1));
  run.apply(TrainerAlive{1, 2, "n"}, at_ms(2));
  run.apply(TrainerLoaded{0, 2, 10, LoadedFrom::kCheckpoint, false, 0, "why"}, at_ms(3));
  const auto first = run.apply(StepFinished{2, 11}, at_ms(9));
  REQUIRE(first.size() == 2);
  CHECK(get<RecordEvent>(first[0]).event == "resume");
  CHECK(get<RecordEvent>(first[0]).step == 10);
  CHECK(get<RecordEvent>(first[1]).event == "recovered");
  const auto late =
      run.apply(TrainerLoaded{1, 2, 10, LoadedFrom::kCheckpoint, false, 0, "why"}, at_ms(10));
  REQUIRE(late.size() == 1);
  CHECK(record(late, "reload")->rank == 1);
}

TEST_CASE("a new process that is told of before the old one's death: every event is there") {
  RunState run = all_running({.world_size = 2});
  const auto replaced = run.apply(TrainerAlive{1, 2, "n"}, at_ms(0));
  REQUIRE(record(replaced, "death"));
  CHECK(record(replaced, "death")->rank == 1);
  CHECK(record(replaced, "death")->text == "rank 1 died: its process was replaced");
  CHECK(record(replaced, "respawn"));
  CHECK(find<AbortGeneration>(replaced));
  CHECK(run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(1)).empty());
  CHECK(find<BeginGeneration>(run.apply(TrainerStopped{0, 1, killed()}, at_ms(2))));
}

TEST_CASE("several faults of one moment are one recovery") {
  RunState run = all_running({.world_size = 3});
  run.apply(StepFinished{1, 4}, at_ms(0));
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  run.apply(TrainerDied{2, 1, "n", error(Code::kActorDied, "ended: exit code 3")}, at_ms(1));
  run.apply(TrainerStopped{0, 1, killed()}, at_ms(1));
  run.apply(TrainerAlive{1, 2, "n"}, at_ms(20));
  // One dies again before the ranks met: still the same recovery.
  run.apply(TrainerAlive{2, 2, "n"}, at_ms(30));
  CHECK(run.generation() == 2);
  run.apply(TrainerFormed{0, 2}, at_ms(31));
  run.apply(TrainerDied{1, 2, "n", killed()}, at_ms(32));
  run.apply(TrainerStopped{0, 2, killed()}, at_ms(33));
  run.apply(TrainerStopped{2, 2, killed()}, at_ms(33));
  run.apply(TrainerAlive{1, 3, "n"}, at_ms(50));
  for (int rank = 0; rank < 3; ++rank) {
    run.apply(TrainerFormed{rank, 3}, at_ms(60));
    run.apply(TrainerLoaded{rank, 3, 4, LoadedFrom::kMemory, false, 5, ""}, at_ms(61));
  }
  const auto first = run.apply(StepFinished{3, 5}, at_ms(70));
  const auto* recovered = record(first, "recovered");
  REQUIRE(recovered);
  CHECK(recovered->rank == -1);
  CHECK(recovered->cause ==
        "rank 1: killed by signal 9; rank 2: exit code 3; rank 1: killed by "
        "signal 9");
  CHECK(recovered->times->respawn == milliseconds(50));
  CHECK(recovered->times->reform == milliseconds(10));
  CHECK_FALSE(recovered->times->detected_after);
  CHECK(recovered->recomputed_steps == 1);
  CHECK(run.failures() == 2);
}

TEST_CASE("events wait for a post-mortem in order, and not for ever") {
  RunState run = all_running({.world_size = 2, .post_mortem_timeout = milliseconds(500)});
  run.apply(TrainerDied{0, 1, "n", killed()}, at_ms(0));
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  CHECK(run.apply(PostMortem{1, 1, {}, ""}, at_ms(1)).empty());  // the other's death was first
  CHECK(run.apply(PostMortem{1, 7, {}, "another process"}, at_ms(1)).empty());
  CHECK_FALSE(record(run.apply(TrainerAlive{0, 2, "n"}, at_ms(2)), "respawn"));
  CHECK(run.apply(TimePassed{}, at_ms(499)).empty());
  const auto told = run.apply(TimePassed{}, at_ms(500));
  REQUIRE(told.size() == 3);
  CHECK(get<RecordEvent>(told[0]).rank == 0);
  CHECK(get<RecordEvent>(told[1]).rank == 1);
  CHECK(get<RecordEvent>(told[2]).event == "respawn");
  // The run's end keeps none back.
  run.apply(TrainerDied{0, 2, "n", killed()}, at_ms(600));
  const auto ended = run.apply(StopRequested{killed()}, at_ms(601));
  CHECK(record(ended, "death"));
  CHECK(find<EndRun>(ended));
}

// --- hangs ---------------------------------------------------------------------------------------

TEST_CASE("a stuck rank is named, killed and replaced") {
  RunState run = all_running({.world_size = 3});
  run.apply(StepFinished{1, 4}, at_ms(0));
  const TrainerStuck stuck{1, 1, true, milliseconds(3100), "step 5, forward of unit 2", {0, 2}};
  const auto seen = run.apply(stuck, at_ms(0));
  REQUIRE(record(seen, "hang"));
  CHECK(record(seen, "hang")->cause == "stopped");
  CHECK(record(seen, "hang")->doing == "step 5, forward of unit 2");
  CHECK(record(seen, "hang")->waited_for_by == std::vector<int>{0, 2});
  REQUIRE(find<KillTrainer>(seen));
  CHECK(find<KillTrainer>(seen)->rank == 1);
  CHECK(find<KillTrainer>(seen)->reason ==
        "nothing of it runs for 3.1 s, in step 5, forward of unit 2; ranks 0, 2 wait for it");
  CHECK(find<AbortGeneration>(seen));
  CHECK(run.apply(stuck, at_ms(1)).empty());
  // The head may not have been there.
  CHECK(run.apply(TimePassed{}, at_ms(4999)).empty());
  CHECK(find<KillTrainer>(run.apply(TimePassed{}, at_ms(5000))));
  const auto died = run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(5100));
  CHECK(record(died, "death")->cause == "stopped, and killed");
  CHECK(run.apply(TimePassed{}, at_ms(99'000)).empty() == false);  // it finds no place
  CHECK(run.failures() == 1);
}

TEST_CASE("the recovery from a hang counts from when the rank fell silent") {
  RunState run = all_running({.world_size = 1});
  run.apply(TrainerStuck{0, 1, false, milliseconds(3000), "step 1, collective 7", {}}, at_ms(0));
  run.apply(TrainerDied{0, 1, "n", killed()}, at_ms(10));
  run.apply(TrainerAlive{0, 2, "n"}, at_ms(60));
  run.apply(TrainerLoaded{0, 2, 0, LoadedFrom::kMemory, false, 1, ""}, at_ms(70));
  const auto first = run.apply(StepFinished{2, 1}, at_ms(100));
  const auto* recovered = record(first, "recovered");
  REQUIRE(recovered);
  CHECK(recovered->cause == "rank 0: stuck");
  CHECK(recovered->times->detected_after == milliseconds(3000));
  CHECK(recovered->times->whole == milliseconds(3100));
}

TEST_CASE("a rank that hangs while it leaves a lost generation is killed too") {
  RunState run = all_running({.world_size = 2});
  run.apply(TrainerDied{1, 1, "n", killed()}, at_ms(0));
  CHECK(find<KillTrainer>(
      run.apply(TrainerStuck{0, 1, true, milliseconds(3000), "", {}}, at_ms(3000))));
  CHECK(run.failures() == 1);
  // One that has left, or of another generation, is nobody's business.
  RunState other = all_running({.world_size = 2});
  other.apply(TrainerStopped{0, 1, killed()}, at_ms(0));
  CHECK(other.apply(TrainerStuck{0, 1, true, milliseconds(3000), "", {}}, at_ms(1)).empty());
  CHECK(other.apply(TrainerStuck{1, 9, true, milliseconds(3000), "", {}}, at_ms(1)).empty());
}

TEST_CASE("a generation in which nobody moves is formed again") {
  RunState run = all_running({.world_size = 2});
  const auto stalled = run.apply(GenerationStalled{1, "all ranks wait in all-reduce 7"}, at_ms(0));
  CHECK(record(stalled, "hang")->cause == "all ranks wait in all-reduce 7");
  CHECK(find<AbortGeneration>(stalled));
  CHECK_FALSE(find<KillTrainer>(stalled));
  CHECK(run.apply(GenerationStalled{1, "again"}, at_ms(0)).empty());
  run.apply(TrainerStopped{0, 1, killed()}, at_ms(1));
  CHECK(find<BeginGeneration>(run.apply(TrainerStopped{1, 1, killed()}, at_ms(1))));
}

TEST_CASE("a straggler is told of, and nothing else happens") {
  RunState run = all_running({.world_size = 2});
  const auto slow = run.apply(TrainerSlow{1, 30, "rank 1 needs 2.1 times as long"}, at_ms(0));
  REQUIRE(slow.size() == 1);
  CHECK(record(slow, "straggler")->rank == 1);
  CHECK(record(slow, "straggler")->step == 30);
}

}  // namespace
}  // namespace troupe::train
