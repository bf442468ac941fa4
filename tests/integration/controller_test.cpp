// A run whose controller is killed, stopped ranks and spares: the real program on a tiny model.

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>

#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

const Settings kLong = {{"max_steps", "200"}, {"save_steps", "50"}};

struct Undisturbed {
  TinyRun tiny;
  Undisturbed() { tiny.must_train("oracle", kLong); }
};
const TinyRun& tiny_run() {
  static Undisturbed run;
  return run.tiny;
}

int count(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<int>(std::count(names.begin(), names.end(), name));
}

// Kills the only controller of the run, and waits until there is another one.
void replace_controller(const std::string& run) {
  const auto before = controllers(run);
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  const auto until = std::chrono::steady_clock::now() + seconds(10);
  for (auto now = controllers(run); now.empty() || now == before; now = controllers(run)) {
    REQUIRE(std::chrono::steady_clock::now() < until);
  }
}

TEST_CASE("the controller killed, again and again: training never notices") {
  const auto& tiny = tiny_run();
  BackgroundCommand run(tiny.train_arguments("controller", kLong), tiny.options());
  for (const char* step : {"step 3/200 ", "step 40/200 ", "step 80/200 "}) {
    REQUIRE_MESSAGE(run.wait_for_output(step, seconds(30)), run.output());
    replace_controller(run_id(run.output()));
  }
  REQUIRE_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  check_same_result(tiny.file("controller"), tiny.file("oracle"));
  const auto names = event_names(tiny.file("controller"));
  CHECK(count(names, "controller") == 3);
  CHECK(names.size() == 3);  // nothing else happened
  for (const auto& event : events(tiny.file("controller"))) {
    CHECK(json::find_number(event, "generation") == 1);
  }
  tiny.check_nothing_left();
}

TEST_CASE("controller and trainer killed at once; then the trainer that goes on with another one") {
  const auto& tiny = tiny_run();
  BackgroundCommand run(tiny.train_arguments("both", kLong), tiny.options());
  REQUIRE_MESSAGE(run.wait_for_output("step 3/200 ", seconds(30)), run.output());
  const std::string id = run_id(run.output());
  const auto victims = trainers(id, 1);
  REQUIRE(victims.size() == 1);
  ::kill(victims.front(), SIGKILL);
  replace_controller(id);
  REQUIRE_MESSAGE(run.wait_for_output("step 100/200 ", seconds(30)), run.output());
  const auto others = trainers(id, 0);
  REQUIRE(others.size() == 1);
  replace_controller(id);
  ::kill(others.front(), SIGKILL);
  REQUIRE_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  check_same_result(tiny.file("both"), tiny.file("oracle"));
  const auto names = event_names(tiny.file("both"));
  CHECK(count(names, "controller") == 2);
  CHECK(count(names, "death") == 2);
  CHECK(count(names, "recovered") == 2);
  for (const auto& event : events(tiny.file("both"))) {
    if (json::find_string(event, "event") != "recovered") continue;
    CHECK(json::find_number(event, "lost_steps") == 0);
  }
  tiny.check_nothing_left();
}

TEST_CASE("SIGTERM to a run whose controller was just killed: saved and ended") {
  const auto& tiny = tiny_run();
  BackgroundCommand run(tiny.train_arguments("told", kLong), tiny.options());
  REQUIRE_MESSAGE(run.wait_for_output("step 3/200 ", seconds(30)), run.output());
  const auto before = controllers(run_id(run.output()));
  REQUIRE(before.size() == 1);
  ::kill(before.front(), SIGKILL);
  ::kill(run.pid(), SIGTERM);
  CHECK_MESSAGE(run.wait(seconds(30)) == 143, run.output());
  CHECK(run.output().find("saved checkpoint-") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("a stopped rank is named, with what it was doing and who waits for it, and replaced") {
  const auto& tiny = tiny_run();
  Settings settings = kLong;
  settings["troupe.hang_timeout_ms"] = "1200";
  BackgroundCommand run(tiny.train_arguments("stopped", settings), tiny.options());
  REQUIRE_MESSAGE(run.wait_for_output("step 3/200 ", seconds(30)), run.output());
  const auto victims = trainers(run_id(run.output()), 1);
  REQUIRE(victims.size() == 1);
  ::kill(victims.front(), SIGSTOP);
  REQUIRE_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  check_same_result(tiny.file("stopped"), tiny.file("oracle"));
  const auto lines = events(tiny.file("stopped"));
  REQUIRE_FALSE(lines.empty());
  CHECK(json::find_string(lines.front(), "event") == "hang");
  CHECK(json::find_number(lines.front(), "rank") == 1);
  CHECK(json::find_string(lines.front(), "cause") == "stopped");
  CHECK(json::find_string(lines.front(), "doing").value_or("").find("step ") == 0);
  CHECK(json::find_number(lines.back(), "lost_steps") == 0);
  CHECK(json::find_number(lines.back(), "detected_after_ms").value_or(0) >= 1200);
  CHECK(json::find_number(lines.back(), "recovery_ms").has_value());
  tiny.check_nothing_left();
}

TEST_CASE("a spare takes a dead trainer's rank, and the next one that of another") {
  const auto& tiny = tiny_run();
  Settings settings = kLong;
  settings["troupe.spares"] = "1";
  // Until the second kill, so that the next spare is there by then.
  settings["troupe.chaos"] = "slow@rank=1,step=1,steps=110,factor=10";
  BackgroundCommand run(tiny.train_arguments("spare", settings), tiny.options());
  for (const char* step : {"step 20/200 ", "step 110/200 "}) {
    REQUIRE_MESSAGE(run.wait_for_output(step, seconds(30)), run.output());
    const auto victims = trainers(run_id(run.output()), 0);
    if (!victims.empty()) ::kill(victims.front(), SIGKILL);
  }
  REQUIRE_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  check_same_result(tiny.file("spare"), tiny.file("oracle"));
  const auto names = event_names(tiny.file("spare"));
  CHECK(count(names, "spare") >= 1);
  CHECK(count(names, "respawn") == 0);
  tiny.check_nothing_left();
}

}  // namespace
}  // namespace troupe::tests
