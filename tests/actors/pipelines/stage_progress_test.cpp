// How items go on, over the death of any process at any moment, without processes.

#include "actors/pipelines/stage_progress.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <optional>
#include <random>

namespace troupe::detail {
namespace {

std::span<const std::byte> bytes_of(const std::uint64_t& value) {
  return std::as_bytes(std::span(&value, 1));
}
std::uint64_t value_of(std::span<const std::byte> bytes, std::size_t index = 0) {
  std::uint64_t value = 0;
  REQUIRE(bytes.size() >= (index + 1) * sizeof value);
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// source → a (3 actors) → b (2), c → d, which takes both.
const PipelinePlan kPlan{.in_flight = 5,
                         .item_bytes_max = 4096,
                         .stages = {{"a", 3, {0}}, {"b", 2, {1}}, {"c", 1, {1}}, {"d", 1, {2, 3}}},
                         .output = 4};
constexpr std::uint64_t kFails = 17;  // the item for which stage b fails

// A pipeline whose processes take steps, and die, in an order that a seed gives.
struct World {
  struct Actor {
    std::uint32_t stage;
    std::uint32_t number;
    std::optional<StageProgress> process;
    std::optional<std::uint64_t> ran;  // it has run the item, and not given its output
    std::vector<std::byte> output;
  };
  explicit World(std::uint64_t seed) : random(seed) {
    for (std::uint32_t stage = 0; stage < kPlan.stages.size(); ++stage) {
      for (std::uint32_t i = 0; i < kPlan.stages[stage].actors; ++i) {
        actors.push_back({stage, i, std::nullopt, std::nullopt, {}});
      }
    }
  }
  std::uint64_t below(std::uint64_t n) { return random() % n; }

  void step(Actor& actor) {
    if (!actor.process) {
      actor.process.emplace(kPlan, memory, actor.stage, actor.number, source.first());
      return;
    }
    if (actor.ran) {
      memory.publish(actor.stage + 1, *actor.ran, false, actor.output);
      actor.ran.reset();
      return;
    }
    const StageStep what = actor.process->look();
    if (what == StageStep::kWait) return;
    const std::uint64_t number = actor.process->number();
    CHECK(number % kPlan.stages[actor.stage].actors == actor.number);
    CHECK(number >= source.first());
    CHECK(number < source.next());
    if (what == StageStep::kPassOn) {
      memory.publish(actor.stage + 1, number, true, actor.process->failure());
    } else if (actor.stage == 1 && number == kFails) {
      memory.publish(actor.stage + 1, number, true, bytes_of(number));
    } else {
      std::vector<std::byte> joined;
      const auto arguments = actor.process->arguments(joined);
      const std::uint64_t first = value_of(arguments);
      const std::uint64_t given =
          actor.stage == 3 ? first * 1000 + value_of(arguments, 1) : first + 1 + actor.stage;
      actor.output.assign(bytes_of(given).begin(), bytes_of(given).end());
      actor.ran = number;
      ++runs[{actor.stage, number}];
    }
    actor.process->taken();
  }

  std::mt19937_64 random;
  std::vector<std::byte> bytes = std::vector<std::byte>(PipelineMemory::bytes(kPlan) + 128);
  std::byte* const aligned =
      bytes.data() + (128 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 128) % 128;
  PipelineMemory memory{aligned, kPlan};
  SourceProgress source{kPlan};
  std::vector<Actor> actors;
  std::map<std::pair<std::uint32_t, std::uint64_t>, int> runs;
  std::uint64_t deaths = 0;
};

// Items 0 to 99 with a death in every `death_each`-th step, or none (0).
void run(std::uint64_t seed, std::uint64_t death_each) {
  CAPTURE(seed);
  constexpr std::uint64_t kItems = 100;
  World world(seed);
  std::uint64_t steps = 0;
  while (world.source.first() < kItems) {
    REQUIRE(++steps < 1'000'000);
    const std::uint64_t what = world.below(world.actors.size() + 2);
    if (what == 0) {
      if (world.source.full() || world.source.next() == kItems) continue;
      const std::uint64_t number = world.source.push();
      world.memory.publish(0, number, false, bytes_of(number));
    } else if (what == 1) {
      const std::uint64_t number = world.source.first();
      if (!world.memory.has(kPlan.output, number)) continue;
      const auto item = world.memory.read(kPlan.output, number);
      CHECK(item.failed == (number == kFails));
      CHECK(value_of(item.bytes) == (item.failed ? number : (number + 3) * 1000 + number + 4));
      world.source.delivered();
    } else {
      auto& actor = world.actors[what - 2];
      if (death_each > 0 && world.below(death_each) == 0) {
        actor.process.reset();
        actor.ran.reset();
        ++world.deaths;
      } else {
        world.step(actor);
      }
    }
  }
  CHECK((death_each == 0 || world.deaths > 0));
  for (std::uint32_t stage = 0; stage < kPlan.stages.size(); ++stage) {
    for (std::uint64_t number = 0; number < kItems; ++number) {
      const int ran = world.runs[{stage, number}];
      const bool none = number == kFails && (stage == 1 || stage == 3);
      CHECK((none ? ran == 0 : death_each == 0 ? ran == 1 : ran >= 1));
    }
  }
}

TEST_CASE("each item goes through each stage once, in order at the end") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) run(seed, 0);
}

TEST_CASE("processes that die at any moment lose nothing, and disturb no order") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) run(seed, 7);
}

TEST_CASE("a process that comes late leaves out what was given, and delivered meanwhile") {
  World world(1);
  const auto pass = [&](std::uint32_t stage, std::uint64_t number) {
    world.memory.publish(stage + 1, number, false, bytes_of(number));
  };
  for (int i = 0; i < 5; ++i) world.memory.publish(0, world.source.push(), false, bytes_of(i));
  StageProgress late(kPlan, world.memory, /*stage=*/2, /*actor=*/0, /*first=*/0);
  // The one before it gave items 0 and 1; 0 is delivered, and its slots are needed again.
  for (std::uint64_t n : {0u, 1u}) pass(0, n), pass(2, n);
  world.source.delivered();
  const std::uint64_t fifth = world.source.push();
  world.memory.publish(0, fifth, false, bytes_of(fifth));
  pass(0, fifth);
  CHECK(late.look() == StageStep::kWait);
  CHECK(late.number() == 2);
  pass(0, 2);
  CHECK(late.look() == StageStep::kRun);
  // Its owner has a new connection, and has delivered up to 3 meanwhile.
  late.leave_out_before(3);
  CHECK(late.number() == 3);
  late.leave_out_before(1);
  CHECK(late.number() == 3);
}

}  // namespace
}  // namespace troupe::detail
