// The engine on the fake GPU: the CPU's bits, under every strategy, and what becomes of failures.
#include "tests/train/sharding/engine_ranks.h"

namespace troupe::train::tests {
namespace {

void check_like_the_cpu(Setting setting, std::initializer_list<Place> places) {
  setting.place = Place::kCpu;
  const std::vector<Outcome> expected = train_ranks(setting);
  for (const Place place : places) {
    setting.place = place;
    CAPTURE(describe(setting.strategy, setting.mesh));
    CAPTURE(static_cast<int>(place));
    CAPTURE(setting.mesh.size());
    const std::vector<Outcome> outcomes = train_ranks(setting);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      CHECK_MESSAGE(outcomes[rank].status.ok(), outcomes[rank].status.to_string());
      CHECK(outcomes[rank].norm == expected[rank].norm);
      CHECK(same_bits(outcomes[rank].gradients, expected[rank].gradients));
      CHECK(same_bits(outcomes[rank].parameters, expected[rank].parameters));
    }
  }
}

TEST_CASE("an engine on GPUs gives the CPU's bits under every strategy") {
  for (const int world : {1, 2, 4}) {
    for (const auto& [strategy, mesh] : strategies(world)) {
      for (const ReductionOrder order :
           {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes, ReductionOrder::kOff}) {
        check_like_the_cpu({.strategy = strategy,
                            .mesh = mesh,
                            .micro_batches = 2 * world,
                            .order = order,
                            .overlaps = true,
                            .steps = 2},
                           {Place::kNccl, Place::kOverHost});
      }
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
