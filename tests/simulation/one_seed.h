#pragma once
// One seed of a scenario, from its world to its result.

#include <chrono>
#include <string>

#include "canaries.h"
#include "world.h"

namespace troupe::simulation {

// Runs `course(world, result)`; what it violates, and how long it took, is in the result.
template <typename Result, typename Options, typename Course>
Result run_seed(const Options& options, const std::string& canary, Course course) {
  World world(options.seed, options.trace);
  const PlantedCanary planted(canary);
  Result result;
  try {
    course(world, result);
  } catch (const Violation& violation) {
    result.violation = violation.what();
    world.note("VIOLATION: {}", violation.what());
  }
  result.trace_hash = world.hash;
  result.events = world.timeline.events();
  result.virtual_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          world.timeline.now() - TimePoint(std::chrono::hours(1)))
                          .count();
  return result;
}

}  // namespace troupe::simulation
