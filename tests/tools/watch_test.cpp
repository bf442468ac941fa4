// Heads and workers that are killed and start again by themselves, under actors that run on.

#include <poll.h>
#include <signal.h>

#include <algorithm>

#include "runtime/base/file_system.h"
#include "runtime/process/child.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;
using namespace std::chrono_literals;

// The daemon that a watcher runs now; its keeper is the daemon's child, not the watcher's.
pid_t daemon_of(const BackgroundCommand& watcher) {
  const auto children = process::children_of(watcher.pid());
  return children.empty() ? 0 : children.front();
}

// Kills the daemon and waits for another one.
void kill_daemon(const BackgroundCommand& watcher) {
  const pid_t before = daemon_of(watcher);
  REQUIRE(before > 1);
  REQUIRE(::kill(before, SIGKILL) == 0);
  REQUIRE(in_time([&] {
    const pid_t now = daemon_of(watcher);
    return now != 0 && now != before;
  }));
}

// A head and a worker, both watched, and a driver that calls its actor all the time.
struct Watched {
  TroupeHome home;
  std::unique_ptr<BackgroundCommand> head;
  std::unique_ptr<BackgroundCommand> worker;
  std::unique_ptr<BackgroundCommand> driver;
  string address;
  pid_t actor = 0;

  Watched() {
    head = start_troupe(
        home, {"head", "--watch", "--json", "--log-level", "off", "--address", "127.0.0.1"});
    REQUIRE_MESSAGE(head->wait_for_output("}\n", kPatience), head->output());
    const auto line = json::parse(head->output(), "head").value();
    address = json::find_string(line, "address").value() + ":" +
              std::to_string(json::find_integer(line, "port").value());
    worker = start_troupe(
        home, {"worker", "--watch", "--address", address, "--num-cpus", "2", "--log-level", "off"});
    REQUIRE_MESSAGE(worker->wait_for_output("joined the cluster", kPatience), worker->output());
    driver = std::make_unique<BackgroundCommand>(
        std::vector<string>{bin_dir() + "/test_tools_pulse", address, home.token_file(),
                            home.file("stop")},
        home.options());
    REQUIRE_MESSAGE(driver->wait_for_output("\n", kPatience), driver->output());
    actor = static_cast<pid_t>(std::stol(driver->output().substr(string("ready ").size())));
  }
  bool node_is_back() const { return home.eventually({"status"}, R"("alive":1)"); }
  json::Value result() {
    PosixFileSystem files;
    REQUIRE(files.create(home.file("stop")).ok());
    REQUIRE_MESSAGE(driver->wait_for_output("}\n", kPatience), driver->output());
    CHECK(driver->wait(kPatience) == 0);
    return json::parse(driver->output().substr(driver->output().find('{')), "result").value();
  }
  void check_undisturbed() {
    const auto counts = result();
    MESSAGE(json::write(counts));
    CHECK(json::find_integer(counts, "failed").value() == 0);
    CHECK(json::find_integer(counts, "processes") == 1);
    CHECK(json::find_integer(counts, "calls").value() > 20);
  }
  void stop() {
    CHECK(home.run({"stop", "--address", address}).exit_code == 0);
    CHECK(head->wait(kPatience) == 0);
    CHECK(worker->wait(kPatience) == 0);
    CHECK(in_time([&] { return !is_running(actor); }));
  }
};

TEST_CASE("a worker's daemon is killed ten times: the actor under it does not notice") {
  Watched cluster;
  for (int i = 0; i < 10; ++i) {
    kill_daemon(*cluster.worker);
    CHECK(cluster.node_is_back());
    CHECK(is_running(cluster.actor));
  }
  const auto events = cluster.home.run({"events"}).out;
  CHECK(events.find("daemon_restarted") != string::npos);
  CHECK(events.find("actor_restarting") == string::npos);
  cluster.check_undisturbed();
  cluster.stop();
}

TEST_CASE("a head is killed ten times: same port, its actors found again, nothing placed twice") {
  Watched cluster;
  for (int i = 0; i < 10; ++i) {
    kill_daemon(*cluster.head);
    CHECK(cluster.node_is_back());
    CHECK(cluster.home.eventually({"actors"}, R"("state":"alive")"));
  }
  const auto actors = cluster.home.run_json({"actors"});
  const auto& list = json::find(actors, "actors")->as_array();
  REQUIRE(list.size() == 1);
  CHECK(json::find_integer(list[0], "pid") == cluster.actor);
  CHECK(json::find_integer(list[0], "restarts") == 0);
  CHECK(processes_with("host --actor " + string("Pulse")).size() <= 1);
  cluster.check_undisturbed();
  cluster.stop();
}

TEST_CASE("Ctrl-C of a watcher ends what it watches; so does its death") {
  Watched cluster;
  const pid_t daemon = daemon_of(*cluster.worker);
  cluster.worker->kill(SIGINT);
  CHECK(cluster.worker->wait(kPatience) == 0);
  CHECK_FALSE(is_running(daemon));
  CHECK(in_time([&] { return !is_running(cluster.actor); }));
  const pid_t head = daemon_of(*cluster.head);
  cluster.head->kill(SIGKILL);
  CHECK(in_time([&] { return !is_running(head); }));
}

TEST_CASE("a daemon that dies again and again is given up, with nothing left") {
  Watched cluster;
  const auto by = std::chrono::steady_clock::now() + kPatience;
  pid_t last = 0;
  while (is_running(cluster.worker->pid()) && std::chrono::steady_clock::now() < by) {
    const pid_t daemon = daemon_of(*cluster.worker);
    if (daemon > 1 && daemon != last && ::kill(daemon, SIGKILL) == 0) last = daemon;
    if (cluster.worker->wait_for_output("given up", 0s)) break;
    ::poll(nullptr, 0, 1);
  }
  CHECK(cluster.worker->wait(kPatience) != 0);
  CHECK(cluster.worker->output().find("20 times within 60 s") != string::npos);
  CHECK(in_time([&] { return !is_running(cluster.actor); }, 10s));
}

}  // namespace
}  // namespace troupe::tests
