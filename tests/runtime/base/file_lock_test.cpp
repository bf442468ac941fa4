#include "runtime/base/file_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"

namespace troupe {
namespace {

TEST_CASE("a lock has one holder, who is named to others, and is free again after it") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("lock");
  PosixFileSystem files;
  {
    const auto first = FileLock::take(path, "the first");
    REQUIRE(first.ok());
    const auto second = FileLock::take(path, "the second");
    CHECK(second.status().code() == Code::kAlreadyExists);
    CHECK(second.status().message() == "the first");
  }
  CHECK_FALSE(files.exists(path));
  CHECK(FileLock::take(path, "the third").ok());
  CHECK_FALSE(FileLock::take(directory.file("missing/lock"), "nobody").ok());
}

TEST_CASE("what a killed holder left behind locks nothing") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("lock");
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lock = FileLock::take(path, "the killed one");
    ::kill(::getpid(), lock.ok() ? SIGKILL : SIGTERM);
  }
  int status = 0;
  REQUIRE(::waitpid(holder, &status, 0) == holder);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  PosixFileSystem files;
  CHECK(*files.read(path, 100) == "the killed one");
  CHECK(FileLock::take(path, "the next").ok());
}

}  // namespace
}  // namespace troupe
