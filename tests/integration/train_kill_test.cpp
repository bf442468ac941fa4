// Deaths during `troupe train`: of trainers by injected faults and from outside, and of the driver.

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "runtime/base/random.h"
#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

struct KillRuns {
  TinyRun tiny;
  KillRuns() {
    tiny.must_train("oracle");
    tiny.must_train("long", kLong);
  }
  // Long enough to be struck from outside in the middle.
  static inline const Settings kLong = {{"max_steps", "200"}, {"save_steps", "20"}};
};
KillRuns& kill_runs() {
  static KillRuns kill_runs;
  return kill_runs;
}

// The events of recoveries from surviving memory, in the order that they must have.
void check_recovery(const std::string& output, int deaths) {
  const auto lines = events(output);
  const auto names = event_names(output);
  for (const char* name : {"death", "respawn", "resume", "recovered"}) {
    CAPTURE(name);
    CHECK(std::count(names.begin(), names.end(), name) == deaths);
  }
  CHECK(std::count(names.begin(), names.end(), "reload") == 0);
  REQUIRE_FALSE(names.empty());
  CHECK(names.front() == "death");
  CHECK(names.back() == "recovered");
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool recovered = names[i] == "recovered";
    for (const char* key : {"time", "event", "generation", "rank", "node", "step"}) {
      CAPTURE(key);
      CHECK(lines[i].as_object().contains(key));
    }
    CHECK(lines[i].as_object().contains("recovery_ms") == recovered);
    if (!recovered) continue;
    CHECK(json::find_number(lines[i], "lost_steps") == 0);
    CHECK(json::find_number(lines[i], "recomputed_steps").value_or(9) <= 1);
  }
}

TEST_CASE("a trainer killed in any phase, first rank or last: the end is the undisturbed one's") {
  const auto& tiny = kill_runs().tiny;
  for (const char* rank : {"0", "1"}) {
    for (const char* phase :
         {"begin", "forward", "backward", "communication", "optimizer", "checkpoint"}) {
      const std::string step = std::string(phase) == "checkpoint" ? "6" : "5";
      const std::string fault =
          "kill@step=" + step + ",rank=" + std::string(rank) + ",phase=" + phase;
      CAPTURE(fault);
      const auto result = tiny.must_train("killed", {}, {"--chaos", fault});
      check_same_result(tiny.file("killed"), tiny.file("oracle"));
      check_recovery(tiny.file("killed"), 1);
      CHECK(result.err.find("rank " + std::string(rank) + " died") != std::string::npos);
    }
  }
}

TEST_CASE("a death before the first checkpoint, and one at the last step") {
  const auto& tiny = kill_runs().tiny;
  tiny.must_train("first", {}, {"--chaos", "kill@step=1,rank=0"});
  check_same_result(tiny.file("first"), tiny.file("oracle"));
  tiny.must_train("second", {{"troupe.chaos", "kill@step=2,rank=1"}});
  check_same_result(tiny.file("second"), tiny.file("oracle"));
  check_recovery(tiny.file("second"), 1);
  for (const char* rank : {"0", "1"}) {
    CAPTURE(rank);
    tiny.must_train("last", {},
                    {"--chaos", "kill@step=8,phase=checkpoint,rank=" + std::string(rank)});
    check_same_result(tiny.file("last"), tiny.file("oracle"));
    check_recovery(tiny.file("last"), 1);
  }
}

TEST_CASE("a death in a run that has removed the checkpoint it went on from") {
  const auto& tiny = kill_runs().tiny;
  for (const char* output : {"undisturbed", "rotated"}) {
    tiny.must_train(output, {{"save_total_limit", "1"}});
    const bool strikes = std::string(output) == "rotated";
    tiny.must_train(
        output,
        {{"save_total_limit", "1"}, {"max_steps", "20"}, {"resume_from_checkpoint", "true"}},
        strikes ? std::vector<std::string>{"--chaos", "kill@step=17,rank=1"}
                : std::vector<std::string>{});
    CHECK_FALSE(std::filesystem::exists(tiny.file(std::string(output) + "/checkpoint-8")));
  }
  CHECK((contents(tiny.file("rotated/model.safetensors")) ==
         contents(tiny.file("undisturbed/model.safetensors"))));
}

