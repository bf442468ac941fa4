// A node daemon when things go wrong around it: heads that come and go, processes that hang, disks
// and ports that are taken.

#include <signal.h>

#include <set>
#include <thread>

#include "runtime/process/child.h"
#include "scheduler/node/node_daemon.h"
#include "tests/scheduler/support.h"
#include "tests/support/test_data.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using troupe::tests::Inbox;
using troupe::tests::on_loop;

namespace {

struct FaultFixture {
  std::int64_t interval_ms = 0;
  std::int64_t timeout_ms = 0;
  std::vector<std::pair<ActorId, std::uint64_t>> stop_at_registration;
  Inbox<Status> stopped;
  NodeOptions options;
  troupe::tests::FakeHead head{
      [this](const wire::ControlMessage& message) { return answer(message); }};
  std::unique_ptr<NodeDaemon> node;
  net::LoopThread thread{"node"};  // ends first

  FaultFixture() {
    options.name = "test";
    options.head = head.address();
    options.token = troupe::tests::kToken;
    options.resources = {{"CPU", 64 * wire::kResourceUnit}};
    options.log_sink = [](LogLevel, std::string_view) {};
    options.on_stopped = [this](Status why) { stopped.put(std::move(why)); };
  }
  ~FaultFixture() {
    on_loop(thread.loop(), [this] {
      node.reset();
      return 0;
    });
  }
  std::vector<wire::ControlMessage> answer(const wire::ControlMessage& message) {
    if (const auto* registration = get_if<wire::RegisterNode>(&message)) {
      wire::RegisterNodeReply reply;
      reply.request_id = registration->request_id;
      reply.name = "test";
      reply.heartbeat_interval_ms = interval_ms;
      reply.heartbeat_timeout_ms = timeout_ms;
      reply.stop = stop_at_registration;
      return {reply};
    }
    if (holds_alternative<wire::Heartbeat>(message)) return {message};
    return {};
  }
  Status start() {
    return on_loop(thread.loop(), [this] {
      auto made = NodeDaemon::start(thread.loop(), options);
      if (!made.ok()) return made.status();
      node = std::move(*made);
      return Status();
    });
  }
  void join() {
    REQUIRE(start().ok());
    head.take<wire::RegisterNode>();
  }
  net::Address address() {
    const wire::Endpoint endpoint =
        on_loop(thread.loop(), [this] { return node->info().endpoint; });
    return {endpoint.host, endpoint.port, {}};
  }
  static wire::ActorSpec spec(const std::string& type, std::uint64_t number = 1) {
    wire::ActorSpec made;
    made.actor_id = ActorId{0xac, number};
    made.type = type;
    made.restart.max_restarts = 3;
    made.image.path = troupe::tests::bin_dir() + "/test_scheduler_node_host";
    return made;
  }
  // Its process, once it is ready.
  pid_t run(const wire::ActorSpec& spec, std::uint64_t generation = 1) {
    head.send(wire::StartActor{spec, generation});
    const auto same = [&](const auto& message) {
      return message.actor_id == spec.actor_id && message.generation == generation;
    };
    const auto started = head.take<wire::ActorStarted>(same);
    head.take<wire::ActorReady>(same);
    return static_cast<pid_t>(started.pid);
  }
  // Asks the node's loop again and again: nobody is told of what happens without a head.
  void wait_for_processes(std::size_t count) {
    const auto by = troupe::tests::patience();
    while (on_loop(thread.loop(), [this] { return node->state().process_count(); }) != count) {
      REQUIRE_FALSE(by.passed());
      std::this_thread::yield();
    }
  }
  wire::ActorExited exit_of(const wire::ActorSpec& spec, std::uint64_t generation = 1) {
    return head.take<wire::ActorExited>([&](const auto& exited) {
      return exited.actor_id == spec.actor_id && exited.generation == generation;
    });
  }
};

}  // namespace

