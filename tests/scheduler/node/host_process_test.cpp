// One process of an actor, from its start to the end of its whole group.

#include "scheduler/node/host_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "runtime/base/limits.h"
#include "runtime/process/output.h"
#include "tests/scheduler/support.h"
#include "tests/support/test_data.h"

using namespace troupe;
using namespace troupe::scheduler;
using troupe::tests::Inbox;
using troupe::tests::on_loop;

namespace {

// A host process and what came of it.
struct Running {
  Inbox<wire::HostMessage> messages;
  Inbox<std::string> lines;
  Inbox<wire::ExitStatus> ended;
  Inbox<std::size_t> left_unread;
  Inbox<std::string> order;  // in which things came
  std::unique_ptr<HostProcess> host;
  Status started;
  net::LoopThread thread{"host"};  // ends first
  OwnChildren parent{thread.loop()};

  // `argument_bytes`: of its constructor. `gate`: a FIFO; the program does nothing before somebody
  // opens it for writing.
  explicit Running(const std::string& type, std::size_t argument_bytes = 0,
                   const std::string& gate = {}) {
    auto image =
        process::Executable::open(troupe::tests::bin_dir() + "/test_scheduler_node_host").value();
    wire::HostStart start;
    start.spec.type = type;
    start.spec.run = "run-7";
    start.spec.environment = {{"TROUPE_TEST_MARK", "there"}};
    if (!gate.empty()) start.spec.environment["TROUPE_TEST_GATE"] = gate;
    start.spec.constructor_arguments.resize(argument_bytes);
    start.token = troupe::tests::kToken.secret();
    auto log = std::make_shared<ActorLog>(
        thread.loop(), start.spec, OutputLimits(),
        [this](const wire::OutputLine& line) {
          lines.put(line.text);
          order.put("line");
        },
        std::nullopt);
    started = on_loop(thread.loop(), [&] {
      host = HostProcess::spawn({thread.loop(), parent, 1, std::move(log), Logger::discard()},
                                *image, start.spec,
                                {.on_message =
                                     [this](wire::HostMessage message, UniqueFd) {
                                       messages.put(std::move(message));
                                       order.put("message");
                                     },
                                 .on_channel_end = [this](Status) { order.put("channel end"); },
                                 .on_read = [this](std::size_t left) { left_unread.put(left); },
                                 .on_leader_end =
                                     [this](wire::ExitStatus exit) {
                                       ended.put(exit);
                                       // As the node does: whom it left behind goes with it.
                                       host->kill_group();
                                     },
                                 .on_group_gone = [this] { order.put("gone"); }})
                 .value();
      return host->tell(start, -1);
    });
  }
  ~Running() { destroy(); }
  void destroy() {
    on_loop(thread.loop(), [this] {
      host.reset();
      return 0;
    });
  }
  pid_t pid() {
    return on_loop(thread.loop(), [this] { return host->pid(); });
  }
  void ready() {
    messages.take([](const auto& m) { return holds_alternative<wire::HostReady>(m); });
  }
  bool gone() {
    order.take([](const auto& what) { return what == "gone"; });
    return true;
  }
};

}  // namespace

TEST_CASE("a host runs with its environment, reads nothing, and owns no secret in sight") {
  Running running("Simple");
  running.ready();
  PosixFileSystem files;
  const std::string process = "/proc/" + std::to_string(running.pid());
  const std::string environment = files.read(process + "/environ", 1 << 20).value();
  CHECK(environment.find("TROUPE_TEST_MARK=there") != std::string::npos);
  CHECK(environment.find("ZZZZZZZZ") == std::string::npos);  // the token's bytes
  CHECK(::getpgid(running.pid()) == running.pid());
  on_loop(running.thread.loop(), [&] { return running.host->tell(wire::HostStop{}, -1).ok(); });
  CHECK(running.ended.take() == wire::ExitStatus{});
  CHECK(running.gone());
}

TEST_CASE("what a host said and wrote comes before the news that it is gone") {
  Running running("Fail");
  CHECK(running.ended.take() == wire::ExitStatus{1, 0});
  CHECK(running.gone());
  const auto message =
      running.messages.take_within(std::chrono::milliseconds(0), [](const auto&) { return true; });
  REQUIRE(message);
  REQUIRE(holds_alternative<wire::HostFailed>(*message));
  CHECK(get<wire::HostFailed>(*message).status.message() == "no such luck");
}

TEST_CASE("a crash in the start is an exit like others") {
  Running crashed("Crash");
  CHECK(crashed.ended.take() == wire::ExitStatus{3, 0});
  CHECK(crashed.gone());
  Running aborted("Abort");
  CHECK(aborted.ended.take() == wire::ExitStatus{0, SIGKILL});
  CHECK(aborted.gone());
}