TEST_CASE("two deaths in one run, of both ranks") {
  const auto& tiny = kill_runs().tiny;
  tiny.must_train("two", {}, {"--chaos", "kill@step=2,rank=1;kill@step=7,rank=0,phase=optimizer"});
  check_same_result(tiny.file("two"), tiny.file("oracle"));
  check_recovery(tiny.file("two"), 2);
}

TEST_CASE("a death while the trainers recover, and of both ranks at once") {
  const auto& tiny = kill_runs().tiny;
  tiny.must_train("again", {},
                  {"--chaos", "kill@step=5,rank=1;kill@step=4,rank=0,generation=2,phase=begin"});
  check_same_result(tiny.file("again"), tiny.file("oracle"));
  tiny.must_train("both", {}, {"--chaos", "kill@step=5,rank=1;kill@step=5,rank=0"});
  check_same_result(tiny.file("both"), tiny.file("oracle"));
}

TEST_CASE("four trainers survive the death of one") {
  const auto& tiny = kill_runs().tiny;
  const Settings four = {{"troupe.workers", "4"}, {"per_device_train_batch_size", "1"}};
  tiny.must_train("four", four);
  tiny.must_train("four-killed", four, {"--chaos", "kill@step=5,rank=2,phase=communication"});
  check_same_result(tiny.file("four-killed"), tiny.file("four"));
}

TEST_CASE("a trainer killed from outside, and one told to end: the run goes on") {
  const auto& tiny = kill_runs().tiny;
  for (const int signal : {SIGKILL, SIGTERM, SIGSEGV}) {
    CAPTURE(signal);
    BackgroundCommand run(tiny.train_arguments("outside", KillRuns::kLong), tiny.options());
    REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
    const auto victims = trainers(run_id(run.output()), 1);
    REQUIRE(victims.size() == 1);
    ::kill(victims[0], signal);
    REQUIRE(run.wait(seconds(60)) == 0);
    CHECK(event_names(tiny.file("outside")).front() == "death");
    CHECK(event_names(tiny.file("outside")).back() == "recovered");
    check_same_result(tiny.file("outside"), tiny.file("long"));
    tiny.check_nothing_left();
  }
}

// An end's message names the newest checkpoint that is there. How far the last save came before the
// end is a matter of time.
void check_names_newest_checkpoint(const std::string& message, const std::string& output) {
  long newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    const std::string name = entry.path().filename(), prefix = "checkpoint-";
    if (name.starts_with(prefix)) newest = std::max(newest, std::stol(name.substr(prefix.size())));
  }
  CHECK(newest >= 3);
  CHECK_MESSAGE(message.find("last good checkpoint is " + output + "/checkpoint-" +
                             std::to_string(newest) + "\n") != std::string::npos,
                message);
}