TEST_CASE("many actors start at once, and die at once") {
  constexpr std::uint64_t kActors = 24;
  FaultFixture f;
  f.join();
  for (std::uint64_t i = 1; i <= kActors; ++i)
    f.head.send(wire::StartActor{f.spec("Parent", i), 1});
  std::set<pid_t> groups;
  for (std::uint64_t i = 1; i <= kActors; ++i) {
    groups.insert(static_cast<pid_t>(f.head.take<wire::ActorStarted>().pid));
    f.head.take<wire::ActorReady>();
  }
  CHECK(groups.size() == kActors);
  for (const pid_t group : groups) REQUIRE(::kill(group, SIGKILL) == 0);
  std::set<ActorId> ended;
  for (std::uint64_t i = 1; i <= kActors; ++i) {
    const auto exited = f.head.take<wire::ActorExited>();
    CHECK(exited.exit.signal == SIGKILL);
    ended.insert(exited.actor_id);
  }
  CHECK(ended.size() == kActors);
  for (const pid_t group : groups) CHECK(process::group_is_empty(group));
  CHECK(on_loop(f.thread.loop(), [&] { return f.node->state().process_count(); }) == 0);
}

TEST_CASE("a process that does not even run any more ends after its grace") {
  FaultFixture f;
  f.join();
  const auto spec = f.spec("Simple");
  const pid_t pid = f.run(spec);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  f.head.send(wire::StopActor{spec.actor_id, 1, 50, "please"});
  CHECK(f.exit_of(spec).exit.signal == SIGKILL);
}

TEST_CASE("a newer generation starts when the older one's group is gone") {
  FaultFixture f;
  f.join();
  const auto spec = f.spec("Parent");
  const pid_t old_group = f.run(spec, 1);
  const pid_t new_group = f.run(spec, 2);
  CHECK(process::group_is_empty(old_group));
  CHECK_FALSE(process::group_is_empty(new_group));
  CHECK(f.exit_of(spec, 1).exit.signal == SIGKILL);
  // An order for the older one comes too late to hurt the newer.
  f.head.send(wire::StopActor{spec.actor_id, 1, 0, "late"});
  CHECK(f.exit_of(spec, 1).cause.code() == Code::kNotFound);
  CHECK_FALSE(process::group_is_empty(new_group));
}

TEST_CASE("what happened while the head was away is told by what runs when it is back") {
  FaultFixture f;
  f.join();
  const auto lives = f.spec("Simple", 1);
  const auto dies = f.spec("Simple", 2);
  const auto unwanted = f.spec("Stubborn", 3);
  const pid_t pid = f.run(lives);
  const pid_t mortal = f.run(dies);
  f.run(unwanted, 5);
  f.head.away();
  REQUIRE(::kill(mortal, SIGKILL) == 0);
  f.wait_for_processes(2);
  f.stop_at_registration = {{unwanted.actor_id, 5}};
  f.head.listen();
  const auto registration = f.head.take<wire::RegisterNode>();
  REQUIRE(registration.running.size() == 2);
  for (const auto& entry : registration.running) CHECK(entry.spec.actor_id != dies.actor_id);
  CHECK(f.exit_of(unwanted, 5).exit.signal == SIGKILL);
  CHECK_FALSE(process::group_is_empty(pid));
}

TEST_CASE("a node that was away joins again with those that may run twice, and takes new actors") {
  FaultFixture f;
  f.interval_ms = 20;
  f.timeout_ms = 150;
  f.options.fence_grace = 20ms;
  f.join();
  wire::ActorSpec fenced = f.spec("Parent");
  fenced.on_head_loss = wire::OnHeadLoss::kFence;
  const pid_t group = f.run(fenced);
  const wire::ActorSpec kept = f.spec("Parent", 2);
  const pid_t other = f.run(kept);
  f.head.away();
  f.wait_for_processes(1);
  CHECK(process::group_is_empty(group));
  f.head.listen();
  const auto registration = f.head.take<wire::RegisterNode>();
  REQUIRE(registration.running.size() == 1);
  CHECK(registration.running[0].spec.actor_id == kept.actor_id);
  CHECK(registration.running[0].pid == other);
  f.run(f.spec("Simple"), 2);
}

