#include "train/sharding/gather_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "runtime/base/random.h"

namespace troupe::train {
namespace {

// Follows a schedule as a run does and checks that nothing is used that is not there, that units
// never overlap in the arena, and reports the greatest number of elements gathered at once.
std::int64_t follow(const GatherSchedule& schedule, const std::vector<std::int64_t>& sizes) {
  std::map<int, std::int64_t> gathered;  // unit → offset
  std::int64_t live = 0, greatest = 0;
  const auto gather = [&](std::size_t at, int unit) {
    REQUIRE_FALSE(gathered.contains(unit));
    const std::int64_t offset = schedule.offset_at(at, unit);
    const std::int64_t size = sizes[static_cast<std::size_t>(unit)];
    REQUIRE(offset + size <= schedule.arena_elements());
    for (const auto& [other, begin] : gathered) {
      const std::int64_t end = begin + sizes[static_cast<std::size_t>(other)];
      REQUIRE((offset >= end || offset + size <= begin));
    }
    gathered[unit] = offset;
    live += size;
    greatest = std::max(greatest, live);
  };
  for (const int unit : schedule.persistent()) gather(0, unit);
  for (std::size_t at = 0; at < schedule.steps().size(); ++at) {
    const GatherStep& step = schedule.steps()[at];
    for (const int unit : step.gathers) gather(at, unit);
    REQUIRE(gathered.contains(step.event.unit));
    REQUIRE(gathered.at(step.event.unit) == schedule.offset_at(at, step.event.unit));
    for (const int unit : step.drops) {
      live -= sizes[static_cast<std::size_t>(unit)];
      gathered.erase(unit);
    }
  }
  REQUIRE(gathered.size() == schedule.persistent().size());
  return greatest;
}

std::int64_t gathered_elements(const GatherSchedule& schedule,
                               const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const GatherStep& step : schedule.steps())
    for (const int unit : step.gathers) sum += sizes[static_cast<std::size_t>(unit)];
  return sum;
}

const std::vector<std::int64_t> kSizes = {100, 10, 10, 10, 10, 1};

TEST_CASE("without prefetch one unit at a time is gathered, forward and again backward") {
  const GatherSchedule schedule(kSizes, training_events(6, false), {.prefetch = 0});
  CHECK(follow(schedule, kSizes) == 100);
  CHECK(gathered_elements(schedule, kSizes) == 100 + 40 + 1 + 40);
  CHECK(schedule.steps().size() == 2 * (5 + 1 + 4));
}

TEST_CASE("the last block is still there for its backward pass only where it may be reused") {
  const GatherSchedule kept(kSizes, training_events(6, false),
                            {.max_reuse_distance = 10, .prefetch = 0});
  follow(kept, kSizes);
  // The head lies between: the last block is used again after 1 element, the one before after 11.
  CHECK(gathered_elements(kept, kSizes) == 100 + 40 + 1 + 30);
}

TEST_CASE("without resharding every unit is gathered once") {
  for (const bool tied : {false, true}) {
    const GatherSchedule schedule(kSizes, training_events(6, tied),
                                  {.reshard_after_forward = false, .prefetch = 0});
    CHECK(follow(schedule, kSizes) == (tied ? 141 : 100));
    CHECK(gathered_elements(schedule, kSizes) == 141);
  }
}

TEST_CASE("one unit ahead is prefetched by default") {
  const GatherSchedule schedule(kSizes, training_events(6, false), {});
  CHECK(follow(schedule, kSizes) == 110);
  CHECK(schedule.steps()[0].gathers == std::vector<int>{0, 1});
  CHECK(schedule.steps()[1].gathers.empty());
  CHECK(schedule.steps()[2].gathers == std::vector<int>{2});
}

TEST_CASE("a bucket limits what waits, max_live what is gathered") {
  const GatherSchedule bucket(kSizes, training_events(6, false), {.prefetch = 25});
  CHECK(bucket.steps()[0].gathers == std::vector<int>{0, 1, 2});
  follow(bucket, kSizes);
  const GatherSchedule live(kSizes, training_events(6, false), {.max_live = 115, .prefetch = 1000});
  CHECK(follow(live, kSizes) <= 115);
  // A unit that is needed is gathered whatever the limit.
  const GatherSchedule small(kSizes, training_events(6, true), {.max_live = 5, .prefetch = 1000});
  CHECK(follow(small, kSizes) == 101);
}

TEST_CASE("small units persist") {
  const GatherSchedule schedule(kSizes, training_events(6, false),
                                {.prefetch = 0, .persistence_threshold = 10});
  CHECK(schedule.persistent() == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(gathered_elements(schedule, kSizes) == 100);
  follow(schedule, kSizes);
}

TEST_CASE("any sizes and limits give a schedule that can be followed") {
  SeededRandom random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> sizes(3 + random.below(8));
    for (auto& size : sizes) size = static_cast<std::int64_t>(1 + random.below(50));
    GatherLimits limits{.reshard_after_forward = random.below(2) == 0,
                        .max_live = static_cast<std::int64_t>(random.below(300)),
                        .max_reuse_distance = static_cast<std::int64_t>(random.below(100)),
                        .persistence_threshold = static_cast<std::int64_t>(random.below(20))};
    if (random.below(3) > 0) limits.prefetch = static_cast<std::int64_t>(random.below(120));
    const bool tied = random.below(2) == 0;
    const int units = static_cast<int>(sizes.size());
    follow(GatherSchedule(sizes, training_events(units, tied), limits), sizes);
    follow(GatherSchedule(sizes, forward_events(units, tied), limits), sizes);
  }
}

}  // namespace
}  // namespace troupe::train
