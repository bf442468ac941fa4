// Seeds of the simulation of tasks: nothing that must hold is ever broken, planted mistakes are
// noticed.

#include "tasks_simulation.h"

#include <doctest/doctest.h>

#include "canaries.h"
#include "known_seeds.h"
#include "seeds.h"

using namespace troupe::simulation;

TEST_CASE("whatever fails, every task ends once, runs as often as it may, and no worker is left") {
  TasksResult total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(30); ++seed) {
    CAPTURE(seed);
    TasksOptions options;
    options.seed = seed;
    const TasksResult result = simulate_tasks(options);
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  CHECK(total.answered > total.submitted / 2);
  CHECK(total.begun > total.answered);
  CHECK(total.failed > 0);
  CHECK(total.cancelled > 0);
  CHECK(total.late > 0);
  CHECK(total.given_back > 0);
  CHECK(total.deaths > 0);
}

TEST_CASE("the same seed is the same tasks") {
  TasksOptions options;
  options.seed = 3;
  CHECK(simulate_tasks(options).trace_hash == simulate_tasks(options).trace_hash);
}

TEST_CASE("mistakes planted in the queue of tasks are noticed") {
  for (const std::string_view canary : kTaskCanaries) {
    CAPTURE(canary);
    TasksOptions options;
    options.canary = canary;
    options.faults = 60;
    CHECK(seed_that_notices(canary, 200, [&](std::uint64_t seed) {
            options.seed = seed;
            return !simulate_tasks(options).violation.empty();
          }) > 0);
  }
}
