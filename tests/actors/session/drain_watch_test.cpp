// When the process of an actor that moves may end.

#include "actors/session/drain_watch.h"

#include <doctest/doctest.h>

namespace troupe::detail::drain_watch_test {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kStart = TimePoint(std::chrono::hours(1));
TimePoint at(int ms) { return kStart + milliseconds(ms); }

TEST_CASE("drain watch: callers that have stopped hold nobody up, open calls do") {
  DrainWatch watch(kStart);
  CHECK_FALSE(watch.may_end(1, {.stopped = true}, at(1)));
  CHECK(watch.may_end(0, {.stopped = true}, at(2)));
  CHECK_FALSE(watch.may_end(1, {.stopped = true}, at(10'000)));
}

TEST_CASE("drain watch: a caller that is silent is waited for no longer than that") {
  DrainWatch watch(kStart);
  CHECK_FALSE(watch.may_end(0, {}, at(199)));
  CHECK(watch.may_end(0, {}, at(200)));
}

TEST_CASE("drain watch: large arguments on their way, and what goes back, are no silence") {
  DrainWatch watch(kStart);
  for (int ms = 0; ms < 5000; ms += 100) {
    CHECK_FALSE(watch.may_end(0, {.received_bytes = std::uint64_t(ms) + 1}, at(ms)));
  }
  for (int ms = 5000; ms > 0; ms -= 100) {
    CHECK_FALSE(
        watch.may_end(0, {.stopped = true, .unsent_bytes = std::size_t(ms)}, at(10'000 - ms)));
  }
  CHECK(watch.may_end(0, {.stopped = true}, at(10'000)));
}

}  // namespace
}  // namespace troupe::detail::drain_watch_test