TEST_CASE("a host is gone only when its children are") {
  Running running("Parent");
  running.ready();
  const pid_t group = running.pid();
  REQUIRE(::kill(group, SIGKILL) == 0);
  CHECK(running.ended.take() == wire::ExitStatus{0, SIGKILL});
  CHECK(running.gone());
  CHECK(process::group_is_empty(group));
}

TEST_CASE(
    "a program that takes long to start is told all of it, in order, and nobody waits for it") {
  troupe::tests::TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  REQUIRE(::mkfifo(gate.c_str(), 0600) == 0);
  Running running("Simple", 1u << 20, gate);  // several times what the socket takes
  REQUIRE_MESSAGE(running.started.ok(), running.started.to_string());
  const auto unread = [&] {
    return on_loop(running.thread.loop(), [&] { return running.host->unread_bytes(); });
  };
  CHECK(unread() > 100'000);
  auto callers = process::make_pipe().value();
  for (const char* target : {"actor/1", "actor/2"}) {
    const Status told = on_loop(running.thread.loop(), [&] {
      return running.host->tell(wire::HostConnection{.target = target}, callers.writer.get());
    });
    CHECK_MESSAGE(told.ok(), told.to_string());
  }
  callers.writer.reset();
  // Now it starts.
  const UniqueFd opened(::open(gate.c_str(), O_WRONLY | O_CLOEXEC));
  running.ready();
  running.left_unread.take([](std::size_t left) { return left == 0; });
  CHECK(unread() == 0);
  std::string said;
  for (std::array<char, 64> bytes; said.size() < 28;) {
    const ssize_t count = ::read(callers.reader.get(), bytes.data(), bytes.size());
    REQUIRE(count > 0);
    said.append(bytes.data(), static_cast<std::size_t>(count));
  }
  CHECK(said == "hello actor/1\nhello actor/2\n");
}

TEST_CASE("what is kept for a process that does not read is bounded") {
  troupe::tests::TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  REQUIRE(::mkfifo(gate.c_str(), 0600) == 0);
  Running running("Simple", 1u << 20, gate);
  auto callers = process::make_pipe().value();
  Status told;
  int sent = 0;
  while (told.ok() && sent < 10'000) {
    told = on_loop(running.thread.loop(), [&] {
      return running.host->tell(wire::HostConnection{.target = "actor/1"}, callers.writer.get());
    });
    ++sent;
  }
  CHECK(told.code() == Code::kOverloaded);
  CHECK(sent == static_cast<int>(limits::kHostQueueConnectionsMax) + 1);
  // Connections take no room of what else the process must be told, and the other way round.
  const auto tell = [&](const wire::HostMessage& message, int fd) {
    return on_loop(running.thread.loop(), [&] { return running.host->tell(message, fd); });
  };
  const wire::HostMessage other = wire::HostAttachReply{.status = error(Code::kNotFound, "x")};
  for (sent = 0, told = Status(); told.ok() && sent < 10'000; ++sent) told = tell(other, -1);
  CHECK(told.code() == Code::kOverloaded);
  CHECK(sent == static_cast<int>(limits::kHostQueueMessagesMax));  // with the start
  CHECK(tell(wire::HostConnection{.target = "actor/1"}, callers.writer.get()).code() ==
        Code::kOverloaded);
  const UniqueFd opened(::open(gate.c_str(), O_WRONLY | O_CLOEXEC));
  running.ready();
  running.left_unread.take([](std::size_t left) { return left == 0; });
}

TEST_CASE("a stopped process is killed as any other") {
  Running running("Stubborn");
  running.ready();
  REQUIRE(::kill(running.pid(), SIGSTOP) == 0);
  on_loop(running.thread.loop(), [&] {
    running.host->kill_group();
    running.host->kill_group();
    return 0;
  });
  CHECK(running.ended.take() == wire::ExitStatus{0, SIGKILL});
  CHECK(running.gone());
}

TEST_CASE("destroying a host ends its group, and nothing is told any more") {
  Running running("Parent");
  running.ready();
  const pid_t group = running.pid();
  running.destroy();
  CHECK(process::group_is_empty(group));
  CHECK_FALSE(running.order.has([](const auto& what) { return what == "gone"; }));
}

TEST_CASE("a file that is no program is refused by its path") {
  troupe::tests::TemporaryDirectory folder;
  PosixFileSystem files;
  files.create(folder.file("program")).value();
  auto image = process::Executable::open(folder.file("program")).value();
  net::LoopThread thread("host");
  const Status status = on_loop(thread.loop(), [&] {
    OwnChildren parent(thread.loop());
    return HostProcess::spawn(
               {thread.loop(), parent, 1,
                std::make_shared<ActorLog>(thread.loop(), wire::ActorSpec(), OutputLimits(),
                                           OutputListener(), std::nullopt),
                Logger::discard()},
               *image, {}, {})
        .status();
  });
  CHECK_FALSE(status.ok());
  CHECK(status.to_string().find(folder.file("program")) != std::string::npos);
}
