// A seed leaves nothing behind, so that thousands of them run in one process.

#include <doctest/doctest.h>
#include <malloc.h>

#include <type_traits>

#include "calls_simulation.h"
#include "scheduler_simulation.h"
#include "simulation.h"

using namespace troupe::simulation;

namespace {

// Of what is set up once, or grows to its size, and not with every seed.
constexpr long kLeftMostBytes = 16'384;

template <typename Options>
long left_behind(const Options& options) {
  const auto run = [&] {
    if constexpr (std::is_same_v<Options, CallsOptions>) {
      REQUIRE(simulate_calls(options).violation.empty());
    } else if constexpr (std::is_same_v<Options, SchedulerOptions>) {
      REQUIRE(simulate_scheduler(options).violation.empty());
    } else {
      REQUIRE(simulate(options).violation.empty());
    }
  };
  run();
  const auto before = static_cast<long>(::mallinfo2().uordblks);
  run();
  return static_cast<long>(::mallinfo2().uordblks) - before;
}

}  // namespace

TEST_CASE("a seed leaves no memory behind") {
  CallsOptions calls;
  calls.seed = 2;
  CHECK(left_behind(calls) < kLeftMostBytes);
  SchedulerOptions scheduler;
  scheduler.seed = 2;
  CHECK(left_behind(scheduler) < kLeftMostBytes);
  Options training;
  training.seed = 2;
  CHECK(left_behind(training) < kLeftMostBytes);
  training.elastic = true;
  CHECK(left_behind(training) < kLeftMostBytes);
}
