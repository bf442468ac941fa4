#include "runtime/base/start_thread.h"

#include <doctest/doctest.h>

#include <memory>

#include "tests/support/no_threads.h"

namespace troupe {
namespace {

TEST_CASE("a thread that cannot be started is an error that says what it was for") {
  const auto held = std::make_shared<int>(1);
  {
    const tests::NoThreads none;
    const auto thread = start_thread("count sheep", [held] {});
    CHECK(thread.status().code() == Code::kResourceExhausted);
    CHECK(thread.status().message().starts_with("no thread can be started to count sheep: "));
    CHECK(held.use_count() == 1);
  }
  auto thread = start_thread("count sheep", [held] { ++*held; });
  REQUIRE(thread.ok());
  thread->join();
  CHECK(*held == 2);
}

}  // namespace
}  // namespace troupe
