// `troupe chaos`: trainings under fire, as users strike them.

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <tuple>

#include "actors/chaos_cluster/marked_processes.h"
#include "tests/support/runs/tiny_run.h"
#include "tools/commands/outside_strikes.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using chaos::ProcessRole;

// `troupe chaos run` of a scenario with the tiny training, whose processes have the test's HOME.
struct UnderFire {
  TinyRun tiny;

  std::vector<std::string> arguments(const std::string& scenario, const Settings& changes,
                                     const std::vector<std::string>& more) const {
    write(tiny.file("scenario.yaml"), scenario);
    std::vector<std::string> words = {troupe_program(), "chaos", "run", tiny.file("scenario.yaml")};
    const auto settings = tiny.train_arguments("struck", changes);
    words.insert(words.end(), settings.begin() + 2, settings.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  CommandResult run(const std::string& scenario, const Settings& changes = {},
                    const std::vector<std::string>& more = {"--oracle", "--json"}) const {
    return run_command(arguments(scenario, changes, more), tiny.options());
  }
};

json::Value report_of(const CommandResult& result) {
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return json::parse(result.out, "report").value();
}
bool equal_to_oracle(const json::Value& report) {
  return json::find_bool(report.at("oracle"), "equal").value_or(false);
}

TEST_CASE_FIXTURE(UnderFire,
                  "kills at a point and from outside: reported, and equal to the oracle") {
  const auto report = report_of(
      run("seed: 2\nfaults:\n  - kill@step=3,rank=1,phase=optimizer\n  - {fault: kill, at: 0.1}\n",
          {{"max_steps", "300"}, {"save_steps", "100"}}));
  CHECK(equal_to_oracle(report));
  CHECK(json::find_integer(report, "steps") == 300);
  REQUIRE(report.at("strikes").as_array().size() == 1);
  CHECK(json::find_string(report.at("strikes").at(0), "target")->starts_with("rank "));
  CHECK(report.at("recoveries").as_array().size() >= 1);
  CHECK(json::find_integer(report.at("summary"), "lost_steps") == 0);
  tiny.check_nothing_left();
}

TEST_CASE_FIXTURE(UnderFire, "what is not equal is said to be so") {
  // A NaN skips a step, so that the weights cannot be equal.
  const auto result = run("faults: ['nan@step=2,rank=1']");
  CHECK(result.exit_code == 7);
  CHECK(result.err.find("not that of the undisturbed training") != std::string::npos);
  CHECK_FALSE(equal_to_oracle(json::parse(result.out, "report").value()));
}

TEST_CASE_FIXTURE(UnderFire,
                  "a cluster of processes: connections cut, the head and a daemon killed") {
  const auto report =
      report_of(run("nodes: 2\nfaults: ['cut@step=20,node=1', 'kill_head@step=60', "
                    "'kill_daemon@step=100,node=0', 'stall@step=200,for_ms=100']",
                    {{"max_steps", "600"}, {"save_steps", "600"}, {"troupe.strategy", "zero3"}}));
  CHECK(equal_to_oracle(report));
  REQUIRE(report.at("strikes").as_array().size() == 4);
  for (const auto& strike : report.at("strikes").as_array()) {
    CAPTURE(json::write(strike));
    CHECK_FALSE(json::find_string(strike, "target")->empty());
  }
  // The run itself does not notice that the cluster's own processes end: its story is told so.
  const auto names = event_names(tiny.file("struck"));
  CHECK(std::count(names.begin(), names.end(), "struck") == 2);
  tiny.check_nothing_left();
}

TEST_CASE_FIXTURE(UnderFire, "nodes are killed whole, join and leave: no step is lost") {
  const auto report =
      report_of(run("nodes: 3\nfaults: ['kill_node@step=60', 'join_node@step=140', "
                    "'leave_node@step=300', 'join_node@step=400', 'kill_node@step=500']",
                    {{"max_steps", "700"}, {"save_strategy", "no"}, {"troupe.strategy", "zero3"}}));
  CHECK(equal_to_oracle(report));
  REQUIRE(report.at("strikes").as_array().size() == 5);
  for (const auto& strike : report.at("strikes").as_array()) {
    CAPTURE(json::write(strike));
    CHECK_FALSE(json::find_string(strike, "target")->empty());
  }
  tiny.check_nothing_left();
}

TEST_CASE_FIXTURE(UnderFire, "mistakes are named before anything starts") {
  const auto refused = [&](const std::string& scenario, const char* what) {
    const auto result = run(scenario);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(what) != std::string::npos);
  };
  refused("faults: [kill@stp=4]", "faults[0]: 'kill@stp=4': stp: unknown key");
  refused("faults: ['kill@step=4,rank=7']", "has 2 ranks");
  refused("faults: ['cut@step=4,node=2']", "there are 2 nodes");
  refused("fault: []", "did you mean 'faults'?");
  const auto unknown = run_command({troupe_program(), "chaos", "runn"}, tiny.options());
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("did you mean 'run'?") != std::string::npos);
  const auto train = tiny.train("out", {}, {"--chaos", "kill_head@at=1"});
  CHECK(train.exit_code == 2);
  CHECK(train.err.find("use troupe chaos run") != std::string::npos);
}

