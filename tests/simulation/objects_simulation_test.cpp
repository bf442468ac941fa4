// Seeds of the simulation of objects: nothing that must hold is ever broken, planted mistakes are
// noticed.

#include "objects_simulation.h"

#include <doctest/doctest.h>

#include "canaries.h"
#include "known_seeds.h"
#include "seeds.h"

using namespace troupe::simulation;

TEST_CASE("whatever fails, no object is freed while it is held, and none is left afterwards") {
  ObjectsResult total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(30); ++seed) {
    CAPTURE(seed);
    ObjectsOptions options;
    options.seed = seed;
    const ObjectsResult result = simulate_objects(options);
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  CHECK(total.reads > total.no_room);
  CHECK(total.lost > 0);
  CHECK(total.spills > 0);
  CHECK(total.restores > 0);
  CHECK(total.fetches > 0);
  CHECK(total.fetches_from_copies > 0);
  CHECK(total.process_deaths > 0);
  CHECK(total.node_losses > 0);
  CHECK(total.cuts > 0);
}

TEST_CASE("without faults no object is lost") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    ObjectsOptions options;
    options.seed = seed;
    options.faults = 0;
    const ObjectsResult result = simulate_objects(options);
    CHECK_MESSAGE(result.violation.empty(), result.violation);
    CHECK(result.lost == 0);
  }
}

TEST_CASE("the same seed is the same objects") {
  ObjectsOptions options;
  options.seed = 3;
  CHECK(simulate_objects(options).trace_hash == simulate_objects(options).trace_hash);
}

TEST_CASE("mistakes planted in the object stores are noticed") {
  for (const std::string_view canary : kObjectCanaries) {
    CAPTURE(canary);
    ObjectsOptions options;
    options.canary = canary;
    options.faults = 6;
    CHECK(seed_that_notices(canary, 2000, [&](std::uint64_t seed) {
            options.seed = seed;
            return !simulate_objects(options).violation.empty();
          }) > 0);
  }
}
