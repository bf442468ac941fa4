// Daemons that are killed, stopped and started again around processes that run on; keepers that are
// killed. Everything in processes of its own.

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "runtime/base/file_system.h"
#include "runtime/process/child.h"
#include "runtime/process/spawn.h"
#include "scheduler/client/ask_node.h"
#include "tests/scheduler/node/fake_head.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;
using troupe::tests::bin_dir;

bool soon(const std::function<bool()>& condition, Duration limit = 10s) {
  const auto by = Deadline::after(limit);
  while (!condition()) {
    if (by.passed()) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

class World {
 public:
  explicit World(Duration hold = 3s, std::int64_t heartbeat_timeout_ms = 0)
      : hold_(hold),
        head_(net::Token(32, std::byte{9}), {.heartbeat_interval_ms = heartbeat_timeout_ms / 6,
                                             .heartbeat_timeout_ms = heartbeat_timeout_ms}) {
    start_daemon();
    registered();
  }
  ~World() {
    if (daemon_.pid < 0) return;
    ::kill(daemon_.pid, SIGCONT);
    ::kill(daemon_.pid, SIGTERM);
    CHECK(process::wait(daemon_, Deadline::after(10s)).ok());
    CHECK(nothing_left());
  }

  FakeHead& head() { return head_; }
  pid_t daemon() const { return daemon_.pid; }

  process::SpawnOptions daemon_command() const {
    process::SpawnOptions options;
    options.path = bin_dir() + "/test_scheduler_node_daemon";
    options.argv = {"daemon", std::to_string(head_.port()), node_id_.to_string(),
                    std::to_string(hold_ / 1ms), directory_.path()};
    return options;
  }
  void start_daemon() { daemon_ = process::spawn(daemon_command()).value(); }
  wire::RegisterNode registered() {
    auto message = head_.next<wire::RegisterNode>();
    REQUIRE(message);
    endpoint_ = message->node.endpoint;
    return *message;
  }
  // As `troupe logs` asks.
  std::string logs(const wire::StartActor& start) {
    const auto answer =
        ask_node(thread_.loop(), {endpoint_.host, endpoint_.port, {}}, net::Token(32, std::byte{9}),
                 wire::ReadLogs{1, start.spec.actor_id}, Deadline::after(10s));
    REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    const auto& text = get<wire::LogText>(*answer);
    return text.status.ok() ? text.text : text.status.to_string();
  }
  void kill_daemon() {
    REQUIRE(::kill(daemon_.pid, SIGKILL) == 0);
    REQUIRE(process::wait(daemon_, Deadline::after(10s)).ok());
    daemon_.pid = -1;
  }
  // Killed, and another one in its place: what that says.
  wire::RegisterNode replace_daemon() {
    kill_daemon();
    start_daemon();
    return registered();
  }

  wire::StartActor actor(const std::string& type, std::uint64_t generation = 1) {
    wire::StartActor start;
    start.generation = generation;
    start.spec.actor_id = ActorId::make(random_);
    start.spec.type = type;
    start.spec.job_id = JobId{5, 5};
    start.spec.restart.max_restarts = 3;
    start.spec.image.path = bin_dir() + "/test_scheduler_node_host";
    return start;
  }
  pid_t run(const wire::StartActor& start) {
    head_.send(start);
    const auto started = head_.next<wire::ActorStarted>();
    REQUIRE(started);
    REQUIRE(head_.next<wire::ActorReady>());
    processes_.push_back(static_cast<pid_t>(started->pid));
    return processes_.back();
  }
  wire::ActorExited exited() {
    auto message = head_.next<wire::ActorExited>();
    REQUIRE(message);
    return *message;
  }
  // Parent of the actors' processes.
  static pid_t parent_of(pid_t pid) {
    PosixFileSystem files;
    const auto text = files.read("/proc/" + std::to_string(pid) + "/stat", 4096);
    if (!text.ok()) return -1;
    int parent = -1;
    (void)std::sscanf(text->c_str() + text->rfind(')') + 1, " %*c %d", &parent);
    return parent;
  }
  bool nothing_left() {
    return soon(
        [&] { return std::all_of(processes_.begin(), processes_.end(), process::group_is_empty); });
  }
  std::string output(const wire::StartActor& start) {
    PosixFileSystem files;
    const auto text =
        files.read(directory_.file(start.spec.actor_id.to_string() + ".log"), 1 << 20);
    return text.ok() ? *text : "";
  }

 private:
  const Duration hold_;
  SystemRandom random_;
  const NodeId node_id_ = NodeId::make(random_);
  troupe::tests::TemporaryDirectory directory_;
  FakeHead head_;
  net::LoopThread thread_{"ask"};
  wire::Endpoint endpoint_;
  process::Child daemon_;
  std::vector<pid_t> processes_;
};

TEST_CASE("the last lines of actors survive the daemon, of living ones and of dead ones") {
  World world;
  const auto living = world.actor("Saver");
  auto dead = world.actor("Simple");
  dead.spec.restart.max_restarts = 0;
  world.run(living);
  const pid_t pid = world.run(dead);
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(world.exited().log_tail.find("to stderr\n") != std::string::npos);
  const auto kept = "Saver run ";
  CHECK(soon([&] { return world.logs(living).find(kept) != std::string::npos; }));
  for (int i = 0; i < 3; ++i) {
    world.replace_daemon();
    const std::string text = world.logs(living);
    CHECK(text.find(kept) != std::string::npos);
    CHECK(text.find(kept) == text.rfind(kept));
    CHECK(world.logs(dead).find("to stderr\n") != std::string::npos);
  }
  // Its next process goes on where the one before stopped.
  world.head().send(wire::StopActor{living.spec.actor_id, 1, 0, "anew", true});
  CHECK(world.exited().exit.signal == SIGKILL);
  auto next = living;
  next.generation = 2;
  world.run(next);
  CHECK(soon([&] {
    const std::string text = world.logs(living);
    const auto mark = text.find("--- generation 2 ---\n");
    return mark != std::string::npos && text.find(kept) < mark &&
           text.find(kept, mark) != std::string::npos;
  }));
}

TEST_CASE("ten daemons are killed one after the other; the process under them runs on") {
  World world;
  const auto start = world.actor("Saver");
  const pid_t pid = world.run(start);
  const pid_t keeper = World::parent_of(pid);
  CHECK(keeper != world.daemon());
  std::uint16_t port = 0;
  for (int i = 0; i < 10; ++i) {
    const auto said = world.replace_daemon();
    REQUIRE(said.running.size() == 1);
    CHECK(said.running[0].pid == pid);
    CHECK(said.running[0].generation == 1);
    CHECK(said.running[0].ready);
    CHECK(said.running[0].spec.actor_id == start.spec.actor_id);
    CHECK(said.running[0].spec.resources == start.spec.resources);
    if (i > 0) CHECK(said.node.endpoint.port == port);
    port = said.node.endpoint.port;
    CHECK_FALSE(process::group_is_empty(pid));
    CHECK(World::parent_of(pid) == keeper);
  }
  // Its memory and its saved state are still there for the process after it.
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(world.exited().exit.signal == SIGKILL);
  auto next = start;
  next.generation = 2;
  world.run(next);
  CHECK(soon([&] {
    const auto text = world.output(start);
    return text.find("saved: generation 1\n") != std::string::npos &&
           text.find("attached: generation 1\n") != std::string::npos;
  }));
}

TEST_CASE("ends while there was no daemon are reported by the next one") {
  World world;
  const auto one = world.actor("Parent");  // leaves a child behind
  const auto two = world.actor("Simple");
  const pid_t first = world.run(one);
  const pid_t second = world.run(two);
  world.kill_daemon();
  REQUIRE(::kill(first, SIGKILL) == 0);
  world.start_daemon();
  const auto said = world.registered();
  // Until nothing of its group runs it is said to run.
  const auto exit = said.exited.empty() ? world.exited() : said.exited.front();
  CHECK(said.running.size() == (said.exited.empty() ? 2 : 1));
  CAPTURE(exit.exit.to_string());
  CAPTURE(exit.cause.to_string());
  CHECK(exit.actor_id == one.spec.actor_id);
  CHECK(exit.exit.signal == SIGKILL);
  CHECK(process::group_is_empty(first));
  CHECK_FALSE(process::group_is_empty(second));
  // What it says while there is no daemon waits.
  world.kill_daemon();
  world.start_daemon();
  CHECK(world.registered().running.size() == 1);
  world.head().send(wire::StopActor{two.spec.actor_id, 1, 5000, "enough"});
  CHECK(world.exited().exit.signal == 0);
  CHECK(soon([&] { return world.output(two).find("asked to stop") != std::string::npos; }));
}

TEST_CASE("a daemon that is killed as it starts processes: none is lost, none runs twice") {
  World world;
  for (int round = 0; round < 10; ++round) {
    const auto start = world.actor("Simple");
    world.head().send(start);
    if (round % 2 == 1) CHECK(world.head().next<wire::ActorStarted>());
    const auto said = world.replace_daemon();
    const bool known =
        std::any_of(said.running.begin(), said.running.end(), [&](const wire::RunningActor& actor) {
          return actor.spec.actor_id == start.spec.actor_id;
        });
    if (!known) continue;  // it never got so far: the head sees that by itself
    const auto running = said.running.back();
    if (running.ready) continue;
    // Being started: it becomes ready, or its end is told.
    CHECK(soon([&] { return world.output(start).find("Simple run") != std::string::npos; }));
  }
}

TEST_CASE("without a daemon the node fences itself, and a new one finds nothing") {
  World world(400ms);
  const pid_t pid = world.run(world.actor("Parent"));
  const auto begin = SystemClock().now();
  world.kill_daemon();
  CHECK(world.nothing_left());
  CHECK(SystemClock().now() - begin >= 400ms);
  world.start_daemon();
  CHECK(world.registered().running.empty());
  CHECK(process::group_is_empty(pid));
}

TEST_CASE("a daemon that is stopped counts as none") {
  World world(400ms);
  world.run(world.actor("Simple"));
  REQUIRE(::kill(world.daemon(), SIGSTOP) == 0);
  CHECK(world.nothing_left());
  REQUIRE(::kill(world.daemon(), SIGCONT) == 0);
  const auto exit = world.exited();
  CHECK(exit.cause.message().find("keeper") != std::string::npos);
}

TEST_CASE("a keeper that is killed takes its processes along; the daemon says so and goes on") {
  World world;
  for (int round = 0; round < 3; ++round) {
    const auto start = world.actor("Saver");
    const pid_t pid = world.run(start);
    const pid_t keeper = World::parent_of(pid);
    REQUIRE(::kill(keeper, SIGKILL) == 0);
    const auto exit = world.exited();
    CHECK(exit.actor_id == start.spec.actor_id);
    CHECK(exit.cause.code() == Code::kAborted);
    const auto note = world.head().next<wire::NodeNote>();
    REQUIRE(note);
    CHECK(note->kind == "keeper_lost");
    CHECK(process::group_is_empty(pid));
    // A new process, under a new keeper; what was kept is gone.
    auto next = start;
    next.generation = 2;
    const pid_t again = world.run(next);
    CHECK(World::parent_of(again) != keeper);
    CHECK(soon([&] {
      const auto text = world.output(start);
      return text.find("saved: \n") != text.rfind("saved: \n");
    }));
    REQUIRE(::kill(again, SIGKILL) == 0);
    CHECK(world.exited().generation == 2);
  }
}

TEST_CASE("two daemons of one node: the second is refused, the first does not notice") {
  World world;
  const pid_t pid = world.run(world.actor("Simple"));
  auto second = process::spawn(world.daemon_command());
  REQUIRE(second.ok());
  const auto exit = process::wait(*second, Deadline::after(10s));
  REQUIRE(exit.ok());
  CHECK(exit->exit_code == 3);
  CHECK_FALSE(process::group_is_empty(pid));
  CHECK(world.replace_daemon().running.size() == 1);
}

TEST_CASE("a daemon that finds no head fences when its predecessor would have") {
  World world(3s, 600);
  wire::StartActor start = world.actor("Simple");
  start.spec.on_head_loss = wire::OnHeadLoss::kFence;
  const pid_t pid = world.run(start);
  world.head().fall_silent();
  world.kill_daemon();
  world.start_daemon();
  // Before the keeper would have ended it.
  CHECK(soon([&] { return process::group_is_empty(pid); }, 2s));
}

TEST_CASE("without daemon and head, who may run twice has the whole hold time for a next daemon") {
  World world(1000ms, 200);  // the lease, with its grace, is over before
  const pid_t pid = world.run(world.actor("Simple"));
  world.head().fall_silent();
  const auto begin = SystemClock().now();
  world.kill_daemon();
  CHECK(soon([&] { return process::group_is_empty(pid); }));
  CHECK(SystemClock().now() - begin >= 1000ms);
}

}  // namespace
}  // namespace troupe::scheduler::tests