TEST_CASE_FIXTURE(UnderFire, "a fault that finds nothing to strike is no success") {
  const auto result = run("faults: ['kill@step=500']");
  CAPTURE(result.err);
  CHECK(result.exit_code == 7);
  CHECK(result.err.find("kill@step=500,rank=0,phase=forward,point=stage never struck") !=
        std::string::npos);
  const auto train = tiny.train("out", {}, {"--chaos", "kill@step=500"});
  CAPTURE(train.err);
  CHECK(train.exit_code == 0);
  CHECK(train.err.find("warning: kill@step=500,rank=0,phase=forward,point=stage never struck") !=
        std::string::npos);
  const auto refused = tiny.train("out", {}, {"--chaos", "kill@step=2,rank=7"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("the training has 2 ranks") != std::string::npos);
}

TEST_CASE_FIXTURE(UnderFire, "Ctrl-C leaves nothing behind") {
  for (const char* scenario : {"faults: [kill@every=60]", "nodes: 2\nfaults: [kill@every=60]"}) {
    CAPTURE(scenario);
    BackgroundCommand run(
        arguments(scenario, {{"max_steps", "100000"}, {"save_steps", "100000"}}, {}),
        tiny.options());
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (!exists(tiny.file("struck/steps.jsonl")) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(10ms);  // nothing tells of others' files
    }
    REQUIRE(exists(tiny.file("struck/steps.jsonl")));
    ::kill(run.pid(), SIGINT);
    CHECK(run.wait(30s) == 130);
    tiny.check_nothing_left();
    ::remove(tiny.file("struck/steps.jsonl").c_str());
  }
}

TEST_CASE("train --chaos strikes by the clock, too") {
  const TinyRun tiny;
  const Settings settings = {{"max_steps", "300"}, {"save_steps", "300"}};
  tiny.must_train("oracle", settings);
  // Far apart: of two that strike one trainer at once the second finds it dead. And slow, or the
  // run were over before the clock is looked at where the machine has much to do.
  tiny.must_train("struck", settings,
                  {"--chaos",
                   "kill@step=280,rank=1,phase=begin;kill@at=0.05;"
                   "slow@rank=0,step=1,steps=200,factor=5"});
  check_same_result(tiny.file("struck"), tiny.file("oracle"));
  const auto names = event_names(tiny.file("struck"));
  CHECK(std::count(names.begin(), names.end(), "death") == 2);
}

TEST_CASE("a fault of any rank strikes one of them; times says how often in a run") {
  const TinyRun tiny;
  tiny.must_train("oracle");
  const auto deaths = [&](const char* fault) {
    tiny.must_train("struck", {}, {"--chaos", fault});
    check_same_result(tiny.file("struck"), tiny.file("oracle"));
    const auto names = event_names(tiny.file("struck"));
    return std::count(names.begin(), names.end(), "death");
  };
  CHECK(deaths("kill@step=3,rank=any,phase=optimizer") == 1);
  CHECK(deaths("kill@step=3,rank=1,times=2") == 2);
}

TEST_CASE("enumerate: a kill at each point that is asked for, weights compared") {
  const TinyRun tiny;
  // Of the second a kill of the last rank alone: it trains pairs over a base in 4 bits.
  for (const auto& [strategy, only, points] : {std::tuple("zero1", "operation=written", 2),
                                               {"dpo-nf4-zero3", "rank=1,phase=prepared", 1}}) {
    CAPTURE(strategy);
    const auto result = run_command({troupe_program(), "chaos", "enumerate", "--strategies",
                                     strategy, "--only", only, "--json"},
                                    tiny.options());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const auto last = result.out.rfind('\n', result.out.size() - 2);
    const auto summary =
        json::parse(std::string_view(result.out).substr(last + 1), "summary").value();
    CHECK(json::find_integer(summary, "points_visited") >= points);
    CHECK(json::find_integer(summary, "failed") == 0);
  }
  tiny.check_nothing_left();
}

TEST_CASE("processes are told apart by their command lines") {
  const auto trainer = chaos::role_of(
      {"troupe", "host", "--actor", "TrainerActor", "--run", "run-1", "--rank", "3"});
  CHECK(trainer.role == ProcessRole::kTrainer);
  CHECK(trainer.rank == 3);
  CHECK(chaos::role_of({"troupe", "host", "--actor", "TrainController"}).role ==
        ProcessRole::kController);
  CHECK(chaos::role_of({"troupe", "keeper", "--socket-name", "x"}).role == ProcessRole::kKeeper);
  CHECK(chaos::role_of({"troupe", "worker"}).role == ProcessRole::kDaemon);
  CHECK(chaos::role_of({"troupe", "head"}).role == ProcessRole::kHead);
  CHECK(chaos::role_of({"troupe", "train", "worker"}).role == ProcessRole::kOther);
  CHECK(chaos::role_of({}).role == ProcessRole::kOther);
}

TEST_CASE("the step under way is read from a growing file, not from an old one") {
  const TemporaryDirectory folder;
  tools::StepsSeen fresh(folder.path());
  CHECK(fresh.under_way() == 0);
  write(folder.file("steps.jsonl"), "{}\n{}\n{");
  CHECK(fresh.under_way() == 3);
  std::ofstream(folder.file("steps.jsonl"), std::ios::app) << "}\n";
  CHECK(fresh.under_way() == 4);
  write(folder.file("steps.jsonl"), "{}\n");
  CHECK(fresh.under_way() == 2);
  tools::StepsSeen later(folder.path());
  CHECK(later.under_way() == 0);
}

}  // namespace
}  // namespace troupe::tests
