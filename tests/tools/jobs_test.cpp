// `troupe submit`, `jobs`, `logs`, `stop` and `why` of jobs, on a head and workers as users run
// them.

#include <signal.h>

#include <algorithm>
#include <fstream>

#include "runtime/process/child.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

string driver() { return bin_dir() + "/test_tools_driver"; }

// Of a list such as `troupe jobs --json` prints, what has this name.
json::Value named(const json::Value& list, const string& what, const string& name,
                  const string& key = "name") {
  for (const auto& one : json::find(list, what)->as_array()) {
    if (json::find_string(one, key) == name) return one;
  }
  FAIL("nothing is named ", name, ": ", json::write(list));
  return {};
}

struct Jobs {
  TroupeHome home;
  RunningHead head = start_head(home);
  std::unique_ptr<BackgroundCommand> worker = start_worker(home, head, {"--num-cpus", "2"});

  CommandResult submit(std::vector<string> options, const std::vector<string>& program) const {
    options.insert(options.begin(), "submit");
    options.push_back("--");
    options.insert(options.end(), program.begin(), program.end());
    return home.run(options);
  }
  std::unique_ptr<BackgroundCommand> start(std::vector<string> options,
                                           const std::vector<string>& program) const {
    options.insert(options.begin(), "submit");
    options.push_back("--");
    options.insert(options.end(), program.begin(), program.end());
    return start_troupe(home, options);
  }
  json::Value job(const string& name) const {
    return named(home.run_json({"jobs", "--all"}), "jobs", name);
  }
  pid_t pid_of(const string& type, const string& key = "type") const {
    return static_cast<pid_t>(
        json::find_integer(named(home.run_json({"actors"}), "actors", type, key), "pid").value());
  }
  void stop() {
    CHECK(home.run({"stop"}).exit_code == 0);
    CHECK(worker->wait(kPatience) == 0);
  }
};

// peer: RuntimeEnvJobLevelEnvVarsTest
TEST_CASE("a program runs on the cluster: its output, its environment, its exit code") {
  Jobs cluster;
  const auto result = cluster.submit(
      {"--name", "hello", "--env", "LIST=a,b", "--working-dir", "/usr"},
      {"sh", "-c", "echo \"$1 $LIST in $(pwd)\"; echo $TROUPE_ADDRESS $TROUPE_TOKEN_FILE; exit 3",
       "sh", "[1,2]"});
  CHECK(result.exit_code == 3);
  CHECK(result.out ==
        "[1,2] a,b in /usr\n" + cluster.head.address() + " " + cluster.home.token_file() + "\n");
  CHECK(contains(result.err, "job hello ("));
  CHECK(contains(result.err, "has failed: "));
  const auto job = cluster.job("hello");
  CHECK(json::find_string(job, "state") == "FAILED");
  CHECK(json::find_integer(job, "exit_code") == 3);
  CHECK(contains(json::find_string(job, "why").value(), "exit code 3"));
  const auto id = json::find_string(job, "job_id").value();

  CHECK(cluster.submit({}, {"true"}).exit_code == 0);
  CHECK(cluster.submit({}, {"sh", "-c", "kill -9 $$"}).exit_code == 128 + SIGKILL);
  CHECK(contains(cluster.home.run({"jobs"}).out, "No jobs now"));
  const auto table = cluster.home.run({"jobs", "--all"}).out;
  CHECK(contains(table, "SUCCEEDED"));
  CHECK(contains(table, "signal 9"));
  CHECK(contains(cluster.home.run({"logs", "hello"}).out, "[1,2] a,b in /usr\n"));
  CHECK(cluster.home.run({"logs", id.substr(0, 8)}).out == cluster.home.run({"logs", "hello"}).out);
  const auto why = cluster.home.run({"why", id}).out;
  CHECK(contains(why, "Job hello ("));
  CHECK(contains(why, "is FAILED:\n  sh -c "));
  CHECK(contains(why, "ended: exit code 3"));
  // In JSON: each line, then the job.
  const auto lines = cluster.submit({"--json"}, {"echo", "x"}).out;
  CHECK(contains(lines, R"("line":"x")"));
  CHECK(contains(lines, R"("state":"SUCCEEDED")"));
  cluster.stop();
}

