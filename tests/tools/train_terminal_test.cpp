// `troupe train` and its terminal: --detach, a terminal that goes, a driver that is killed.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/runs/tiny_run.h"
#include "train/report/run_registry.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

// Long enough to be there while the test looks.
const Settings kLong = {{"max_steps", "3000"}, {"save_steps", "100"}, {"overwrite_output_dir", ""}};

CommandResult run_troupe(const TinyRun& tiny, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), troupe_program());
  return run_command(arguments, tiny.options());
}

// A detached run, ended with all its processes whatever becomes of the test.
class Detached {
 public:
  Detached(const TinyRun& tiny, const std::string& output) {
    auto result = tiny.train(output, kLong, {"--detach"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    said = result.out;
    run = run_id(said);
    record = registry(tiny).find(run).value();
    pid = static_cast<pid_t>(record.pid);
  }
  ~Detached() { kill(SIGKILL); }
  Detached(const Detached&) = delete;
  Detached& operator=(const Detached&) = delete;
  // Nobody else's process: it is told by its start, too.
  void kill(int signal) {
    if (train::process_start_ticks(files, pid) == record.process_start) ::kill(pid, signal);
  }
  bool runs() { return train::process_start_ticks(files, pid) == record.process_start; }
  train::RunRegistry registry(const TinyRun& tiny) {
    return train::RunRegistry(files, tiny.file("home/.troupe/runs"));
  }

  PosixFileSystem files;
  std::string said;
  std::string run;
  train::RunRecord record;
  pid_t pid = 0;
};

TEST_CASE("--detach: the command ends when the run has started, and says how to go on with it") {
  const TinyRun tiny;
  Detached run(tiny, "out");
  CHECK(run.said == run.run + " goes on without this terminal, as process " +
                        std::to_string(run.pid) + ".\n  follow:  tail -f " +
                        tiny.file("out/train.log") + "\n  ask:     troupe why " + run.run +
                        "\n  stop:    troupe stop " + run.run + "    (kill -TERM " +
                        std::to_string(run.pid) + "; saves a checkpoint)\n");
  CHECK(run.runs());
  CHECK(::getsid(run.pid) == run.pid);
  CHECK(run.record.log == tiny.file("out/train.log"));
  CHECK(run.record.output_dir == tiny.file("out"));
  const auto why = run_troupe(tiny, {"why", run.run});
  CHECK(why.exit_code == 0);
  CHECK(why.out.find("It is running (process " + std::to_string(run.pid) + ")") !=
        std::string::npos);

  // A run that is told to stop before its first step has nothing to save.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!exists(tiny.file("out/steps.jsonl")) || contents(tiny.file("out/steps.jsonl")).empty()) {
    REQUIRE(std::chrono::steady_clock::now() < patience);
    std::this_thread::yield();
  }
  const auto stopped = run_troupe(tiny, {"stop", run.run});
  CHECK_MESSAGE(stopped.exit_code == 0, stopped.err);
  CHECK_MESSAGE(stopped.out.find(run.run + " has ended: stopped at step ") == 0, stopped.out);
  CHECK(tiny.processes_gone());
  const auto log = contents(tiny.file("out/train.log"));
  CHECK(log.find("told to end: saving a checkpoint") != std::string::npos);
  CHECK(log.find("troupe train: stopped at step ") != std::string::npos);
  const auto record = run.registry(tiny).find(run.run).value();
  CHECK(record.end.code() == Code::kCancelled);
  CHECK(exists(tiny.file("out/checkpoint-" + std::to_string(record.last_step))));
  CHECK(run_troupe(tiny, {"why", run.run}).out.find("It was stopped on ") != std::string::npos);
  CHECK(run_troupe(tiny, {"stop", run.run}).exit_code == 3);
  tiny.check_nothing_left();
}

TEST_CASE("--detach: a run that cannot start says why, with its own exit code") {
  const TinyRun tiny;
  // Behind the rows that are looked at before anything is started.
  std::string rows;
  for (int i = 0; i < 120; ++i) rows += "{\"text\": \"a row of text\"}\n";
  write(tiny.file("data/late.jsonl"), rows + "{\"text\": 7}\n");
  write(tiny.file("data/dataset_info.json"),
        R"({"late": {"file_name": "late.jsonl", "columns": {"prompt": "text"}}})");
  const std::string what = "the column 'text' must be a string";
  const auto refused = tiny.train("out", {{"dataset", "late"}}, {"--detach"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.out.empty());
  const auto at = refused.err.find(what);
  CHECK_MESSAGE(at != std::string::npos, refused.err);
  CHECK(refused.err.find(what, at + 20) == std::string::npos);
  CHECK(contents(tiny.file("out/train.log")).find(what) != std::string::npos);
  // What can be known at once needs no log.
  const auto missing = tiny.train("other", {{"dataset", "missing"}}, {"--detach"});
  CHECK(missing.exit_code == 3);
  CHECK(missing.err.find("Undefined dataset missing") != std::string::npos);
  CHECK_FALSE(exists(tiny.file("other")));
  const auto wrong = tiny.train("out", {{"dataset", "late"}, {"max_steps", "many"}}, {"--detach"});
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.err.find("max_steps") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE(
    "Ctrl-C while data are tokenised ends the command at once, and leaves nothing half made") {
  const TinyRun tiny;
  // A file whose hash takes seconds: most of it is a hole.
  write(tiny.file("data/large.jsonl"), "{\"text\": \"a row\"}\n{\"text\": \"another\"}\n");
  std::filesystem::resize_file(tiny.file("data/large.jsonl"), std::uintmax_t{60} << 30);
  write(tiny.file("data/dataset_info.json"),
        R"({"large": {"file_name": "large.jsonl", "columns": {"prompt": "text"}}})");
  BackgroundCommand run(
      tiny.train_arguments("out",
                           {{"dataset", "large"}, {"max_samples", "2"}, {"cutoff_len", "4"}}),
      tiny.options());
  const auto half_made = [&] {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(tiny.file("out"), none))
      if (entry.path().filename().string().find("building") != std::string::npos) return true;
    return false;
  };
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (!half_made() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  REQUIRE_MESSAGE(half_made(), run.output());
  run.kill(SIGINT);
  CHECK(run.wait(seconds(10)) == 128 + SIGINT);
  CHECK_FALSE(half_made());
}

TEST_CASE("--detach: kill -9 of the run's driver leaves no process") {
  const TinyRun tiny;
  Detached run(tiny, "out");
  // Driver, controller, two trainers, which have their places and are on their way.
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (tiny.processes().size() < 4 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  CHECK(tiny.processes().size() >= 4);
  run.kill(SIGKILL);
  CHECK(tiny.processes_gone());
  const auto why = run_troupe(tiny, {"why", run.run});
  CHECK(why.exit_code == 0);
  CHECK(why.out.find("process " + std::to_string(run.pid) + ", is gone without a word") !=
        std::string::npos);
}

TEST_CASE("a terminal that goes: the run saves and ends; under nohup it goes on") {
  const TinyRun tiny;
  {
    BackgroundCommand run(tiny.train_arguments("out", kLong), tiny.options());
    REQUIRE(run.wait_for_output("step 3/", seconds(30)));
    ::kill(run.pid(), SIGHUP);
    CHECK(run.wait(seconds(30)) == 128 + SIGHUP);
    CHECK(run.output().find("saved checkpoint-") != std::string::npos);
    tiny.check_nothing_left();
  }
  Settings few = kLong;
  few["max_steps"] = "40";
  auto arguments = tiny.train_arguments("nohup", few);
  arguments.insert(arguments.begin(), "nohup");
  BackgroundCommand run(arguments, tiny.options());
  REQUIRE(run.wait_for_output("step 3/", seconds(30)));
  ::kill(run.pid(), SIGHUP);
  CHECK(run.wait(seconds(30)) == 0);
  CHECK(run.output().find("trained 40 steps") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("a run with faults ends with the table, and its --json has the recoveries") {
  const TinyRun tiny;
  const auto result =
      tiny.must_train("out", {}, {"--json", "--chaos", "kill@step=4,rank=1;kill@step=6,rank=0"});
  CHECK(result.err.find("Recoveries, times in milliseconds:\nfault") != std::string::npos);
  CHECK(result.err.find("2 faults, recovered in ") != std::string::npos);
  CHECK(result.err.find("rank 1 (kill") != std::string::npos);
  const auto value = json::parse(result.out, "train").value();
  CHECK(json::find(value, "recoveries")->get_array().size() == 2);
  const auto* recovery = json::find(value, "recovery");
  REQUIRE(recovery != nullptr);
  CHECK(json::find_integer(*recovery, "faults") == 2);
  CHECK(json::find_integer(*recovery, "lost_steps") == 0);
  const auto healthy = tiny.must_train("healthy");
  CHECK(healthy.err.find("Recoveries") == std::string::npos);
}

}  // namespace
}  // namespace troupe::tests
