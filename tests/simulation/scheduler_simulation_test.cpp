// Seeds of the scheduler's simulation: nothing that must hold is ever broken, planted mistakes are
// noticed.

#include "scheduler_simulation.h"

#include <doctest/doctest.h>

#include <set>

#include "canaries.h"
#include "known_seeds.h"
#include "seeds.h"
#include "stall_simulation.h"

using namespace troupe::simulation;

namespace {

SchedulerOptions scheduler_seed(std::uint64_t seed) {
  SchedulerOptions options;
  options.seed = seed;
  return options;
}

// Within the seeds of the default run.
bool scheduler_notices(std::string_view mistake, SchedulerOptions& options) {
  return seed_that_notices(mistake, 200, [&](std::uint64_t seed) {
           options.seed = seed;
           return !simulate_scheduler(options).violation.empty();
         }) > 0;
}

}  // namespace

TEST_CASE("whatever fails, actors run once, leases fit, requests are answered, all settles") {
  SchedulerResult total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(80); ++seed) {
    CAPTURE(seed);
    const SchedulerResult result = simulate_scheduler(scheduler_seed(seed));
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  // The faults reached what they are for.
  CHECK(total.nodes_lost > 0);
  CHECK(total.gangs > 0);
  CHECK(total.groups > 0);
  CHECK(total.kills > 0);
  CHECK(total.requests_repeated > 0);
  CHECK(total.calls_answered > 0);
  CHECK(total.calls_failed > 0);
  CHECK(total.head_crashes > 0);
  CHECK(total.torn_appends > 0);
  CHECK(total.daemon_kills > 0);
  CHECK(total.cuts > 0);
  CHECK(total.freezes > 0);
  CHECK(total.head_stalls > 0);
  CHECK(total.overlaps > 0);
  CHECK(total.owners_gone > 0);
  CHECK(total.processes > total.actors / 2);
}

// A tenth of what the README names: that takes longer than a test may.
TEST_CASE("a hundred nodes join and half of them die, under a thousand actors and fifty groups") {
  SchedulerOptions options = scheduler_seed(1);
  options.nodes = 100;
  options.actors = 1500;
  options.groups = 80;
  const SchedulerResult result = simulate_scheduler(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.nodes_joined == 100);
  CHECK(result.nodes_lost == 50);
  // Some are refused: what they name is gone by then.
  CHECK(result.actors >= 1000);
  CHECK(result.groups >= 50);
}

TEST_CASE("a thousand kills leave no process behind and no leases that overlap") {
  SchedulerOptions options = scheduler_seed(2);
  options.nodes = 40;
  options.actors = 1500;
  options.kills = 1600;  // some find nothing to kill
  const SchedulerResult result = simulate_scheduler(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.kills >= 1000);
}

TEST_CASE("without faults every call to a living actor is answered") {
  SchedulerOptions options = scheduler_seed(4);
  options.faults = 0;
  const SchedulerResult result = simulate_scheduler(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.nodes_lost == 0);
  CHECK(result.calls_answered > 0);
}

TEST_CASE("nodes that stand still for 200 ms are not dead; those that stay so are within 3 s") {
  StallOptions options;
  for (options.seed = 1; options.seed <= 5; ++options.seed) {
    CAPTURE(options.seed);
    const StallResult result = simulate_stalls(options);
    CHECK_MESSAGE(result.violation.empty(), result.violation);
    CHECK(result.stalls > 2000);
    CHECK(result.false_deaths == 0);
    CHECK(result.false_suspicions == 0);
    CHECK(result.undetected == 0);
    CHECK(result.suspected_after_ms <= 1'500);
    CHECK(result.dead_after_ms <= 3'000);
  }
  // Longer than what is usual, shorter than a lease: suspected, and alive.
  options.stall_ms = 1'500;
  const StallResult result = simulate_stalls(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.false_suspicions > 0);
  CHECK(result.false_deaths == 0);
}

TEST_CASE("the same seed is the same cluster") {
  std::set<std::uint64_t> hashes;
  for (const std::uint64_t seed : {3, 4}) {
    const SchedulerResult first = simulate_scheduler(scheduler_seed(seed));
    const SchedulerResult second = simulate_scheduler(scheduler_seed(seed));
    CHECK(first.trace_hash == second.trace_hash);
    CHECK(first.events == second.events);
    hashes.insert(first.trace_hash);
  }
  CHECK(hashes.size() == 2);
}

TEST_CASE("mistakes planted around the scheduler are noticed within the default seeds") {
  for (int number = 1; number < kSchedulerMistakes; ++number) {
    SchedulerOptions options;
    options.mistake = static_cast<SchedulerMistake>(number);
    CAPTURE(mistake_name(options.mistake));
    CHECK(scheduler_notices(mistake_name(options.mistake), options));
  }
}

TEST_CASE("mistakes planted in a client's conversation with the head are noticed") {
  for (const std::string_view canary : kHeadSessionCanaries) {
    CAPTURE(canary);
    SchedulerOptions options;
    options.canary = canary;
    CHECK(scheduler_notices(canary, options));
  }
}