TEST_CASE("three deaths without a finished step end the run, the last checkpoint named") {
  const auto& tiny = kill_runs().tiny;
  // When rank 0 begins step 8, the save of step 3 is done and that of step 6 may be.
  std::string faults = "kill@step=8,rank=0";
  for (const char* generation : {"2", "3"}) {
    faults += ";kill@step=8,rank=1,generation=" + std::string(generation);
  }
  const auto result = tiny.train("fruitless", {}, {"--chaos", faults});
  CHECK(result.exit_code == 7);
  CHECK(result.err.find("3 failures in a row") != std::string::npos);
  check_names_newest_checkpoint(result.err, tiny.file("fruitless"));
  tiny.check_nothing_left();
  // What it names can be gone on from.
  tiny.must_train("fruitless", {{"overwrite_output_dir", "false"}});
  check_same_result(tiny.file("fruitless"), tiny.file("oracle"));

  // What an earlier run left unfinished goes too.
  std::filesystem::create_directories(tiny.file("fruitless-0"));
  write(tiny.file("fruitless-0/model.safetensors.tmp"), "half");
  const auto none =
      tiny.train("fruitless-0", {}, {"--chaos", "kill@step=1;kill@step=1;kill@step=1"});
  CHECK(none.exit_code == 7);
  CHECK(none.err.find("no checkpoint was written") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("MAX_RESTARTS and troupe.max_restarts are the same budget where they are set") {
  const auto& tiny = kill_runs().tiny;
  const std::vector<std::string> twice = {"--chaos", "kill@step=4,rank=1;kill@step=8,rank=1"};
  const auto refused = tiny.train("budget", {}, twice, {{"MAX_RESTARTS", "1"}});
  CHECK(refused.exit_code == 7);
  CHECK(refused.err.find("MAX_RESTARTS") != std::string::npos);
  check_names_newest_checkpoint(refused.err, tiny.file("budget"));
  tiny.check_nothing_left();
  const auto zero =
      tiny.train("budget", {{"troupe.max_restarts", "0"}}, {"--chaos", "kill@step=4,rank=1"});
  CHECK(zero.exit_code == 7);
  // The key comes before the variable.
  tiny.must_train("budget", {{"troupe.max_restarts", "2"}}, twice, {{"MAX_RESTARTS", "1"}});
  check_same_result(tiny.file("budget"), tiny.file("oracle"));
  // More than three fruitless deaths are allowed where the user allows more restarts.
  tiny.must_train("budget", {},
                  {"--chaos", "kill@step=4;kill@step=4;kill@step=4,rank=1;kill@step=4"},
                  {{"MAX_RESTARTS", "4"}});
  check_same_result(tiny.file("budget"), tiny.file("oracle"));
}

TEST_CASE("kill -9 of the driver: its processes notice by themselves within a second") {
  const auto& tiny = kill_runs().tiny;
  BackgroundCommand run(tiny.train_arguments("orphaned", KillRuns::kLong), tiny.options());
  REQUIRE(run.wait_for_output("checkpoint-20", seconds(30)));
  CHECK(tiny.processes().size() >= 4);  // driver, controller, two trainers
  const auto second = tiny.train("orphaned", {});
  CHECK(second.exit_code == 2);
  CHECK(second.err.find("is that of a run which goes on (run-") != std::string::npos);
  run.kill(SIGKILL);
  CHECK(tiny.processes_gone());
  CHECK(run.wait(seconds(5)) == 128 + SIGKILL);
  for (const auto& name : tiny.leftovers()) {
    // A save that was cut short may lie under its temporary name; the next run clears it.
    CHECK_MESSAGE(name.find("/orphaned/") != std::string::npos, name);
  }
  tiny.must_train("orphaned",
                  {{"overwrite_output_dir", "false"}, {"max_steps", "200"}, {"save_steps", "20"}});
  check_same_result(tiny.file("orphaned"), tiny.file("long"));
}

TEST_CASE("Ctrl-C ends the run with 130 and leaves nothing") {
  const auto& tiny = kill_runs().tiny;
  const auto interrupted = [&](int signal, bool whole_group) {
    BackgroundCommand run(tiny.train_arguments("interrupted", KillRuns::kLong), tiny.options());
    REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
    ::kill(whole_group ? -run.pid() : run.pid(), signal);
    CHECK(run.wait(seconds(10)) == 130);
    CHECK(run.output().find("interrupted") != std::string::npos);
    tiny.check_nothing_left();
  };
  interrupted(SIGINT, true);  // as a terminal does
  interrupted(SIGINT, false);
}

// The step N of "stopped at step N".
std::string stopped_at(const std::string& output) {
  const std::string before = "stopped at step ";
  const auto at = output.find(before);
  REQUIRE_MESSAGE(at != std::string::npos, output);
  const auto begin = at + before.size();
  return output.substr(begin, output.find_first_not_of("0123456789", begin) - begin);
}

// Tells a run to end, sees what it leaves, and that the same command goes on to the same end.
void check_told(const TinyRun& tiny, const Settings& more) {
  Settings settings = {{"max_steps", "200"}, {"save_steps", "150"}, {"overwrite_output_dir", ""}};
  settings.insert(more.begin(), more.end());
  std::filesystem::remove_all(tiny.file("told"));
  {
    BackgroundCommand run(tiny.train_arguments("told", settings), tiny.options());
    REQUIRE_MESSAGE(run.wait_for_output("step 3/200 ", seconds(30)), run.output());
    // As `timeout` does: both are one request.
    ::kill(run.pid(), SIGTERM);
    ::kill(-run.pid(), SIGTERM);
    CHECK(run.wait(seconds(30)) == 143);
    const std::string step = stopped_at(run.output());
    CHECK(run.output().find("stopped at step " + step + ", saved checkpoint-" + step +
                            "; run the same command to go on") != std::string::npos);
    CHECK(exists(tiny.file("told/checkpoint-" + step)));
    CHECK(std::to_string(steps_of(tiny.file("told")).size()) == step);
    CHECK(event_names(tiny.file("told")).empty());
    tiny.check_nothing_left();
  }
  const auto result = tiny.must_train("told", settings);
  CHECK(result.err.find("going on from") != std::string::npos);
  check_same_result(tiny.file("told"), tiny.file("long"));
}

TEST_CASE("SIGTERM: a checkpoint after the step under way and an end in order; the run goes on") {
  const auto& tiny = kill_runs().tiny;
  check_told(tiny, {});
  check_told(tiny, {{"troupe.strategy", "zero3"}, {"troupe.checkpoint_format", "sharded"}});

  // Where the same command would begin anew, another one is named.
  BackgroundCommand run(tiny.train_arguments("told", KillRuns::kLong), tiny.options());
  REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
  ::kill(run.pid(), SIGTERM);
  CHECK(run.wait(seconds(30)) == 143);
  CHECK(run.output().find("with resume_from_checkpoint=true") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("SIGTERM while a trainer is dead: it is recovered from, saved and ended") {
  const auto& tiny = kill_runs().tiny;
  BackgroundCommand run(tiny.train_arguments("recovered", KillRuns::kLong), tiny.options());
  REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
  const auto victims = trainers(run_id(run.output()), 1);
  REQUIRE(victims.size() == 1);
  ::kill(victims[0], SIGKILL);
  ::kill(run.pid(), SIGTERM);
  CHECK(run.wait(seconds(30)) == 143);
  CHECK(run.output().find("saved checkpoint-" + stopped_at(run.output())) != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("SIGTERM to a run that makes no steps: it saves and ends in seconds, or at once") {
  const auto& tiny = kill_runs().tiny;
  // Nobody looks for hangs, and a collective waits for years.
  Settings settings = KillRuns::kLong;
  settings["troupe.hang_timeout_ms"] = "0";
  settings["ddp_timeout"] = "180000000";
  settings["troupe.stop_timeout_s"] = "5";
  const auto told = [&](std::optional<int> second, int exit_code) {
    BackgroundCommand run(tiny.train_arguments("stuck", settings), tiny.options());
    REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
    const auto stuck = trainers(run_id(run.output()), 1);
    REQUIRE(stuck.size() == 1);
    ::kill(stuck[0], SIGSTOP);
    ::kill(run.pid(), SIGTERM);
    CHECK(run.wait_for_output("told to end", seconds(30)));
    // Again until it is taken as a second request, and not as a repetition of the first one.
    for (int i = 0; second && i < 10 && run.wait(seconds(1)) < 0; ++i) ::kill(run.pid(), *second);
    CHECK(run.wait(seconds(30)) == exit_code);
    tiny.check_nothing_left();
    return run.output();
  };
  CHECK(told(SIGTERM, 143).find("interrupted") != std::string::npos);
  CHECK(told(SIGINT, 130).find("interrupted") != std::string::npos);
  const std::string saved = told({}, 143);
  INFO(saved);
  const std::string step = stopped_at(saved);
  CHECK(saved.find("saved checkpoint-" + step) != std::string::npos);
  CHECK(exists(tiny.file("stuck/checkpoint-" + step)));
  CHECK(std::to_string(steps_of(tiny.file("stuck")).size()) == step);
}

TEST_CASE("SIGTERM to a run whose controller is stopped: it ends all the same") {
  const auto& tiny = kill_runs().tiny;
  Settings settings = KillRuns::kLong;
  settings["troupe.stop_timeout_s"] = "2";
  BackgroundCommand run(tiny.train_arguments("mute", settings), tiny.options());
  REQUIRE(run.wait_for_output("step 3/200 ", seconds(30)));
  const auto stopped = controllers(run_id(run.output()));
  REQUIRE(stopped.size() == 1);
  ::kill(stopped[0], SIGSTOP);
  ::kill(run.pid(), SIGTERM);
  CHECK(run.wait(seconds(30)) == 143);
  CHECK(run.output().find("its controller does not answer") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("Ctrl-C while the data are read ends the run at once") {
  const TinyRun tiny;
  // Words of their own, so that the tokenizer's training takes seconds.
  SeededRandom random(5);
  std::string text;
  for (int word = 0; word < 300'000; ++word) {
    for (int letter = 0; letter < 12; ++letter) text += static_cast<char>('a' + random.below(26));
    text += word % 10 == 9 ? '\n' : ' ';
  }
  write(tiny.file("data/tiny.txt"), text);
  BackgroundCommand run(tiny.train_arguments("reading", {{"troupe.train_tokenizer", "30000"}}),
                        tiny.options());
  REQUIRE(run.wait_for_output("training a tokenizer", seconds(30)));
  ::kill(-run.pid(), SIGINT);
  CHECK(run.wait(seconds(5)) == 130);
  tiny.check_nothing_left();
}

TEST_CASE("Ctrl-C or SIGTERM while node 0 waits for other nodes") {
  const TinyRun tiny;
  for (const int signal : {SIGINT, SIGTERM}) {
    BackgroundCommand run(
        tiny.train_arguments("alone"),
        tiny.options(
            {{"USE_RAY", "1"}, {"NNODES", "2"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}}));
    REQUIRE(run.wait_for_output("1 of 2 nodes", seconds(30)));
    ::kill(-run.pid(), signal);
    CHECK(run.wait(seconds(5)) == 128 + signal);
    tiny.check_nothing_left();
  }
}

// The kernel hands a signal to any thread that does not block it. One helper thread that does not
// would end the process past the main thread, which takes the run down.
TEST_CASE("no other thread of a run takes Ctrl-C before its main thread") {
  const auto& tiny = kill_runs().tiny;
  // A strike from outside, which never comes, has a thread, too.
  auto settings = KillRuns::kLong;
  settings["troupe.chaos"] = "stop@at=3000";
  BackgroundCommand run(tiny.train_arguments("threads", settings), tiny.options());
  REQUIRE(run.wait_for_output("run-", seconds(30)));
  const std::string tasks = "/proc/" + std::to_string(run.pid()) + "/task";
  const std::uint64_t ending = 1u << (SIGINT - 1) | 1u << (SIGTERM - 1);
  std::size_t seen = 0;
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream in(task.path() / "status");
    std::string word;
    while (in >> word && word != "SigBlk:") {
    }
    std::uint64_t blocked = 0;
    if (!(in >> std::hex >> blocked)) continue;  // it ended meanwhile
    ++seen;
    CHECK_MESSAGE((blocked & ending) == ending, task.path(), " does not block them");
  }
  CHECK(seen >= 2);
  ::kill(-run.pid(), SIGINT);
  CHECK(run.wait(seconds(10)) == 130);
  tiny.check_nothing_left();
}

TEST_CASE("Ctrl-C before the trainers run ends the run too") {
  const auto& tiny = kill_runs().tiny;
  BackgroundCommand run(tiny.train_arguments("early", KillRuns::kLong), tiny.options());
  REQUIRE(run.wait_for_output("run-", seconds(30)));
  ::kill(-run.pid(), SIGINT);
  CHECK(run.wait(seconds(10)) == 130);
  tiny.check_nothing_left();
}

}  // namespace
}  // namespace troupe::tests
