#include "scheduler/node/node_daemon.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "tests/scheduler/node/fake_head.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

// Waits, without a fixed sleep, until a condition of the operating system holds.
template <typename F>
bool eventually(F condition, Duration limit = 20s) {
  const auto by = Deadline::after(limit);
  while (!condition()) {
    if (by.passed()) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

struct Fixture {
  SystemRandom random;
  net::Token token = net::Token(32, std::byte{9});
  std::unique_ptr<FakeHead> head;
  std::mutex lines_mutex;
  std::vector<std::string> lines;
  std::promise<Status> stopped;
  net::LoopThread thread{"node"};
  std::unique_ptr<NodeDaemon> node;

  explicit Fixture(FakeHead::Options options = {}) {
    head = std::make_unique<FakeHead>(token, options);
  }
  ~Fixture() {
    on_loop(thread.loop(), [this] { node.reset(); });
  }

  NodeOptions options() {
    NodeOptions o;
    o.name = "test";
    o.head = {"127.0.0.1", head->port(), {}};
    o.token = token;
    o.resources = {{"CPU", 4 * wire::kResourceUnit}};
    o.log_sink = [](LogLevel, std::string_view) {};
    o.on_output = whole_lines([this](const std::string& actor, std::string_view line) {
      std::lock_guard lock(lines_mutex);
      lines.push_back(actor + "|" + std::string(line));
    });
    o.on_stopped = [this](Status status) { stopped.set_value(std::move(status)); };
    return o;
  }
  void start(NodeOptions o) {
    on_loop(thread.loop(), [&] {
      auto started = NodeDaemon::start(thread.loop(), std::move(o));
      REQUIRE(started.ok());
      node = std::move(*started);
    });
  }
  void join() {
    start(options());
    REQUIRE(head->next<wire::RegisterNode>());
  }
  wire::StartActor actor(const std::string& type) {
    wire::StartActor start;
    start.generation = 1;
    start.spec.actor_id = ActorId::make(random);
    start.spec.type = type;
    start.spec.name = type;
    start.spec.run = "run-7";
    start.spec.rank = 2;
    start.spec.restart.max_restarts = 3;
    start.spec.image.path = troupe::tests::bin_dir() + "/test_scheduler_node_host";
    return start;
  }
  wire::ActorStarted run(const wire::StartActor& start) {
    head->send(start);
    const auto started = head->next<wire::ActorStarted>();
    REQUIRE(started);
    const auto ready = head->next<wire::ActorReady>();
    REQUIRE(ready);
    CHECK(ready->generation == start.generation);
    return *started;
  }
  wire::ActorExited exited() {
    auto message = head->next<wire::ActorExited>();
    REQUIRE(message);
    return *message;
  }
  net::Address address() const {
    const auto& endpoint = node->info().endpoint;
    return {endpoint.host, endpoint.port, {}};
  }
  std::string logs(ActorId id) {
    auto socket = net::connect_blocking(address(), "node", token, Deadline::after(10s));
    REQUIRE(socket.ok());
    auto answer = std::make_shared<std::promise<wire::LogText>>();
    auto connection = net::make_connection(thread.loop(), std::move(*socket), "node");
    on_loop(thread.loop(), [&] {
      connection->start({.on_frame =
                             [answer](std::span<const std::byte> frame) {
                               answer->set_value(get<wire::LogText>(*wire::decode_control(frame)));
                             },
                         .on_close = [](Status) {}});
    });
    REQUIRE(connection->send(wire::encode(wire::ReadLogs{5, id})).ok());
    auto text = answer->get_future();
    REQUIRE(text.wait_for(10s) == std::future_status::ready);
    const auto result = text.get();
    on_loop(thread.loop(), [&] { connection.reset(); });
    return result.status.ok() ? result.text : result.status.to_string();
  }
};

TEST_CASE("an actor starts, is ready, answers by its process, and stops") {
  Fixture f;
  f.join();
  const auto start = f.actor("Simple");
  const auto started = f.run(start);
  std::string command_line;
  {
    PosixFileSystem files;
    command_line = files.read("/proc/" + std::to_string(started.pid) + "/cmdline", 4096).value();
    for (char& c : command_line) c = c == '\0' ? ' ' : c;
  }
  CHECK(command_line == "test_scheduler_node_host host --actor Simple --run run-7 --rank 2 ");
  CHECK(f.logs(start.spec.actor_id).find("Simple run run-7 token 32\n") != std::string::npos);
  CHECK(f.logs(ActorId::make(f.random)).find("keeps no output") != std::string::npos);
  CHECK(f.logs({}).find("joined the head") != std::string::npos);
  f.head->send(wire::StopActor{start.spec.actor_id, 1, 5000, "enough"});
  const auto exit = f.exited();
  CHECK(exit.exit == wire::ExitStatus{});
  CHECK(exit.cause.ok());
  CHECK(exit.log_tail.find("to stderr\n") != std::string::npos);
  CHECK(exit.log_tail.find("asked to stop\n") != std::string::npos);
  std::lock_guard lock(f.lines_mutex);
  CHECK(std::count(f.lines.begin(), f.lines.end(), "Simple|to stderr") == 1);
}

TEST_CASE("exits say how: a crash in the start, a signal, a constructor, an image") {
  Fixture f;
  f.join();
  f.head->send(f.actor("Crash"));
  CHECK(f.exited().exit.exit_code == 3);
  f.head->send(f.actor("Abort"));
  CHECK(f.exited().exit.signal == SIGKILL);
  f.head->send(f.actor("Fail"));
  const auto failed = f.exited();
  CHECK(failed.constructor_failed);
  CHECK(failed.cause.code() == Code::kActorError);

  auto start = f.actor("Simple");
  start.spec.image.path = "/nowhere/program";
  f.head->send(start);
  CHECK(f.exited().cause.code() == Code::kNotFound);
  start = f.actor("Simple");
  start.spec.image.xxh3 = 12345;
  f.head->send(start);
  const auto other = f.exited().cause;
  CHECK(other.code() == Code::kFailedPrecondition);
  CHECK(other.message().find("0000000000003039") != std::string::npos);
  CHECK(other.message().find(troupe::tests::bin_dir() + "/test_scheduler_node_host") !=
        std::string::npos);
  start = f.actor("Simple");
  start.spec.image.xxh3 =
      process::Executable::open(troupe::tests::bin_dir() + "/test_scheduler_node_host")
          .value()
          ->xxh3()
          .value();
  f.run(start);
}

TEST_CASE("kill -9 of an actor and of its children") {
  Fixture f;
  f.join();
  const auto started = f.run(f.actor("Parent"));
  const auto group = static_cast<pid_t>(started.pid);
  ::kill(group, SIGKILL);
  CHECK(f.exited().exit.signal == SIGKILL);
  CHECK(process::group_is_empty(group));
}

TEST_CASE("grace, then SIGKILL") {
  Fixture f;
  f.join();
  const auto start = f.actor("Stubborn");
  f.run(start);
  const auto begin = SystemClock().now();
  f.head->send(wire::StopActor{start.spec.actor_id, 1, 100, "enough"});
  const auto exit = f.exited();
  CHECK(exit.exit.signal == SIGKILL);
  CHECK(SystemClock().now() - begin >= 100ms);
  CHECK(exit.log_tail.find("asked to stop\n") != std::string::npos);
}

TEST_CASE("the next process gets what the one before it saved") {
  Fixture f;
  f.join();
  auto start = f.actor("Saver");
  ::kill(static_cast<pid_t>(f.run(start).pid), SIGKILL);
  f.exited();
  start.generation = 2;
  const auto again = f.run(start);
  REQUIRE(eventually([&] {
    return f.logs(start.spec.actor_id).find("attached: generation 1\n") != std::string::npos;
  }));
  ::kill(static_cast<pid_t>(again.pid), SIGKILL);
  CHECK(f.exited().log_tail.find("saved: generation 1\n") != std::string::npos);
}

TEST_CASE("connections are handed over, also between two processes") {
  Fixture f;
  f.join();
  auto start = f.actor("Simple");
  const auto started = f.run(start);
  const std::string target = "actor/" + start.spec.actor_id.to_string() + "/comm/3";
  const auto hear = [&](const net::Address& address) {
    auto socket = net::connect_blocking(address, target, f.token, Deadline::after(10s));
    REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
    return socket->take_socket();
  };
  const auto expect_hello = [&](const UniqueFd& socket) {
    std::string text;
    char c = 0;
    pollfd wait{socket.get(), POLLIN, 0};
    while (::poll(&wait, 1, 10000) > 0 && ::read(socket.get(), &c, 1) == 1) text += c;
    CHECK(text == "hello " + target + "\n");
  };
  expect_hello(hear(f.address()));
  expect_hello(hear({{}, 0, f.node->info().endpoint.local_name}));
  ::kill(static_cast<pid_t>(started.pid), SIGKILL);
  f.exited();
  const auto waiting = hear(f.address());
  start.generation = 2;
  f.run(start);
  expect_hello(waiting);

  const auto nobody = net::connect_blocking(
      f.address(), "actor/" + ActorId::make(f.random).to_string(), f.token, Deadline::after(10s));
  CHECK(nobody.status().code() == Code::kNotFound);
  CHECK(net::connect_blocking(f.address(), "head", f.token, Deadline::after(10s)).status().code() ==
        Code::kNotFound);
}

TEST_CASE("callers of a process that does not read are refused with the reason; it lives on") {
  std::atomic<int> warnings = 0;
  Fixture f;
  auto options = f.options();
  options.log_sink = [&](LogLevel level, std::string_view) {
    warnings += level >= LogLevel::kWarning ? 1 : 0;
  };
  f.start(options);
  REQUIRE(f.head->next<wire::RegisterNode>());
  const auto start = f.actor("Simple");
  const auto started = f.run(start);
  const std::string target = "actor/" + start.spec.actor_id.to_string();
  const net::Address local{{}, 0, f.node->info().endpoint.local_name};
  REQUIRE(::kill(static_cast<pid_t>(started.pid), SIGSTOP) == 0);
  Status refused;
  for (int i = 0; refused.ok() && i < 10'000; ++i) {
    refused = net::connect_blocking(local, target, f.token, Deadline::after(10s)).status();
  }
  CHECK(refused.code() == Code::kOverloaded);
  CHECK_MESSAGE(refused.message().find("does not read its socket") != std::string::npos,
                refused.message());
  CHECK(warnings <= 1);
  // The node's own messages to the process still have room.
  f.head->send(wire::StopActor{start.spec.actor_id, 1, 10'000, "enough"});
  REQUIRE(::kill(static_cast<pid_t>(started.pid), SIGCONT) == 0);
  const auto exit = f.exited().exit;
  CHECK(exit.exit_code == 0);
  CHECK(exit.signal == 0);
}

TEST_CASE("a head that comes back is told what runs") {
  Fixture f;
  f.join();
  const auto start = f.actor("Simple");
  const auto started = f.run(start);
  FakeHead::Options again;
  again.port = f.head->port();
  f.head.reset();
  f.head = std::make_unique<FakeHead>(f.token, again);
  const auto registration = f.head->next<wire::RegisterNode>();
  REQUIRE(registration);
  REQUIRE(registration->running.size() == 1);
  CHECK(registration->running[0].spec.actor_id == start.spec.actor_id);
  CHECK(registration->running[0].spec.resources == start.spec.resources);
  CHECK(registration->running[0].generation == 1);
  CHECK(registration->running[0].pid == started.pid);
  CHECK(registration->running[0].ready);
}

TEST_CASE("a node without its head kills the actors that must not run twice") {
  FakeHead::Options beating;
  beating.heartbeat_interval_ms = 20;
  beating.heartbeat_timeout_ms = 300;
  Fixture f(beating);
  f.join();
  auto start = f.actor("Simple");
  start.spec.on_head_loss = wire::OnHeadLoss::kFence;
  const auto started = f.run(start);
  for (int i = 0; i < 30; ++i) REQUIRE(f.head->next<wire::Heartbeat>());
  CHECK(!process::group_is_empty(static_cast<pid_t>(started.pid)));
  f.head->fall_silent();
  CHECK(eventually([&] { return process::group_is_empty(static_cast<pid_t>(started.pid)); }));
}

TEST_CASE("no head: the node says whom it looked for, and by when") {
  Fixture f;
  auto options = f.options();
  f.head.reset();
  options.join_timeout = 150ms;
  const std::string where = options.head.to_string();
  f.start(std::move(options));
  auto stopped = f.stopped.get_future();
  REQUIRE(stopped.wait_for(20s) == std::future_status::ready);
  const Status why = stopped.get();
  CHECK(why.code() == Code::kDeadlineExceeded);
  CHECK(why.to_string().find(where) != std::string::npos);
}

TEST_CASE("a refusal ends the node") {
  FakeHead::Options refusing;
  refusing.refusal = error(Code::kProtocol, "another version");
  Fixture f(refusing);
  f.start(f.options());
  auto stopped = f.stopped.get_future();
  REQUIRE(stopped.wait_for(20s) == std::future_status::ready);
  CHECK(stopped.get().code() == Code::kProtocol);
}

TEST_CASE("asked to shut down, the node ends its actors and says farewell") {
  Fixture f;
  f.join();
  const auto one = f.run(f.actor("Simple"));
  f.head->send(wire::ShutdownNode{"closing time"});
  CHECK(f.exited().exit == wire::ExitStatus{});
  auto stopped = f.stopped.get_future();
  REQUIRE(stopped.wait_for(20s) == std::future_status::ready);
  CHECK(stopped.get().ok());
  CHECK(process::group_is_empty(static_cast<pid_t>(one.pid)));
  CHECK(f.head->next<wire::NodeUpdate>()->node.state == wire::NodeState::kDraining);
  CHECK(f.head->next<wire::NodeUpdate>()->node.state == wire::NodeState::kDead);
}

TEST_CASE("stop leaves no process, and output is kept in files where wanted") {
  Fixture f;
  const std::string directory =
      (std::filesystem::temp_directory_path() / ("troupe-node-" + NodeId::make(f.random).brief()))
          .string();
  auto options = f.options();
  options.log_dir = directory;
  f.start(std::move(options));
  REQUIRE(f.head->next<wire::RegisterNode>());
  auto start = f.actor("Simple");
  start.spec.log_path = directory + "/run/of-rank.log";
  const auto one = f.run(start);
  const auto two = f.run(f.actor("Parent"));
  PosixFileSystem files;
  const std::string expected = "Simple run run-7 token 32\n";
  for (const auto& path :
       {directory + "/" + start.spec.actor_id.to_string() + ".log", start.spec.log_path}) {
    CHECK(eventually([&] {
      const auto text = files.read(path, 4096);
      return text.ok() && text->find(expected) != std::string::npos;
    }));
  }
  on_loop(f.thread.loop(), [&] { f.node->stop(); });
  CHECK(process::group_is_empty(static_cast<pid_t>(one.pid)));
  CHECK(process::group_is_empty(static_cast<pid_t>(two.pid)));
  CHECK(files.remove_tree(directory).ok());
}

TEST_CASE("kill -9 of the node takes its actors along") {
  Fixture f;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Only what this thread sets up: the others of the test program are not in this process.
    auto loop = net::make_event_loop();
    auto options = f.options();
    options.on_output = nullptr;
    options.on_stopped = nullptr;
    auto node = NodeDaemon::start(*loop, std::move(options));
    if (node.ok()) loop->run();
    ::_exit(1);
  }
  REQUIRE(f.head->next<wire::RegisterNode>());
  const auto started = f.run(f.actor("Simple"));
  ::kill(child, SIGKILL);
  CHECK(eventually([&] { return process::group_is_empty(static_cast<pid_t>(started.pid)); }, 1s));
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
}

TEST_CASE("what a killed process wrote last is kept beside what the next one writes") {
  Fixture f;
  f.join();
  auto start = f.actor("Simple");
  const auto started = f.run(start);
  ::kill(static_cast<pid_t>(started.pid), SIGKILL);
  const auto exited = f.exited();
  CHECK(exited.exit.signal == SIGKILL);
  CHECK(exited.log_tail.find("to stderr\n") != std::string::npos);
  start.generation = 2;
  f.run(start);
  const std::string text = f.logs(start.spec.actor_id);
  const auto mark = text.find("--- generation 2 ---\n");
  REQUIRE(mark != std::string::npos);
  CHECK(text.find("Simple run run-7") < mark);
  CHECK(eventually([&] {
    return f.logs(start.spec.actor_id).find("Simple run run-7", mark) != std::string::npos;
  }));
  // Of the first process nothing is in the report of the second one's end.
  f.head->send(wire::StopActor{start.spec.actor_id, 2, 5000, "enough"});
  const std::string tail = f.exited().log_tail;
  CHECK(tail.find("asked to stop\n") != std::string::npos);
  CHECK(tail.find("Simple run") == tail.rfind("Simple run"));
}

// A connection that follows a node's output.
struct Follower {
  Follower(Fixture& fixture, wire::FollowOutput first) : f(fixture) {
    auto socket = net::connect_blocking(f.address(), "node", f.token, Deadline::after(10s));
    REQUIRE(socket.ok());
    on_loop(f.thread.loop(), [&] {
      connection = net::make_connection(f.thread.loop(), std::move(*socket), "node");
      connection->start({.on_frame =
                             [this](std::span<const std::byte> frame) {
                               const auto message = wire::decode_control(frame);
                               std::lock_guard lock(mutex);
                               if (auto* line = get_if<wire::OutputLine>(&*message)) {
                                 lines.push_back(*line);
                               } else if (auto* reply = get_if<wire::Reply>(&*message)) {
                                 replies[reply->request_id] = reply->status;
                               }
                             },
                         .on_close = [](Status) {}});
    });
    (void)ask(std::move(first));
  }
  ~Follower() {
    on_loop(f.thread.loop(), [this] {
      connection->close();
      connection.reset();
    });
  }
  Status ask(wire::FollowOutput request) {
    const std::uint64_t id = request.request_id = ++asked;
    REQUIRE(connection->send(wire::encode(request)).ok());
    REQUIRE(eventually([&] {
      std::lock_guard lock(mutex);
      return replies.contains(id);
    }));
    std::lock_guard lock(mutex);
    return replies.at(id);
  }
  std::size_t count(const std::string& text) {
    std::lock_guard lock(mutex);
    return static_cast<std::size_t>(std::count_if(
        lines.begin(), lines.end(),
        [&](const wire::OutputLine& line) { return line.text.find(text) != std::string::npos; }));
  }
  Fixture& f;
  std::shared_ptr<net::Connection> connection;
  std::uint64_t asked = 0;
  std::mutex mutex;
  std::vector<wire::OutputLine> lines;
  std::map<std::uint64_t, Status> replies;
};

TEST_CASE(
    "who follows a job's output gets what was written before and after, and of no other job") {
  Fixture f;
  f.join();
  auto mine = f.actor("Simple");
  mine.spec.job_id = JobId{7, 7};
  f.run(mine);
  Follower follower(f, {.job_id = JobId{7, 7}});
  Follower other(f, {.job_id = JobId{8, 8}});
  Follower one(f, {.actor_id = mine.spec.actor_id});
  // The first request's answer comes behind the lines that were there.
  CHECK(follower.count("Simple run run-7") == 1);
  CHECK(one.count("Simple run run-7") == 1);
  f.head->send(wire::StopActor{mine.spec.actor_id, 1, 5000, "enough"});
  f.exited();
  CHECK(follower.ask({.job_id = JobId{7, 7}}).ok());
  CHECK(follower.count("asked to stop") == 1);
  CHECK(follower.lines.back().label == "Simple");
  CHECK(other.lines.empty());
  CHECK(Follower(f, {}).replies.at(1).code() == Code::kInvalidArgument);
}

TEST_CASE(
    "an actor that writes without end is cut short for those who listen, not in what is kept") {
  Fixture f;
  f.join();
  auto start = f.actor("Chatty");
  start.spec.job_id = JobId{7, 7};
  Follower follower(f, {.job_id = JobId{7, 7}});
  f.run(start);
  CHECK(eventually([&] { return follower.count("lines (") == 1; }));
  CHECK(follower.count("line 1000") == 1);
  CHECK(follower.count("line 1002") == 0);
  CHECK(f.logs(start.spec.actor_id).find("line 3000\n") != std::string::npos);
  std::lock_guard lock(f.lines_mutex);
  CHECK(std::count_if(f.lines.begin(), f.lines.end(), [](const std::string& line) {
          return line.find("left out") != std::string::npos;
        }) == 1);
}

}  // namespace
}  // namespace troupe::scheduler::tests
