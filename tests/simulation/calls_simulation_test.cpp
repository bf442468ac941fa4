// Seeds of the simulation of calls: nothing that must hold is ever broken, planted mistakes are
// noticed.

#include "calls_simulation.h"

#include <doctest/doctest.h>

#include "canaries.h"
#include "known_seeds.h"
#include "seeds.h"

using namespace troupe::simulation;

TEST_CASE("whatever fails, every call ends once, in time, and counts as often as it may") {
  CallsResult total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(20); ++seed) {
    CAPTURE(seed);
    CallsOptions options;
    options.seed = seed;
    const CallsResult result = simulate_calls(options);
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  // The faults reached what they are for.
  CHECK(total.answered > total.failed);
  CHECK(total.cut_off > 0);
  CHECK(total.cancelled > 0);
  CHECK(total.items > 0);
  CHECK(total.losses > 0);
  CHECK(total.told_of_losses > 0);
  CHECK(total.links_cut > 0);
  CHECK(total.links_slowed > 0);
  CHECK(total.drains > 0);
  CHECK(total.cluster.kills > 0);
  CHECK(total.cluster.head_crashes > 0);
  CHECK(total.cluster.head_stalls > 0);
}

TEST_CASE("without faults every call is answered, or is too late") {
  CallsOptions options;
  options.faults = options.link_faults = 0;
  const CallsResult result = simulate_calls(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.answered > result.failed);
  CHECK(result.cut_off == 0);
}

TEST_CASE("the same seed is the same calls") {
  CallsOptions options;
  options.seed = 3;
  CHECK(simulate_calls(options).trace_hash == simulate_calls(options).trace_hash);
}

TEST_CASE("mistakes planted in the conversations between callers and actors are noticed") {
  for (const std::string_view canary : kCallSessionCanaries) {
    CAPTURE(canary);
    CallsOptions options;
    options.canary = canary;
    options.faults = 14;
    options.link_faults = 60;
    if (canary == "forgets-streams-of-ended-links") {
      // An actor that waits for ever is seen where nothing else ends it.
      options.faults = 0;
      options.link_faults = 200;
      options.actors = 4;
    }
    if (canary == "saves-the-last-answer-alone") options.faults = 60;  // it dies while one waits
    CHECK(seed_that_notices(canary, 200, [&](std::uint64_t seed) {
            options.seed = seed;
            return !simulate_calls(options).violation.empty();
          }) > 0);
  }
}