TEST_CASE("what is not there is named: the program, the directory, the node") {
  Jobs cluster;
  const string node =
      json::find_string(json::find(cluster.home.run_json({"nodes"}), "nodes")->as_array().at(0),
                        "name")
          .value();
  const auto refused = [&](const std::vector<string>& options, const std::vector<string>& program,
                           int code, const string& text) {
    const auto result = cluster.submit(options, program);
    CHECK(result.exit_code == code);
    CHECK_MESSAGE(contains(result.err, text), result.err);
  };
  refused({}, {"/absent/run.sh"}, 7, "node " + node + " has no file /absent/run.sh");
  refused({}, {"no-such-program"}, 7, "node " + node + " has no program 'no-such-program'");
  refused({"--working-dir", "/absent"}, {"true"}, 7, "node " + node + " has no directory /absent");
  refused({"--node", "nobody"}, {"true"}, 3, "there is no node 'nobody'");
  refused({"--num-cpus", "64"}, {"true"}, 5, "the cluster can never hold it");
  refused({"--env", "TROUPE_JOB_ID=1"}, {"true"}, 2, "TROUPE_JOB_ID is what the node tells");
  refused({"--priority", "0.5"}, {"true"}, 2, "--priority is 0.5");
  refused({}, {}, 2, "no program");
  CHECK(contains(cluster.home.run({"submit", "--nmae", "x", "--", "true"}).err,
                 "Did you mean '--name'?"));
  CHECK(cluster.home.run({"stop", "nobody"}).exit_code == 3);
  cluster.stop();
}

TEST_CASE("a driver in a job uses the cluster; one killed takes its own along, not the other's") {
  Jobs cluster;
  const auto done = cluster.submit({}, {driver(), "passing", "4"});
  CHECK(done.exit_code == 4);
  CHECK(contains(done.out, "[passing] the actor says hello from passing\n"));
  CHECK(contains(done.out, "ready\n"));
  CHECK(contains(cluster.home.run({"actors"}).out, "No living actors"));

  const auto one = cluster.start({"--name", "one", "--priority", "5"}, {driver(), "actor-1"});
  const auto two = cluster.start({"--name", "two"}, {driver(), "actor-2"});
  REQUIRE_MESSAGE(one->wait_for_output("ready", kPatience), one->output());
  REQUIRE_MESSAGE(two->wait_for_output("ready", kPatience), two->output());
  const auto jobs = cluster.home.run_json({"jobs"});
  CHECK(json::find_integer(named(jobs, "jobs", "one"), "actors_alive") == 1);
  CHECK(json::find_string(named(jobs, "jobs", "two"), "state") == "RUNNING");
  const auto group = named(cluster.home.run_json({"groups"}), "groups", "actor-1");
  CHECK(json::find_integer(group, "priority") == 5);
  CHECK(json::find_string(group, "job_id") ==
        json::find_string(named(jobs, "jobs", "one"), "job_id"));
  CHECK(contains(cluster.home.run({"why", "two"}).out, "with 1 living actor."));

  const pid_t actor_one = cluster.pid_of("actor-1", "name");
  const pid_t actor_two = cluster.pid_of("actor-2", "name");
  REQUIRE(::kill(cluster.pid_of("one"), SIGKILL) == 0);
  CHECK(one->wait(kPatience) == 128 + SIGKILL);
  CHECK(in_time([&] { return !is_running(actor_one); }));
  CHECK(json::find_string(cluster.job("one"), "state") == "FAILED");
  CHECK(cluster.home.eventually({"groups"}, R"("name":"actor-2")"));
  CHECK_FALSE(contains(cluster.home.run({"groups", "--json"}).out, R"("name":"actor-1")"));
  CHECK(is_running(actor_two));
  CHECK(json::find_string(cluster.job("two"), "state") == "RUNNING");

  const auto stopped = cluster.home.run({"stop", "two", "--grace", "5"});
  CHECK_MESSAGE(stopped.exit_code == 0, stopped.err);
  CHECK(contains(stopped.out, "has ended: 'troupe stop' on "));
  CHECK(two->wait(kPatience) == 128 + SIGTERM);
  CHECK(in_time([&] { return !is_running(actor_two); }));
  CHECK(json::find_string(cluster.job("two"), "state") == "STOPPED");
  CHECK(contains(cluster.home.run({"logs", "one"}).out, "ready\n"));  // survives kill -9
  cluster.stop();
}

