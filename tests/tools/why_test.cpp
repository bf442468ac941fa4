// `troupe why` and `troupe stop RUN` on runs that left their files.

#include "scheduler/client/cluster_record.h"
#include "tests/tools/troupe_program.h"
#include "train/report/run_registry.h"
#include "train/report/story.h"

namespace troupe::tests {
namespace {

using namespace train;  // NOLINT

constexpr std::int64_t kBegan = 1'770'404'400'000'000;

class Runs {
 public:
  // A finished run with one recovery in HOME/NAME, noted as run-NAME.
  RunRecord add(const std::string& name, std::int64_t began_unix_us = kBegan) {
    const std::string output = home.file(name);
    REQUIRE(files.create_directories(output).ok());
    const std::string run = "run-" + name;
    const RunEvent start{.event = "start", .run = run, .world_size = 2};
    const RunEvent death{.event = "death",
                         .rank = 1,
                         .step = 4,
                         .cause = "killed by signal 9 (SIGKILL)",
                         .doing = "step 5, forward"};
    const RunEvent recovered{.event = "recovered",
                             .step = 5,
                             .recovery_ms = 150,
                             .recomputed_steps = 1,
                             .lost_steps = 0};
    const RunEvent end{.event = "end", .step = 8, .code = 0};
    REQUIRE(write_file_atomically(files, output + "/events.jsonl",
                                  event_line(start, began_unix_us) + "\n" +
                                      event_line(death, began_unix_us + 1'000'000) + "\n" +
                                      event_line(recovered, began_unix_us + 1'150'000) + "\n" +
                                      event_line(end, began_unix_us + 10'000'000) + "\n")
                .ok());
    REQUIRE(write_file_atomically(
                files, output + "/steps.jsonl",
                step_line({.step = 1, .loss = 5}) + "\n" + step_line({.step = 8, .loss = 2}) + "\n")
                .ok());
    REQUIRE(write_file_atomically(files, output + "/trainer_log.jsonl",
                                  R"({"current_steps": 1, "total_steps": 8})"
                                  "\n"
                                  R"({"current_steps": 8, "total_steps": 8})"
                                  "\n{\"curr")
                .ok());
    RunRecord record{.run = run,
                     .output_dir = output,
                     .host_name = scheduler::host_name(),
                     .pid = 1,
                     .process_start = 1,
                     .started_unix_us = began_unix_us};
    REQUIRE(registry.write(record).ok());
    return record;
  }

