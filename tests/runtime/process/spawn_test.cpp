#include "runtime/process/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/process/executable.h"
#include "tests/runtime/process/support.h"
#include "tests/support/test_data.h"

namespace troupe::process {
namespace {

using tests::run;
using tests::shell;

TEST_CASE("arguments, environment and working directory arrive") {
  const tests::TemporaryDirectory directory;
  auto options = shell("echo \"$0|$A|$B|$PWD\"");
  options.argv.push_back("zero");
  options.environment = {{"A", "one two"}, {"PATH", "/nowhere"}, {"B", "x=y"}};
  options.working_directory = directory.path();
  const auto ran = run(options);
  CHECK(ran.exit == wire::ExitStatus{});
  CHECK(ran.output == "zero|one two|x=y|" + directory.path() + "\n");

  ::setenv("TROUPE_TEST_INHERITED", "yes", 1);
  CHECK(run(shell("echo $TROUPE_TEST_INHERITED")).output == "yes\n");
  auto alone = shell("echo \"[$TROUPE_TEST_INHERITED]\"");
  alone.inherit_environment = false;
  CHECK(run(alone).output == "[]\n");
  auto replaced = shell("echo $TROUPE_TEST_INHERITED");
  replaced.environment = {{"TROUPE_TEST_INHERITED", "no"}};
  CHECK(run(replaced).output == "no\n");
  ::unsetenv("TROUPE_TEST_INHERITED");
}

TEST_CASE("exit codes and signals") {
  CHECK(run(shell("exit 7")).exit == wire::ExitStatus{.exit_code = 7});
  CHECK(run(shell("kill -9 $$")).exit == wire::ExitStatus{.exit_code = 0, .signal = 9});
}

TEST_CASE("descriptors change places, and no other one is passed") {
  auto a = make_pipe().value();
  auto b = make_pipe().value();
  // Each gets the number that the other has here; and one that is not closed at exec.
  const int leaky = ::dup(a.writer.get());
  auto options = shell("echo to-a >&" + std::to_string(b.writer.get()) + "; echo to-b >&" +
                       std::to_string(a.writer.get()) + "; ls /proc/self/fd | wc -l");
  options.descriptors = {{a.writer.get(), b.writer.get()}, {b.writer.get(), a.writer.get()}};
  const auto ran = run(options);
  ::close(leaky);
  a.writer.reset();
  b.writer.reset();
  CHECK(tests::read_all(std::move(a.reader)) == "to-a\n");
  CHECK(tests::read_all(std::move(b.reader)) == "to-b\n");
  // 0, 1, 2, the two, and the directory that ls reads.
  CHECK(ran.output == "6\n");
}

TEST_CASE("a process group of its own, or ours") {
  const auto group_of = [](bool own) {
    auto options = shell("cut -d' ' -f1,5 /proc/self/stat; echo $$");
    options.new_process_group = own;
    return run(options).output;
  };
  // "PID PGRP" of cut, then the shell's pid: the group is the shell.
  const std::string text = group_of(true);
  const auto shell_pid = text.substr(text.find('\n') + 1);
  CHECK(text.find(" " + shell_pid) != std::string::npos);
  CHECK(group_of(false).find(" " + std::to_string(::getpgrp()) + "\n") != std::string::npos);
}

TEST_CASE("signals begin at their defaults, unblocked") {
  const auto ignored_before = ::signal(SIGPIPE, SIG_IGN);
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto ran = run(shell("exec grep -E '^Sig(Blk|Ign)' /proc/self/status"));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGPIPE, ignored_before);
  CHECK(ran.output == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  CHECK_FALSE(sigismember(&now, SIGTERM));
}

TEST_CASE("what cannot be started is an error with the path, and leaves no child") {
  const tests::TemporaryDirectory directory;
  SpawnOptions options;
  options.path = directory.file("missing");
  options.argv = {"missing"};
  const Status missing = spawn(options).status();
  CHECK(missing.code() == Code::kNotFound);
  CHECK(missing.message().find(options.path) != std::string::npos);

  std::ofstream(directory.file("text")) << "not a program";
  options.path = directory.file("text");
  CHECK_FALSE(spawn(options).ok());
  ::chmod(options.path.c_str(), 0755);
  CHECK_FALSE(spawn(options).ok());  // no known format

  options = shell("exit 0");
  options.working_directory = directory.file("nowhere");
  const Status no_directory = spawn(options).status();
  CHECK(no_directory.code() == Code::kNotFound);
  CHECK(no_directory.to_string().find("nowhere") != std::string::npos);

  options = shell("exit 0");
  options.descriptors = {{9999, 5}};
  CHECK_FALSE(spawn(options).ok());
  options.descriptors = {{-1, 5}};
  CHECK(spawn(options).status().code() == Code::kInvalidArgument);
  options = shell("exit 0");
  options.argv.clear();
  CHECK(spawn(options).status().code() == Code::kInvalidArgument);
  options = shell("exit 0");
  options.environment = {{"A=B", "c"}};
  CHECK(spawn(options).status().code() == Code::kInvalidArgument);

  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("an opened image is run even where its path was written anew") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("program");
  std::filesystem::copy_file("/bin/echo", path);
  const auto image = Executable::open(path).value();
  const auto hash = image->xxh3().value();
  CHECK(hash == Executable::open("/bin/echo").value()->xxh3().value());
  std::filesystem::remove(path);
  std::ofstream(path) << "another program";
  CHECK(Executable::open(path).value()->xxh3().value() != hash);

  SpawnOptions options;
  options.path = path;
  options.executable_fd = image->fd();
  options.argv = {"program", "still me"};
  CHECK(run(options).output == "still me\n");
  CHECK(Executable::open(directory.file("missing")).status().code() == Code::kNotFound);
  CHECK_FALSE(Executable::open(directory.path()).value()->xxh3().ok());
}

TEST_CASE("this program knows its own image") {
  const auto self = Executable::self().value();
  CHECK(self->path() == std::filesystem::read_symlink("/proc/self/exe").string());
  CHECK(self->xxh3().value() == Executable::open(self->path()).value()->xxh3().value());
}

TEST_CASE("a child dies with the thread that started it, where asked") {
  Result<Child> child(Code::kInternal, "not started");
  std::thread([&] {
    auto options = shell("exec sleep 1000");
    options.parent_death_signal = SIGKILL;
    child = spawn(options);
  }).join();
  REQUIRE(child.ok());
  CHECK(wait(*child, tests::patience()).value() == wire::ExitStatus{.exit_code = 0, .signal = 9});
}

TEST_CASE("many threads start programs at once") {
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (std::size_t t = 0; t < failures.size(); ++t) {
    threads.emplace_back([&failures, t] {
      for (int i = 0; i < 25; ++i) {
        SpawnOptions options;
        options.path = "/bin/true";
        options.argv = {"true"};
        const auto child = spawn(options);
        if (!child.ok() || !wait(*child, tests::patience()).ok()) ++failures[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == std::vector<int>(4, 0));
}

}  // namespace
}  // namespace troupe::process
