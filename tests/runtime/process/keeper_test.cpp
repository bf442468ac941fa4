// A keeper and what outlives its clients.

#include "runtime/process/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "runtime/base/file_system.h"
#include "runtime/process/executable.h"
#include "runtime/process/keeper_client.h"
#include "runtime/process/packet_socket.h"
#include "runtime/wire/keeper_messages.h"
#include "tests/runtime/process/support.h"
#include "tests/support/test_data.h"

namespace troupe::process {
namespace {

using namespace std::chrono_literals;

bool eventually(const std::function<bool()>& condition, Duration limit = 10s) {
  const auto by = Deadline::after(limit);
  while (!condition()) {
    if (by.passed()) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

std::string unique_name() {
  static std::atomic<int> count = 0;
  return "troupe-test-keeper-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

struct Fixture {
  const std::string name = unique_name();
  Duration hold = 3s;
  std::unique_ptr<net::RunnableLoop> loop = net::make_event_loop();
  std::shared_ptr<Executable> shell_program = Executable::open("/bin/sh").value();

  // No keeper is left, nor its record in the kernel.
  ~Fixture() {
    CHECK(eventually([] { return ::waitpid(-1, nullptr, WNOHANG) < 0; }));
  }

  Result<std::unique_ptr<KeeperClient>> open() {
    return KeeperClient::open(*loop,
                              {.socket_name = name,
                               .hold = hold,
                               .program = tests::bin_dir() + "/test_runtime_process_keeper"},
                              tests::patience());
  }
  SpawnOptions script(const std::string& text) const {
    auto options = tests::shell(text);
    options.executable_fd = shell_program->fd();
    return options;
  }
  // Runs the loop until `done`.
  template <typename Done>
  bool run_until(Done done) {
    const auto by = tests::patience();
    std::function<void()> look = [&] {
      if (done() || by.passed()) return loop->stop();
      loop->call_after(1ms, look);
    };
    loop->post(look);
    loop->run();
    return done();
  }
};

TEST_CASE_FIXTURE(Fixture, "what a client leaves, the next one finds") {
  auto first = open().value();
  CHECK(first->contents().entries.empty());
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::write(memory.get(), "kept", 4) == 4);
  REQUIRE(first->put("a", {std::byte{1}}, memory.get()).ok());
  REQUIRE(first->put("a", {std::byte{2}}).ok());  // its descriptor stays
  REQUIRE(first->put("b", {}).ok());
  REQUIRE(first->put("c", {}, memory.get()).ok());
  REQUIRE(first->drop("c").ok());
  const pid_t runs = first->spawn(7, script("exec sleep 1000")).value();
  const pid_t ends = first->spawn(8, script("read line; exit 3")).value();
  const auto refused = first->spawn(9, [&] {
    auto options = script("");
    options.executable_fd = memory.get();
    return options;
  }());
  CHECK_FALSE(refused.ok());
  first.reset();
  REQUIRE(eventually([&] { return ::kill(ends, SIGKILL) != 0 || group_is_empty(ends); }));

  auto second = open().value();
  auto& contents = second->contents();
  REQUIRE(contents.entries.size() == 2);
  CHECK(contents.entries[0].key == "a");
  CHECK(contents.entries[0].bytes == wire::Bytes{std::byte{2}});
  char text[5] = {};
  REQUIRE(::pread(contents.entries[0].descriptor.get(), text, 4, 0) == 4);
  CHECK(std::string(text) == "kept");
  CHECK_FALSE(contents.entries[1].descriptor.valid());
  REQUIRE(contents.children.size() == 2);
  CHECK(contents.children[0].child_id == 7);
  CHECK(contents.children[0].pid == runs);
  CHECK_FALSE(contents.children[0].ended);
  CHECK(contents.children[1].ended);
  std::optional<wire::ExitStatus> exit;
  second->start({.on_exit = [&](std::uint64_t, wire::ExitStatus e) { exit = e; },
                 .on_lost = [](const Status&) {}});
  REQUIRE(::kill(runs, SIGTERM) == 0);
  REQUIRE(run_until([&] { return exit.has_value(); }));
  CHECK(exit->signal == SIGTERM);
  REQUIRE(second->forget(7).ok());
  REQUIRE(second->forget(8).ok());
  second.reset();
  auto third = open().value();
  CHECK(third->contents().children.empty());
  CHECK(third->quit(tests::patience()).ok());
}

TEST_CASE_FIXTURE(Fixture, "a program by its path, in a directory of its own; a script, too") {
  auto client = open().value();
  auto pipe = make_pipe().value();
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("run.sh");
  PosixFileSystem files;
  REQUIRE(write_file_atomically(files, path, "#!/bin/sh\necho \"$1 in $(pwd)\"\n", 0700).ok());
  SpawnOptions options;
  options.path = path;
  options.argv = {"run.sh", "hello"};
  options.working_directory = directory.path();
  options.descriptors.push_back({pipe.writer.get(), 1});
  REQUIRE(client->spawn(1, options).ok());
  pipe.writer.reset();
  std::string text(200, '\0');
  text.resize(static_cast<std::size_t>(::read(pipe.reader.get(), text.data(), text.size())));
  CHECK(text == "hello in " + directory.path() + "\n");
  options.descriptors.clear();
  options.path = directory.file("absent");
  CHECK(client->spawn(2, options).status().code() == Code::kNotFound);
  CHECK(client->quit(tests::patience()).ok());
}

TEST_CASE_FIXTURE(Fixture, "one client at a time") {
  auto first = open().value();
  const auto second = open();
  REQUIRE_FALSE(second.ok());
  CHECK(second.status().code() == Code::kAlreadyExists);
  CHECK(first->spawn(1, script("exec sleep 1000")).ok());  // it has not noticed a thing
  CHECK(first->quit(tests::patience()).ok());
  auto after = open().value();
  CHECK(after->contents().children.empty());
  CHECK(after->quit(tests::patience()).ok());
}

TEST_CASE_FIXTURE(Fixture, "a keeper that says no is heard, however soon it closes") {
  const auto listener = listen_packets(name).value();
  constexpr int kTimes = 50;
  std::atomic<int> asked = 0;
  std::thread keeper([&] {
    const auto refusal = wire::encode(wire::KeeperWelcome{Status(Code::kAlreadyExists, "taken")});
    while (asked < kTimes) {
      pollfd waiting{listener.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 10000) != 1) return;
      const auto socket = accept_packets(listener.get()).value();
      if (!socket) continue;
      ++asked;
      CHECK(send_packet(socket->get(), refusal, {}, tests::patience()).ok());
    }
  });
  int before = 0;
  for (int i = 0; i < kTimes && asked < kTimes; ++i) {
    CHECK(open().status().code() == Code::kAlreadyExists);
    before = i + 1;
  }
  keeper.join();
  CHECK(asked == before);  // nobody had to ask twice
}

TEST_CASE_FIXTURE(Fixture, "without a client everything ends after the hold time, also who left") {
  hold = 300ms;
  auto client = open().value();
  auto pipe = make_pipe().value();
  auto options = script("(setsid sleep 1000 & echo $!) ; exec sleep 1000");
  options.descriptors.push_back({pipe.writer.get(), 1});
  const pid_t leader = client->spawn(1, options).value();
  pipe.writer.reset();
  char text[32] = {};
  REQUIRE(::read(pipe.reader.get(), text, sizeof text - 1) > 0);
  const pid_t left = std::atoi(text);
  REQUIRE(left > 1);
  const auto begin = SystemClock().now();
  client.reset();
  CHECK(eventually([&] { return group_is_empty(leader); }));
  CHECK(SystemClock().now() - begin >= 300ms);
  CHECK(eventually([&] { return ::kill(left, 0) != 0; }));
  auto next = open().value();  // another keeper
  CHECK(next->contents().children.empty());
  CHECK(next->quit(tests::patience()).ok());
}

TEST_CASE_FIXTURE(Fixture,
                  "the end of the lease is kept where the client is gone, and only there") {
  hold = 60s;
  auto client = open().value();
  client->start({.on_exit = [](std::uint64_t, wire::ExitStatus) {}, .on_lost = [](Status) {}});
  const pid_t leader = client->spawn(1, script("exec sleep 1000")).value();
  // Past, but the client decides by itself while it is there.
  client->hold_until(SystemClock().now());
  const pid_t second = client->spawn(2, script("exec sleep 1000")).value();
  CHECK_FALSE(group_is_empty(leader));
  const auto begin = SystemClock().now();
  client->hold_until(begin + 300ms);
  client.reset();
  CHECK(eventually([&] { return group_is_empty(leader) && group_is_empty(second); }));
  CHECK(SystemClock().now() - begin >= 300ms);
}

TEST_CASE_FIXTURE(Fixture, "a client that says nothing is none: one that is stopped") {
  hold = 300ms;
  auto client = open().value();
  const pid_t child = client->spawn(1, script("exec sleep 1000")).value();
  CHECK(eventually([&] { return group_is_empty(child); }));
  // One that runs says so.
  client = open().value();
  const pid_t other = client->spawn(2, script("exec sleep 1000")).value();
  client->start(
      {.on_exit = [](std::uint64_t, wire::ExitStatus) {}, .on_lost = [](const Status&) {}});
  const auto until = Deadline::after(2 * hold);
  CHECK(run_until([&] { return until.passed(); }));
  CHECK_FALSE(group_is_empty(other));
  CHECK(client->quit(tests::patience()).ok());
  CHECK(group_is_empty(other));
}

TEST_CASE_FIXTURE(Fixture, "children end with their keeper, and the client hears of it") {
  auto client = open().value();
  auto pipe = make_pipe().value();
  auto options = script("echo $PPID; exec sleep 1000");
  options.descriptors.push_back({pipe.writer.get(), 1});
  const pid_t child = client->spawn(1, options).value();
  char text[32] = {};
  REQUIRE(::read(pipe.reader.get(), text, sizeof text - 1) > 0);
  const pid_t keeper = std::atoi(text);
  REQUIRE(keeper > 1);
  REQUIRE(keeper != ::getpid());
  bool lost = false;
  client->start({.on_exit = [](std::uint64_t, wire::ExitStatus) {},
                 .on_lost = [&](const Status&) { lost = true; }});
  REQUIRE(::kill(keeper, SIGKILL) == 0);
  CHECK(run_until([&] { return lost; }));
  CHECK(eventually([&] { return group_is_empty(child); }));
  CHECK(client->spawn(2, script("exit 0")).status().code() == Code::kUnavailable);
}

TEST_CASE("arguments that are none of a keeper's") {
  const auto call = [](std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    return keeper_main(static_cast<int>(argv.size()), argv.data());
  };
  CHECK_FALSE(call({"x"}));
  CHECK_FALSE(call({"x", "keeper"}));
  CHECK_FALSE(call({"x", "host", "--socket-name", "n", "--hold-ms", "3"}));
  CHECK(call({"x", "keeper", "--socket-name", "n", "--hold-ms", "-3"}) == 2);
  CHECK(call({"x", "keeper", "--socket-name", "n", "--hold-ms", "3s"}) == 2);
}

}  // namespace
}  // namespace troupe::process