TEST_CASE("Ctrl-C asks the job to stop, a second one leaves it") {
  Jobs cluster;
  const auto polite =
      cluster.start({"--name", "polite"}, {"sh", "-c",
                                           "trap 'echo saved; exit 0' TERM; echo up; while :; do "
                                           "sleep 0.01; done"});
  REQUIRE(polite->wait_for_output("up\n", kPatience));
  polite->kill(SIGINT);
  CHECK(polite->wait(kPatience) == 128 + SIGINT);
  CHECK(contains(polite->output(), "saved\n"));
  CHECK(json::find_string(cluster.job("polite"), "state") == "STOPPED");

  const auto stubborn =
      cluster.start({"--name", "stubborn", "--grace", "600"},
                    {"sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(stubborn->wait_for_output("up\n", kPatience));
  stubborn->kill(SIGINT);
  REQUIRE(stubborn->wait_for_output("again to leave it", kPatience));
  REQUIRE(cluster.home.eventually({"jobs"}, R"("stopping":true)"));
  stubborn->kill(SIGTERM);  // the same signal again within moments would count as one
  CHECK(stubborn->wait(kPatience) == 128 + SIGTERM);
  CHECK(contains(stubborn->output(), "is left to itself"));
  CHECK(json::find_string(cluster.job("stubborn"), "state") == "RUNNING");
  const pid_t pid = cluster.pid_of("stubborn");
  CHECK(cluster.home.run({"stop", "stubborn", "--grace", "0"}).exit_code == 0);
  CHECK_FALSE(is_running(pid));
  cluster.stop();
}

TEST_CASE("a job waits for room, and is listed with what it waits for") {
  Jobs cluster;
  const auto first =
      cluster.start({"--name", "first", "--num-cpus", "2"}, {"sh", "-c", "echo up; sleep 600"});
  REQUIRE(first->wait_for_output("up\n", kPatience));
  const auto id = cluster.submit({"--name", "second", "--num-cpus", "1", "--no-wait"},
                                 {"sh", "-c", "echo second"});
  CHECK(id.exit_code == 0);
  CHECK(json::find_string(cluster.job("second"), "state") == "PENDING");
  CHECK(contains(cluster.home.run({"jobs"}).out, "needs CPU 1"));
  CHECK(contains(cluster.home.run({"why", "second"}).out, "is PENDING:\n  sh -c 'echo second'\n"));
  CHECK(contains(cluster.home.run({"logs", "second"}).err, "has no output: it is PENDING"));
  CHECK(cluster.home.run({"stop", "first"}).exit_code == 0);
  CHECK(cluster.home.eventually({"jobs", "--all"}, R"("state":"SUCCEEDED")"));
  CHECK(cluster.home.run({"logs", "second"}).out == "second\n");
  cluster.stop();
}

// Processes that a watcher has started.
pid_t child_of(const BackgroundCommand& watcher) {
  const auto children = process::children_of(watcher.pid());
  return children.empty() ? 0 : children.front();
}

TEST_CASE("head and node daemon are killed under a job: it goes on, and its end is known") {
  const TroupeHome home;
  auto head = start_troupe(
      home, {"head", "--watch", "--json", "--log-level", "off", "--address", "127.0.0.1"});
  REQUIRE_MESSAGE(head->wait_for_output("}\n", kPatience), head->output());
  const auto line = json::parse(head->output(), "head").value();
  const string address = json::find_string(line, "address").value() + ":" +
                         std::to_string(json::find_integer(line, "port").value());
  auto worker = start_troupe(
      home, {"worker", "--watch", "--address", address, "--num-cpus", "2", "--log-level", "off"});
  REQUIRE_MESSAGE(worker->wait_for_output("joined the cluster", kPatience), worker->output());
  CHECK(home.run({"submit", "--name", "earlier", "--", "sh", "-c", "exit 5"}).exit_code == 5);
  auto job = start_troupe(home, {"submit", "--name", "long", "--", "sh", "-c",
                                 "echo up; while [ ! -e " + home.file("go") +
                                     " ]; do sleep 0.01; done; echo on; exit 6"});
  REQUIRE_MESSAGE(job->wait_for_output("up\n", kPatience), job->output());
  for (BackgroundCommand* watcher : {head.get(), worker.get(), head.get()}) {
    const pid_t before = child_of(*watcher);
    REQUIRE(before > 1);
    REQUIRE(::kill(before, SIGKILL) == 0);
    REQUIRE(in_time([&] {
      const pid_t now = child_of(*watcher);
      return now != 0 && now != before;
    }));
    REQUIRE(home.eventually({"status", "--address", address}, R"("alive":1)"));
    CHECK(home.eventually({"jobs", "--address", address}, R"("state":"RUNNING")"));
  }
  std::ofstream(home.file("go")) << "\n";
  CHECK(job->wait(kPatience) == 6);
  CHECK(contains(job->output(), "on\n"));
  const auto jobs = home.run_json({"jobs", "--all", "--address", address});
  CHECK(json::find_integer(named(jobs, "jobs", "earlier"), "exit_code") == 5);
  CHECK(json::find_integer(named(jobs, "jobs", "long"), "exit_code") == 6);
  CHECK(home.run({"stop", "--address", address}).exit_code == 0);
  CHECK(head->wait(kPatience) == 0);
  CHECK(worker->wait(kPatience) == 0);
}

TEST_CASE("the node of a job's program dies: the job fails, its actors elsewhere end") {
  Jobs cluster;
  auto second = start_worker(cluster.home, cluster.head, {"--num-cpus", "1", "--labels", "b=1"});
  // The actor fits on either node; the program's node is the second one.
  const auto job =
      cluster.start({"--name", "lost", "--labels", "b=1", "--num-cpus", "1"}, {driver(), "far"});
  REQUIRE_MESSAGE(job->wait_for_output("ready", kPatience), job->output());
  const pid_t program = cluster.pid_of("lost");
  const pid_t actor = cluster.pid_of("far", "name");
  second->kill(SIGKILL);
  CHECK(job->wait(kPatience) == 7);
  CHECK(json::find_string(cluster.job("lost"), "state") == "FAILED");
  CHECK(in_time([&] { return !is_running(program) && !is_running(actor); }));
  const auto logs = cluster.home.run({"logs", "lost"});
  CHECK(logs.exit_code != 0);
  CHECK_MESSAGE(contains(logs.err, "which is dead"), logs.err);
  cluster.stop();
}

TEST_CASE("a node whose token came by standard input refuses jobs by name") {
  const TroupeHome home;
  auto head = start_head(home);
  BackgroundCommand worker(
      {"sh", "-c", "exec \"$0\" worker --address \"$1\" --token-stdin < \"$2\"",
       bin_dir() + "/troupe", head.address(), home.token_file()},
      home.options());
  REQUIRE_MESSAGE(worker.wait_for_output("joined the cluster", kPatience), worker.output());
  const auto refused = home.run({"submit", "--", "true"});
  CHECK(refused.exit_code == 7);
  CHECK_MESSAGE(contains(refused.err, "Start it with --token-file"), refused.err);
  CHECK(home.run({"stop"}).exit_code == 0);
}

}  // namespace
}  // namespace troupe::tests
