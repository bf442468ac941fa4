// Seeds in the simulator: nothing that must hold is ever broken, and planted mistakes are noticed.

#include "simulation.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>

#include "canaries.h"
#include "known_seeds.h"
#include "seeds.h"

using namespace troupe::simulation;

namespace {

// Of the default run: `tools/simulate --seeds N` runs more.
constexpr std::uint64_t kSeeds = 40;
// Of worlds of a rank on each of three or four nodes, where a fault strikes the one that matters.
constexpr std::uint64_t kSmallSeeds = 400;
// Of worlds that change: small ones, some larger ones, and now and then one of 128 ranks.
constexpr std::uint64_t kElasticSeeds = 200;

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

Options elastic_with_seed(std::uint64_t seed) {
  Options options = with_seed(seed);
  options.elastic = true;
  options.nodes = seed % 50 == 0 ? 16 : 5;
  options.ranks_per_node = seed % 50 == 0 ? 8 : seed % 5 == 0 ? 3 : 1;
  options.faults = 20;
  return options;
}

using OfSeed = Options (*)(std::uint64_t seed);

Result run_seeds(OfSeed of_seed, std::uint64_t seeds) {
  Result total;
  for (std::uint64_t seed = 1; seed <= seeds_wanted(seeds); ++seed) {
    CAPTURE(seed);
    const Result result = simulate(of_seed(seed));
    REQUIRE_MESSAGE(result.violation.empty(), result.violation);
    total += result;
  }
  return total;
}

// Within the seeds of the default run: those of small worlds, behind them those of worlds that
// change, then the others.
bool is_noticed(std::string_view mistake, const std::function<void(Options&)>& plant) {
  return seed_that_notices(
             mistake, kSmallSeeds + kElasticSeeds + kSeeds, [&](std::uint64_t number) {
               Options options = number <= kSmallSeeds ? small_with_seed(number)
                                 : number <= kSmallSeeds + kElasticSeeds
                                     ? elastic_with_seed(number - kSmallSeeds)
                                     : with_seed(number - kSmallSeeds - kElasticSeeds);
               plant(options);
               return !simulate(options).violation.empty();
             }) > 0;
}

}  // namespace

TEST_CASE("whatever fails, the run ends as the undisturbed one") {
  Result total = run_seeds(with_seed, kSeeds);
  total += run_seeds(small_with_seed, kSmallSeeds);
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

TEST_CASE("so it does in a world that changes") {
  const Result total = run_seeds(elastic_with_seed, kElasticSeeds);
  CHECK(total.joins > 0);
  CHECK(total.leaves > 0);
  CHECK(total.resizes > 0);
  CHECK(total.hand_overs > 0);
  CHECK(total.takeovers > 0);
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
    CHECK(is_noticed(mistake_name(mistake), [&](Options& options) { options.mistake = mistake; }));
  }
}

TEST_CASE("so are those planted in what trainers run") {
  for (const std::string_view canary : kTrainingCanaries) {
    CAPTURE(canary);
    CHECK(is_noticed(canary, [&](Options& options) { options.canary = canary; }));
  }
}