  TroupeHome home;
  PosixFileSystem files;
  RunRegistry registry{files, home.file(".troupe/runs")};
};

TEST_CASE("why: by id, by half of the id, by directory, or of the newest") {
  Runs runs;
  runs.add("0000000a");
  runs.add("0000000b", kBegan + 1);
  const auto by_id = runs.home.run({"why", "run-0000000a"});
  CHECK(by_id.exit_code == 0);
  CHECK(by_id.err.empty());
  CHECK(by_id.out.starts_with("run-0000000a: 2 ranks, 8 steps, in " + runs.home.file("0000000a")));
  CHECK(by_id.out.find("Rank 1 died after step 4. Killed by signal 9 (SIGKILL).\n") !=
        std::string::npos);
  CHECK(by_id.out.find("Step 5 was computed again; no finished step was lost. It cost 150 ms.") !=
        std::string::npos);
  CHECK(by_id.out.find("all 8 steps are done, loss 5.0000 → 2.0000.") != std::string::npos);
  CHECK(by_id.out.ends_with(
      "1 fault, recovered in 150 ms; goodput 98.50 %; 1 step recomputed, steps lost 0\n"));
  CHECK(runs.home.run({"why", "0000000a"}).out == by_id.out);
  CHECK(runs.home.run({"why", runs.home.file("0000000a")}).out == by_id.out);
  CHECK(runs.home.run({"why"}).out.starts_with("run-0000000b: "));
  const auto value = runs.home.run_json({"why", "run-0000000a"});
  CHECK(json::find_string(value, "outcome") == "finished");
  CHECK(json::find_string(value, "story") == by_id.out);
}

TEST_CASE("why: what is not there is told apart, with exit code 3") {
  Runs runs;
  const auto none = runs.home.run({"why"});
  CHECK(none.exit_code == 3);
  CHECK(none.err.find("no run of this user is known") != std::string::npos);
  const auto record = runs.add("0000000a");
  const auto unknown = runs.home.run({"why", "run-ffffffff"});
  CHECK(unknown.exit_code == 3);
  CHECK(unknown.err.find("the newest are:\n  run-0000000a (2026-02-06 19:00, not ended in ") !=
        std::string::npos);
  REQUIRE(runs.files.create_directories(runs.home.file("empty")).ok());
  const auto empty = runs.home.run({"why", runs.home.file("empty")});
  CHECK(empty.exit_code == 3);
  CHECK(empty.err.find("is not the output directory of a run") != std::string::npos);
  REQUIRE(runs.files.remove_tree(record.output_dir).ok());
  const auto gone = runs.home.run({"why", "run-0000000a"});
  CHECK(gone.exit_code == 3);
  CHECK(gone.err.find("is not there any more") != std::string::npos);
}

TEST_CASE("why: a run without an end whose driver is gone, and one whose directory is another's") {
  Runs runs;
  const auto record = runs.add("0000000a");
  const RunEvent start{.event = "start", .run = record.run, .world_size = 1};
  REQUIRE(write_file_atomically(runs.files, record.output_dir + "/events.jsonl",
                                event_line(start, kBegan) + "\n{\"half")
              .ok());
  const auto vanished = runs.home.run({"why", record.run});
  CHECK(vanished.out.find("It came to step 8 of 8, loss 2.0000 and has no end: its driver, process "
                          "1, is gone without a word.") != std::string::npos);
  // Its end is what went wrong.
  CHECK(vanished.out.find("Nothing went wrong") == std::string::npos);
  CHECK(vanished.out.find("Until its end no rank died, and none hung.") != std::string::npos);
  CHECK(vanished.out.find("No checkpoint was written: the same command with "
                          "overwrite_output_dir=true begins anew.\n") != std::string::npos);

  auto later = record;
  later.run = "run-0000000b";
  later.started_unix_us += 1;
  REQUIRE(runs.registry.write(later).ok());
  const auto overwritten = runs.home.run({"why", later.run});
  CHECK(overwritten.exit_code == 3);
  CHECK(overwritten.err.find("'troupe why " + record.output_dir + "'") != std::string::npos);
}

TEST_CASE("stop RUN: a run that does not run here is refused, no other process is struck") {
  Runs runs;
  auto record = runs.add("0000000a");  // pid 1, with another start
  const auto gone = runs.home.run({"stop", record.run});
  CHECK(gone.exit_code == 3);
  CHECK(gone.err.find("does not run any more; 'troupe why run-0000000a'") != std::string::npos);
  // By its folder, too.
  const auto by_folder = runs.home.run({"stop", record.output_dir});
  CHECK(by_folder.exit_code == 3);
  CHECK(by_folder.err == gone.err);
  REQUIRE(runs.files.create_directories(runs.home.file("empty")).ok());
  const auto empty = runs.home.run({"stop", runs.home.file("empty")});
  CHECK(empty.exit_code == 3);
  CHECK(empty.err.find("/empty is not the output directory of a run in ") != std::string::npos);
  record.host_name = "elsewhere";
  REQUIRE(runs.registry.write(record).ok());
  const auto elsewhere = runs.home.run({"stop", record.run});
  CHECK(elsewhere.exit_code != 0);
  CHECK(elsewhere.err.find("runs on elsewhere: stop it there") != std::string::npos);
  CHECK(runs.home.run({"stop", "run-ffffffff"}).exit_code == 3);
}

}  // namespace
}  // namespace troupe::tests
