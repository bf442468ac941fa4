// Seeds in the simulator: nothing that must hold is ever broken, and planted mistakes are noticed.

#include "simulation.h"

#include <doctest/doctest.h>

#include <set>

#include "canaries.h"
#include "seeds.h"

using namespace troupe::simulation;

namespace {

// Of the default run: `tools/simulate --seeds N` runs more.
constexpr std::uint64_t kSeeds = 100;
// Of worlds of a rank on each of three or four nodes, where a fault strikes the one that matters.
constexpr std::uint64_t kSmallSeeds = 400;

Options with_seed(std::uint64_t seed) {
  Options options;
  options.seed = seed;
  return options;
}

Options small_with_seed(std::uint64_t seed) {
  Options options = with_seed(seed);
  options.nodes = seed % 2 == 0 ? 4 : 3;
  options.ranks_per_node = 1;
  return options;
}

}  // namespace

TEST_CASE("whatever fails, the run ends as the undisturbed one") {
  Result total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(kSeeds); ++seed) {
    CAPTURE(seed);
    const Result result = simulate(with_seed(seed));
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  for (std::uint64_t seed = 1; seed <= seeds_wanted(kSmallSeeds); ++seed) {
    CAPTURE(seed);
    const Result result = simulate(small_with_seed(seed));
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  // The faults reached what they are for.
  CHECK(total.loads > 0);
  CHECK(total.copies > 0);
  CHECK(total.takeovers > 0);
  CHECK(total.finishes > 0);
  CHECK(total.discards > 0);
  CHECK(total.head_crashes > 0);
  CHECK(total.head_stalls > 0);
  CHECK(total.controller_kills > 0);
  CHECK(total.daemon_kills > 0);
  CHECK(total.node_losses > 0);
}

TEST_CASE("an undisturbed run is one generation") {
  Options options = with_seed(5);
  options.faults = 0;
  const Result result = simulate(options);
  CHECK_MESSAGE(result.violation.empty(), result.violation);
  CHECK(result.generations == 1);
  CHECK(result.loads == 1);
}

TEST_CASE("the same seed is the same run") {
  std::set<std::uint64_t> hashes;
  for (const std::uint64_t seed : {3, 4}) {
    const Result first = simulate(with_seed(seed));
    const Result second = simulate(with_seed(seed));
    CHECK(first.trace_hash == second.trace_hash);
    CHECK(first.events == second.events);
    hashes.insert(first.trace_hash);
  }
  CHECK(hashes.size() == 2);
}

TEST_CASE("planted mistakes are noticed within the seeds of the default run") {
  for (int number = 1; number < kMistakes; ++number) {
    const auto mistake = static_cast<Mistake>(number);
    CAPTURE(mistake_name(mistake));
    std::uint64_t seed = 1;
    Options options = with_seed(seed);
    options.mistake = mistake;
    while (seed <= kSeeds && simulate(options).violation.empty()) options.seed = ++seed;
    CHECK(seed <= kSeeds);
  }
}

TEST_CASE("so are those planted in what trainers run") {
  for (const std::string_view canary : kTrainingCanaries) {
    CAPTURE(canary);
    const auto noticed = [&](Options (*of_seed)(std::uint64_t), std::uint64_t seeds) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        Options options = of_seed(seed);
        options.canary = canary;
        if (!simulate(options).violation.empty()) return true;
      }
      return false;
    };
    CHECK((noticed(small_with_seed, kSmallSeeds) || noticed(with_seed, kSeeds)));
  }
}
