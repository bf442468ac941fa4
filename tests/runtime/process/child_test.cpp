#include "runtime/process/child.h"

#include <signal.h>
#include <sys/wait.h>

#include <optional>

#include "tests/runtime/process/support.h"

namespace troupe::process {
namespace {

using namespace std::chrono_literals;
using tests::shell;

TEST_CASE("an exit is told to the loop, once") {
  const auto loop = net::make_event_loop();
  const Child child = spawn(shell("exec sleep 1000")).value();
  std::optional<wire::ExitStatus> exit;
  watch_exit(*loop, child, [&](wire::ExitStatus status) {
    exit = status;
    loop->stop();
  });
  loop->post([&] { ::kill(child.pid, SIGTERM); });
  loop->run();
  REQUIRE(exit.has_value());
  CHECK(exit->to_string() == "killed by signal 15 (SIGTERM)");
  CHECK(::waitpid(child.pid, nullptr, WNOHANG) == -1);  // reaped
}

TEST_CASE("an exit before the watch is told too") {
  const auto loop = net::make_event_loop();
  const Child child = spawn(shell("exit 3")).value();
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT) == 0);
  std::optional<wire::ExitStatus> exit;
  watch_exit(*loop, child, [&](wire::ExitStatus status) {
    exit = status;
    loop->stop();
  });
  loop->run();
  CHECK(exit == wire::ExitStatus{.exit_code = 3});
}

TEST_CASE("an exit that somebody else took is unknown, and a watch can be taken back") {
  const Child child = spawn(shell("exit 3")).value();
  int status = 0;
  REQUIRE(::waitpid(child.pid, &status, 0) == child.pid);
  CHECK(wait(child, tests::patience()).value() == kUnknownExit);

  const auto loop = net::make_event_loop();
  const Child other = spawn(shell("exit 0")).value();
  watch_exit(*loop, other, [](wire::ExitStatus) { FAIL("was taken back"); });
  stop_watching(*loop, other);
  loop->call_after(5ms, [&] { loop->stop(); });
  loop->run();
  CHECK(wait(other, tests::patience()).ok());
}

TEST_CASE("waiting has a deadline") {
  const Child child = spawn(shell("exec sleep 1000")).value();
  CHECK(wait(child, Deadline::after(5ms)).status().code() == Code::kDeadlineExceeded);
  CHECK(kill_group(child.pid, SIGKILL).ok());
  CHECK(wait(child, tests::patience()).value().signal == SIGKILL);
}

TEST_CASE("a group is empty when nobody of it runs, grandchildren included") {
  auto pipe = make_pipe().value();
  auto options = shell("sleep 1000 & sleep 1000 & echo ready; exec sleep 1000");
  options.descriptors = {{pipe.writer.get(), 1}};
  const Child child = spawn(options).value();
  pipe.writer.reset();
  char text[6];
  REQUIRE(::read(pipe.reader.get(), text, sizeof(text)) == 6);
  CHECK_FALSE(group_is_empty(child.pid));

  // The leader alone ends: its group lives on.
  ::kill(child.pid, SIGKILL);
  CHECK(wait(child, tests::patience()).ok());
  CHECK_FALSE(group_is_empty(child.pid));

  const auto loop = net::make_event_loop();
  std::optional<Status> result;
  kill_group_until_empty(*loop, child.pid, tests::patience(), [&](Status status) {
    result = status;
    loop->stop();
  });
  if (!result) loop->run();
  CHECK(result->ok());
  CHECK(group_is_empty(child.pid));
  // Where orphans are reaped late, the group may still have ended members: nobody runs.
  const Status again = kill_group(child.pid, SIGKILL);
  CHECK((again.ok() || again.code() == Code::kNotFound));
}

TEST_CASE("a child that ended and was not reaped does not count as running") {
  const Child child = spawn(shell("exit 0")).value();
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT) == 0);
  CHECK(group_is_empty(child.pid));
  CHECK(wait(child, tests::patience()).ok());
}

}  // namespace
}  // namespace troupe::process