TEST_CASE("a node does not start with times that contradict each other") {
  FaultFixture f;
  f.options.fence_grace = 2s;
  const Status refused = f.start();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("fence_grace (2000 ms) is to be less than fence_delay (1000 ms)") !=
        std::string::npos);
}

TEST_CASE("a node that finds no head any more ends by itself, its actors first") {
  FaultFixture f;
  f.options.orphan_timeout = 100ms;
  f.join();
  const pid_t group = f.run(f.spec("Parent"));
  f.head.away();
  const Status why = f.stopped.take();
  CHECK(why.code() == Code::kDeadlineExceeded);
  CHECK(process::group_is_empty(group));
}

TEST_CASE("leaving twice is leaving once; who comes then is refused") {
  FaultFixture f;
  f.options.shutdown_grace = 100ms;
  f.join();
  const auto spec = f.spec("Stubborn");
  const pid_t group = f.run(spec);
  on_loop(f.thread.loop(), [&] {
    f.node->leave("enough");
    f.node->leave("more than enough");
    return 0;
  });
  f.head.send(wire::StartActor{f.spec("Simple", 2), 1});
  CHECK(f.exit_of(f.spec("Simple", 2)).cause.code() == Code::kUnavailable);
  CHECK(f.exit_of(spec).exit.signal == SIGKILL);
  CHECK(f.stopped.take().ok());
  CHECK(process::group_is_empty(group));
  CHECK_FALSE(f.stopped.has([](const Status&) { return true; }));
}

TEST_CASE("a log that cannot be written costs the log, not the actor") {
  troupe::tests::TemporaryDirectory folder;
  PosixFileSystem files;
  files.create(folder.file("taken")).value();
  FaultFixture f;
  f.options.log_dir = folder.file("taken");  // a file where a folder is needed
  f.join();
  auto spec = f.spec("Simple");
  spec.log_path = folder.file("taken") + "/run/rank.log";
  f.run(spec);
  f.head.send(wire::StopActor{spec.actor_id, 1, 5000, "enough"});
  const auto exited = f.exit_of(spec);
  CHECK(exited.exit == wire::ExitStatus{});
  CHECK(exited.log_tail.find("asked to stop\n") != std::string::npos);
}

TEST_CASE("a taken port and a stranger's token are named") {
  FaultFixture f;
  f.join();
  CHECK(net::connect_blocking(f.address(), "node", net::Token(32, std::byte{1}),
                              troupe::tests::patience())
            .status()
            .code() == Code::kUnauthenticated);
  FaultFixture other;
  other.options.port = f.address().port;
  CHECK(other.start().code() == Code::kAlreadyExists);
}

TEST_CASE("who asks the node for something else than output is closed; the node goes on") {
  FaultFixture f;
  f.join();
  for (const auto& frame : {wire::encode(wire::ListNodes{}), wire::Bytes(64, std::byte{0x7f})}) {
    Inbox<bool> closed;
    auto socket =
        net::connect_blocking(f.address(), "node", troupe::tests::kToken, troupe::tests::patience())
            .value();
    net::LoopThread tool("tool");
    auto connection = net::make_connection(tool.loop(), std::move(socket), "node");
    on_loop(tool.loop(), [&] {
      connection->start({.on_frame = [](auto) {}, .on_close = [&](Status) { closed.put(true); }});
      return connection->send(frame).ok();
    });
    CHECK(closed.take());
    on_loop(tool.loop(), [&] {
      connection.reset();
      return 0;
    });
  }
  f.run(f.spec("Simple"));
}
