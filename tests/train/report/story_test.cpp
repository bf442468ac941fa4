// The story of a run and its table of recoveries, from events as they stand in a file.

#include "train/report/story.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

// 2026-02-06 19:00:00 UTC and so many milliseconds.
std::int64_t at_ms(std::int64_t ms) { return 1'770'404'400'000'000 + ms * 1000; }

// An events.jsonl on disk, written event by event and read back as `troupe why` does.
class Events {
 public:
  Events& add(std::int64_t ms, const RunEvent& event) {
    text_ += event_line(event, at_ms(ms)) + "\n";
    return *this;
  }
  Events& start(std::int64_t world_size = 2) {
    return add(0, {.event = "start",
                   .step = 0,
                   .run = "run-1a2b3c4d",
                   .world_size = world_size,
                   .total_steps = 100});
  }
  Events& end(std::int64_t ms, std::int64_t step, Code code = Code::kOk,
              const std::string& cause = "", const std::string& path = "") {
    return add(ms, {.event = "end",
                    .step = step,
                    .cause = cause,
                    .path = path,
                    .code = static_cast<int>(code)});
  }
  StorySources sources() const {
    tests::TemporaryDirectory directory;
    PosixFileSystem files;
    REQUIRE(write_file_atomically(files, directory.file("events.jsonl"), text_).ok());
    StorySources sources;
    sources.output_dir = "out/a";
    sources.events = read_events(files, directory.file("events.jsonl")).value();
    sources.events.damaged.clear();
    sources.now_unix_us = at_ms(60'000);
    return sources;
  }
  RunStory story() const { return read_story(sources()).value(); }
  std::string told() const { return tell(story()); }

 private:
  std::string text_;
};

RunEvent killed(int rank, std::int64_t step, const std::string& node = "a1b2") {
  return {.event = "death",
          .generation = 1,
          .rank = rank,
          .node = node,
          .step = step,
          .cause = "its process ended: killed by signal 9 (SIGKILL)"};
}

RunEvent recovered(std::int64_t step) {
  return {.event = "recovered",
          .generation = 2,
          .step = step,
          .detected_after_ms = 1.2,
          .respawn_ms = 90,
          .attach_ms = 3.4,
          .reform_ms = 21,
          .first_step_ms = 84.4,
          .recovery_ms = 200,
          .recomputed_steps = 1,
          .lost_steps = 0};
}

TEST_CASE("a machine whose state another rank holds: who took it over is said") {
  Events events;
  events.start()
      .add(12'340, killed(1, 40))
      .add(12'430, {.event = "respawn", .generation = 1, .rank = 1, .node = "c3d4", .step = 40})
      .add(12'640,
           {.event = "resume",
            .generation = 2,
            .step = 41,
            .cause = "from memory; rank 1 had lost it, and took it over: rank 2 kept a copy"})
      .add(12'800, recovered(42))
      .end(60'000, 100);
  CHECK(events.told().find(
            "The ranks went on from memory; rank 1 had lost it, and took it over: rank 2 kept a "
            "copy") != std::string::npos);
}

TEST_CASE("a healthy run says so") {
  Events events;
  events.start().end(60'000, 100);
  CHECK(events.told() ==
        "run-1a2b3c4d: 2 ranks, 100 steps, in out/a\n"
        "It began on 2026-02-06 19:00:00 UTC.\n"
        "Nothing went wrong on the way: no rank died, none hung.\n"
        "It ended well on 2026-02-06 19:01:00 UTC after 0:01:00: all 100 steps are done.\n");
  CHECK(events.story().outcome == RunOutcome::kFinished);
  auto sources = events.sources();
  sources.steps = {{.step = 1, .loss = 5.5},
                   {.step = 2, .loss = 5, .skipped = "not finite"},
                   {.step = 100, .loss = 2.25}};
  const auto text = tell(read_story(sources).value());
  CHECK(text.find("Step 2 updated nothing: not finite.\n") != std::string::npos);
  CHECK(text.find("Nothing went wrong") == std::string::npos);
  CHECK(text.find("all 100 steps are done, loss 5.5000 → 2.2500.\n") != std::string::npos);
}

TEST_CASE("what the run did by itself is told once") {
  Events events;
  const RunEvent notice{.event = "notice", .step = 40, .cause = "early stopping after step 40"};
  const RunEvent change{.event = "notice", .step = 7, .cause = "no copies from here on"};
  events.start().add(9'000, change).add(50'000, notice).add(51'000, notice).end(60'000, 40);
  CHECK(events.told().ends_with(
      "Nothing went wrong on the way: no rank died, none hung.\n"
      "After step 7: no copies from here on.\n"
      "Early stopping after step 40.\n"
      "It ended well on 2026-02-06 19:01:00 UTC after 0:01:00: step 40 of 100.\n"));
  CHECK(json::write(to_json(events.story()).at("notices")) ==
        R"(["after step 7: no copies from here on","early stopping after step 40"])");
}

TEST_CASE("one kill: what died, while doing what, who waited, what it cost") {
  Events events;
  RunEvent death = killed(1, 40);
  death.doing = "step 41, backward of unit 3, operator gemm";
  death.waited_for_by = {0};
  events.start()
      .add(12'512, death)
      .add(12'603, {.event = "respawn", .rank = 1, .step = 40, .respawn_ms = 90})
      .add(12'640, {.event = "resume", .generation = 2, .step = 40})
      .add(12'711, recovered(41))
      .end(60'000, 100);
  CHECK(events.told() ==
        "run-1a2b3c4d: 2 ranks, 100 steps, in out/a\n"
        "It began on 2026-02-06 19:00:00 UTC.\n"
        "\n"
        "19:00:12.512  Rank 1 died after step 40 on node a1b2. Its process ended: killed by signal "
        "9 (SIGKILL).\n"
        "              It was doing: step 41, backward of unit 3, operator gemm.\n"
        "              Rank 0 waited for it.\n"
        "              Rank 1 got a new process. It took: noticed after 1.2 ms, a process again 90 "
        "ms, its memory again 3.4 ms, the ranks together again 21 ms, the first step 84 ms.\n"
        "              Step 41 was computed again; no finished step was lost. It cost 200 ms.\n"
        "\n"
        "It ended well on 2026-02-06 19:01:00 UTC after 0:01:00: all 100 steps are done.\n"
        "\n"
        "Recoveries, times in milliseconds:\n"
        "fault    rank  step  detected after  respawn  attach  re-form  first step  recomputed  "
        "lost\n"
        "SIGKILL     1    40             1.2       90     3.4       21          84           1     "
        "0\n"
        "1 fault, recovered in 200 ms; goodput 99.67 %; 1 step recomputed, steps lost 0\n");
  CHECK(recovery_line(events.story().recoveries.at(0)) ==
        "rank 1 (SIGKILL) recovered in 200 ms: noticed after 1.2, respawn 90, attach 3.4, re-form "
        "21, first step 84; 1 step recomputed, 0 lost");
}

TEST_CASE("two at once are two faults and one recovery") {
  Events events;
  events.start()
      .add(10'000, killed(1, 7))
      .add(10'001, killed(0, 7))
      .add(10'090, {.event = "respawn", .rank = 0, .step = 7, .respawn_ms = 80})
      .add(10'099, {.event = "respawn", .rank = 1, .step = 7, .respawn_ms = 91})
      .add(10'200, recovered(8))
      .add(20'000, killed(0, 30))
      .add(20'004, {.event = "spare", .rank = 0, .step = 30, .respawn_ms = 4})
      .add(20'060, {.event = "recovered",
                    .step = 31,
                    .recovery_ms = 60,
                    .recomputed_steps = 0,
                    .lost_steps = 0})
      // The process that takes the spare's place is nobody's recovery.
      .add(20'090, {.event = "respawn", .rank = -1})
      .add(26'000, {.event = "end", .step = 100, .code = 0});
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 2);
  CHECK(story.recoveries[0].ranks == std::vector{0, 1});
  CHECK(story.recoveries[0].fault == "SIGKILL");
  CHECK(story.recoveries[1].spares == std::vector{0});
  CHECK(story.summary.faults == 3);
  CHECK(story.summary.p50_ms == 130);
  CHECK(story.summary.max_ms == 200);
  CHECK(story.summary.goodput == doctest::Approx(0.99));
  CHECK(describe(story.summary) ==
        "3 faults, recovered in 130 ms (p50), 200 ms (max); goodput 99.00 %; 1 step recomputed, "
        "steps lost 0");
  const auto text = tell(story);
  CHECK(text.find("19:00:10.000  Rank 1 died after step 7 on node a1b2.") != std::string::npos);
  CHECK(text.find("19:00:10.001  Rank 0 died after step 7 on node a1b2.") != std::string::npos);
  CHECK(text.find("Ranks 0 and 1 got new processes. It took: ") != std::string::npos);
  CHECK(text.find("Rank 0 went to a spare. It took: a spare in place 4.0 ms.") !=
        std::string::npos);
  CHECK(text.find("Nothing was computed again; no finished step was lost. It cost 60 ms.") !=
        std::string::npos);
}

TEST_CASE("a death that is told when its memory was read stands where it happened") {
  Events events;
  events.start()
      .add(1'090, {.event = "respawn", .rank = 1, .respawn_ms = 88})
      .add(1'150, {.event = "recovered", .step = 5, .recovery_ms = 150})
      .add(1'000, killed(1, 4))
      .add(1'400, {.event = "respawn", .rank = 1})
      .add(3'000, killed(0, 9))
      .add(3'100, {.event = "recovered", .step = 10, .recovery_ms = 100})
      .end(60'000, 100);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 2);
  CHECK(story.recoveries[0].ranks == std::vector{1});
  CHECK(story.recoveries[0].begun_unix_us == at_ms(1'000));
  CHECK(story.recoveries[0].respawned == std::vector{1});
  CHECK(story.recoveries[1].ranks == std::vector{0});
  CHECK(story.recoveries[1].begun_unix_us == at_ms(3'000));
}

TEST_CASE("a spare that is in place at once, by a clock that jitters") {
  RunEvent death = killed(1, 4), spare{.event = "spare", .rank = 1, .respawn_ms = 0.0};
  RunEvent recovered_at_5 = recovered(5), other{.event = "respawn", .rank = 0};
  other.unix_time_us = at_ms(500);
  spare.unix_time_us = at_ms(1'000);
  death.unix_time_us = at_ms(1'000) + 1;
  recovered_at_5.unix_time_us = at_ms(1'100);
  const std::vector<RunEvent> told = {other, spare, death, recovered_at_5};
  const auto recoveries = recoveries_of(told);
  REQUIRE(recoveries.size() == 1);
  CHECK(recoveries[0].spares == std::vector{1});
  CHECK(recoveries[0].respawned.empty());
}

TEST_CASE("injected faults that strike together: each death gets its own") {
  Events events;
  events.start()
      .add(1'000, {.event = "fault", .fault = "kill@step=5,rank=1,phase=backward,unit=3"})
      .add(1'000, {.event = "fault", .fault = "exit@step=5,rank=0,generation=1,point=stage"})
      .add(1'001, killed(0, 4))
      .add(1'002, killed(1, 4))
      .add(1'100, recovered(5))
      .end(60'000, 100);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 1);
  CHECK(story.recoveries[0].causes[0].fault.starts_with("exit@"));
  CHECK(story.recoveries[0].causes[1].fault.starts_with("kill@"));
  CHECK(story.recoveries[0].fault == "exit, kill phase=backward unit=3");
  CHECK(story.incidents.empty());
}

TEST_CASE("a rank that was stopped is named, with those who waited, and counts once") {
  Events events;
  events.start(4)
      .add(9'000, {.event = "fault", .rank = 2, .step = 20, .fault = "stop@step=21,rank=2"})
      .add(12'001, {.event = "hang",
                    .generation = 1,
                    .rank = 2,
                    .node = "a1b2",
                    .step = 20,
                    .cause = "no progress for 3000 ms",
                    .doing = "step 21, forward of unit 1",
                    .waited_for_by = {0, 1, 3},
                    .detected_after_ms = 3001})
      .add(12'005, killed(2, 20))
      .add(12'200, recovered(21))
      .end(60'000, 100);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 1);
  CHECK(story.recoveries[0].fault == "stop");
  CHECK(story.summary.faults == 1);
  CHECK(story.incidents.empty());
  const auto text = tell(story);
  CHECK(text.find("19:00:12.001  Rank 2 hung after step 20 on node a1b2 and was killed. The fault "
                  "'stop@step=21,rank=2' was injected. No progress for 3000 ms.\n"
                  "              It was doing: step 21, forward of unit 1.\n"
                  "              Ranks 0, 1 and 3 waited for it.\n") != std::string::npos);
}

TEST_CASE("a replaced controller, a daemon, a straggler and a lost checkpoint are no recoveries") {
  Events events;
  events.start()
      .add(5'000, {.event = "controller", .step = 12, .cause = "killed by signal 9 (SIGKILL)"})
      .add(7'000, {.event = "straggler",
                   .rank = 1,
                   .step = 20,
                   .cause = "2.1 times as slow",
                   .doing = "forward"})
      .add(8'000, {.event = "checkpoint_abandoned",
                   .step = 30,
                   .cause = "rank 0 died",
                   .path = "out/a/checkpoint-30"})
      .add(8'500, {.event = "resize",
                   .step = 32,
                   .cause = "machine 2 came, machine 4 leaves",
                   .world_size = 1})
      .add(9'000, {.event = "fault", .rank = 0, .step = 33, .fault = "slow@step=34"})
      .add(9'500, {.event = "death", .node = "a1b2", .cause = "killed by signal 9 (SIGKILL)"})
      .end(60'000, 100);
  CHECK(events.told() ==
        "run-1a2b3c4d: 2 ranks to begin with, 100 steps, in out/a\n"
        "It began on 2026-02-06 19:00:00 UTC.\n"
        "\n"
        "19:00:05.000  The run's controller was replaced; the new one took the ranks over as they "
        "were. Killed by signal 9 (SIGKILL).\n"
        "19:00:07.000  Rank 1 was slower than the others after step 20. 2.1 times as slow.\n"
        "              It was doing: forward.\n"
        "19:00:08.000  The checkpoint out/a/checkpoint-30 was given up before it was complete. "
        "Rank 0 died.\n"
        "19:00:08.500  After step 32 the world had 1 rank: machine 2 came, machine 4 leaves.\n"
        "19:00:09.000  The fault 'slow@step=34' struck rank 0.\n"
        "19:00:09.500  A spare died on node a1b2. Another one took its place. Killed by signal 9 "
        "(SIGKILL).\n"
        "\n"
        "It ended well on 2026-02-06 19:01:00 UTC after 0:01:00: all 100 steps are done.\n");
  CHECK(events.story().recoveries.empty());
}

TEST_CASE("checkpoints that failed, a model kept in memory and strikes at the cluster are told") {
  Events events;
  events.start()
      .add(5'000, {.event = "checkpoint_failed",
                   .step = 30,
                   .cause = "no space left on device",
                   .path = "out/a/checkpoint-30"})
      .add(6'000,
           {.event = "struck", .cause = "the head, process 4711", .fault = "kill_head@step=40"})
      .add(7'000, {.event = "model_held", .cause = "no space left on device", .path = "out/a"})
      .add(8'000, {.event = "model_saved", .path = "/mnt/b"})
      .end(60'000, 100);
  CHECK(events.told() ==
        "run-1a2b3c4d: 2 ranks, 100 steps, in out/a\n"
        "It began on 2026-02-06 19:00:00 UTC.\n"
        "\n"
        "19:00:05.000  The checkpoint out/a/checkpoint-30 was not written. No space left on "
        "device.\n"
        "19:00:06.000  The fault 'kill_head@step=40' struck the head, process 4711.\n"
        "19:00:07.000  The finished model could not be written to out/a, and was kept in memory. "
        "No space left on device.\n"
        "19:00:08.000  The finished model was written to /mnt/b.\n"
        "\n"
        "It ended well on 2026-02-06 19:01:00 UTC after 0:01:00: all 100 steps are done.\n");
}

TEST_CASE("a dead keeper: its ranks' deaths are one fault, and all go back to the checkpoint") {
  Events events;
  events.start()
      .add(30'000, {.event = "keeper", .node = "a1b2", .step = 47, .cause = "killed by signal 9"})
      .add(30'001, killed(0, 47))
      .add(30'001, killed(1, 47))
      .add(30'400, {.event = "reload", .rank = 0, .step = 40, .path = "out/a/checkpoint-40"})
      .add(30'401, {.event = "reload",
                    .rank = 1,
                    .step = 40,
                    .cause = "rank 1's memory is gone",
                    .path = "out/a/checkpoint-40"})
      .add(30'402, {.event = "resume", .step = 40})
      .add(30'500, {.event = "recovered",
                    .step = 41,
                    .recovery_ms = 500,
                    .recomputed_steps = 8,
                    .lost_steps = 7})
      .end(60'000, 100);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 1);
  CHECK(story.summary.faults == 1);
  CHECK(story.recoveries[0].fault == "keeper");
  const auto text = tell(story);
  CHECK(
      text.find("19:00:30.000  The keeper of node a1b2 died, and with it the memory of the node's "
                "ranks. Killed by signal 9.\n") != std::string::npos);
  CHECK(text.find(
            "Memory was not enough to go on from (rank 1's memory is gone): all ranks went back "
            "to step 40 (out/a/checkpoint-40).\n") != std::string::npos);
  CHECK(recovery_line(story.recoveries[0]) ==
        "ranks 0 and 1 (keeper) recovered in 500 ms; rank 1's memory is gone: went back to step 40 "
        "(out/a/checkpoint-40); 8 steps recomputed, 7 lost");
  CHECK(text.find("8 steps were computed again; 7 steps that had been finished were lost. It cost "
                  "500 ms.\n") != std::string::npos);
  CHECK(text.find("8 steps recomputed, steps lost 7\n") != std::string::npos);
}

TEST_CASE("a controller that was lost with all it knew: the story begins with the new processes") {
  Events events;
  events.start()
      .add(5'000, {.event = "controller", .step = 694, .cause = "process 2"})
      .add(5'030, {.event = "respawn", .rank = 1, .step = 694})
      .add(5'031, {.event = "respawn", .rank = 0, .step = 694})
      .add(5'060, {.event = "reload", .rank = 1, .step = 600, .cause = "rank 0 found no memory"})
      .add(5'061, {.event = "resume", .step = 600})
      .add(5'100, {.event = "recovered",
                   .step = 601,
                   .cause = "the controller was lost, with its memory",
                   .recovery_ms = 100,
                   .recomputed_steps = 95,
                   .lost_steps = 94})
      .end(60'000, 700);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 1);
  CHECK(
      recovery_line(story.recoveries[0]) ==
      "the ranks (controller) recovered in 100 ms; rank 0 found no memory: went back to step 600; "
      "95 steps recomputed, 94 lost");
  CHECK(story.recoveries[0].step == 694);
  const auto text = tell(story);
  CHECK(text.find("19:00:05.030  The controller was lost, with its memory.\n"
                  "              Ranks 0 and 1 got new processes.\n"
                  "              Memory was not enough to go on from (rank 0 found no memory): all "
                  "ranks went back to step 600.\n") != std::string::npos);
}

TEST_CASE("a generation lost without a death names the fault, or the connection") {
  Events events;
  events.start()
      .add(1'000, {.event = "fault", .rank = 1, .step = 3, .fault = "cut@step=4"})
      .add(1'100, {.event = "resume", .step = 3})
      .add(1'200, recovered(4))
      .add(2'000, {.event = "resume", .step = 8})
      .add(2'100, recovered(9))
      .end(60'000, 100);
  const auto story = events.story();
  REQUIRE(story.recoveries.size() == 2);
  CHECK(story.recoveries[0].fault == "cut");
  CHECK(story.recoveries[1].fault == "connection");
  CHECK(story.summary.faults == 2);
  CHECK(tell(story).find("The ranks lost each other, though none of them died.") !=
        std::string::npos);
}

TEST_CASE("a run that ended badly says the cause and the way out") {
  Events events;
  events.start()
      .add(5'000, killed(1, 9))
      .add(5'100, killed(1, 9))
      .end(6'000, 9, Code::kResourceExhausted, "training ended: rank 1: no memory is left",
           "out/a/checkpoint-5");
  const auto story = events.story();
  CHECK(story.outcome == RunOutcome::kFailed);
  REQUIRE(story.recoveries.size() == 1);
  CHECK_FALSE(story.recoveries[0].finished);
  const auto text = tell(story);
  CHECK(text.find("              No step stood after it.\n") != std::string::npos);
  CHECK(text.find("It ended badly on 2026-02-06 19:00:06 UTC after 0:00:06 at step 9 of 100. "
                  "Training ended: rank 1: no memory is left.\n"
                  "Make room first: 'troupe plan CONFIG' says what the run needs and what would "
                  "fit. The same command with resume_from_checkpoint=true goes on from "
                  "out/a/checkpoint-5.\n") != std::string::npos);
  CHECK(text.ends_with("2 faults, 1 not recovered from\n"));

  Events none;
  none.start().end(1'000, 0, Code::kActorDied, "rank 0 died");
  CHECK(none.told().find("No checkpoint was written: the same command with "
                         "overwrite_output_dir=true begins anew.\n") != std::string::npos);

  Events stopped;
  stopped.start().end(9'000, 12, Code::kCancelled, "stopped at step 12 after saving",
                      "out/a/checkpoint-12");
  CHECK(stopped.told().find(
            "It was stopped on 2026-02-06 19:00:09 UTC after 0:00:09 at step 12 of 100. Stopped at "
            "step 12 after saving.\nThe same command with resume_from_checkpoint=true goes on from "
            "out/a/checkpoint-12.\n") != std::string::npos);
}

TEST_CASE("without an end, the driver's process tells: it runs, it is gone, or nobody knows") {
  Events events;
  events.start().add(58'000, killed(1, 57));
  auto sources = events.sources();
  sources.steps = {{.step = 1, .loss = 5}, {.step = 57, .loss = 2.5}};
  sources.driver_pid = 4321;
  sources.driver = DriverState::kRuns;
  auto story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kRunning);
  CHECK(tell(story).find("It is running (process 4321): step 57 of 100, loss 2.5000, 0:01:00 so "
                         "far.\nIt is recovering, since 2.0 s.\n") != std::string::npos);

  sources.driver = DriverState::kGone;
  sources.newest_checkpoint = "out/a/checkpoint-50";
  story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kVanished);
  CHECK(tell(story).find("It came to step 57 of 100, loss 2.5000 and has no end: its driver, "
                         "process 4321, is gone without a word. It was killed, or the machine went "
                         "down; its trainers ended with it.\nThe same command with "
                         "resume_from_checkpoint=true goes on from out/a/checkpoint-50.\n") !=
        std::string::npos);

  sources.driver = DriverState::kUnknown;
  story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kUnknown);
  CHECK(tell(story).find("and nothing says that it has ended") != std::string::npos);

  sources.driver_end = error(Code::kCancelled, "interrupted by the user");
  sources.driver_ended_unix_us = at_ms(59'000);
  story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kStopped);
  CHECK(story.end.message() == "interrupted by the user");
}

TEST_CASE("a directory that was gone on with has several runs: each has its own story") {
  Events events;
  events.start()
      .add(5'000, killed(0, 4))
      .add(5'200, recovered(5))
      .end(10'000, 12, Code::kCancelled, "stopped", "out/a/checkpoint-12")
      .add(20'000, {.event = "start",
                    .path = "out/a/checkpoint-12",
                    .run = "run-2",
                    .world_size = 2,
                    .total_steps = 100})
      .end(60'000, 100);
  auto sources = events.sources();
  auto story = read_story(sources).value();
  CHECK(story.run == "run-2");
  CHECK(story.recoveries.empty());
  CHECK(tell(story) ==
        "run-2: 2 ranks, 100 steps, in out/a\n"
        "It began on 2026-02-06 19:00:20 UTC and went on from out/a/checkpoint-12, after step 12.\n"
        "Before it, one run was in this directory.\n"
        "Nothing went wrong on the way: no rank died, none hung.\n"
        "It ended well on 2026-02-06 19:01:00 UTC after 0:00:40: all 100 steps are done.\n");
  sources.run = "run-1a2b3c4d";
  story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kStopped);
  CHECK(story.recoveries.size() == 1);
  CHECK(tell(story).find("Its directory was gone on with by another run.\n") != std::string::npos);
  sources.run = "run-ffffffff";
  const auto missing = read_story(sources);
  CHECK(missing.status().code() == Code::kNotFound);
  CHECK(missing.status().message().find("'troupe why out/a'") != std::string::npos);
}

TEST_CASE("the story as JSON") {
  Events events;
  events.start().add(12'512, killed(1, 40)).add(12'711, recovered(41)).end(60'000, 100);
  const json::Value value = to_json(events.story());
  CHECK(json::find_string(value, "outcome") == "finished");
  CHECK(json::find_string(value, "began") == "2026-02-06T19:00:00.000000Z");
  CHECK(json::find_integer(value, "step") == 100);
  const auto& recoveries = json::find(value, "recoveries")->get_array();
  REQUIRE(recoveries.size() == 1);
  CHECK(json::write(recoveries[0]) ==
        R"({"fault":"SIGKILL","ranks":[1],"step":40,"finished":true,"spares":[],"reloaded":false,)"
        R"("detected_after_ms":1.2E0,"respawn_ms":9E1,"attach_ms":3.4E0,"reform_ms":2.1E1,)"
        R"("first_step_ms":8.44E1,"recovery_ms":2E2,"recomputed_steps":1,"lost_steps":0})");
  const auto* summary = json::find(value, "summary");
  CHECK(json::find_integer(*summary, "lost_steps") == 0);
  CHECK(json::find_number(*summary, "goodput") == doctest::Approx(1 - 200.0 / 60'000));
  CHECK(json::find_string(value, "story") == events.told());
}

TEST_CASE("no events, no table") {
  CHECK(recovery_table({}, 0).empty());
  StorySources sources;
  sources.output_dir = "out/a";
  sources.driver = DriverState::kRuns;
  const auto story = read_story(sources).value();
  CHECK(story.outcome == RunOutcome::kRunning);
  CHECK(tell(story) ==
        "A run: in out/a\nNothing has gone wrong: no rank died, none hung.\n"
        "It is running: step 0.\n");
}

}  // namespace
}  // namespace troupe::train
