// The engine on the fake GPU: the CPU's bits, under every strategy, and what becomes of failures.
#include "tests/train/sharding/engine_ranks.h"

namespace troupe::train::tests {
namespace {

constexpr Place kPlaces[] = {Place::kNccl, Place::kOverHost};

void check_like_the_cpu(Setting setting, std::span<const Place> places) {
  setting.length = 7;
  setting.place = Place::kCpu;
  const std::vector<Outcome> expected = train_ranks(setting);
  for (const Place place : places) {
    setting.place = place;
    CAPTURE(describe(setting.strategy, setting.mesh));
    CAPTURE(static_cast<int>(place));
    CAPTURE(static_cast<int>(setting.order));
    CAPTURE(setting.mesh.size());
    const std::vector<Outcome> outcomes = train_ranks(setting);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      CHECK_MESSAGE(outcomes[rank].status.ok(), outcomes[rank].status.to_string());
      CHECK(std::isfinite(outcomes[rank].norm));
      CHECK(outcomes[rank].norm == expected[rank].norm);
      CHECK(same_bits(outcomes[rank].gradients, expected[rank].gradients));
      CHECK(same_bits(outcomes[rank].parameters, expected[rank].parameters));
    }
  }
}

// Of state, products and reduction.
struct Types {
  DType state, compute, reduce;
};

// Each strategy with each order once, with types and a way between the ranks that go round.
TEST_CASE("an engine on GPUs gives the CPU's bits under every strategy") {
  constexpr Types kTypes[] = {{DType::kF32, DType::kF32, DType::kF32},
                              {DType::kF32, DType::kBF16, DType::kBF16},
                              {DType::kBF16, DType::kBF16, DType::kF32},
                              {DType::kF32, DType::kBF16, DType::kF32},
                              {DType::kBF16, DType::kBF16, DType::kBF16}};
  std::size_t round = 0;
  for (const int world : {1, 2, 4}) {
    for (const auto& [strategy, mesh] : strategies(world)) {
      for (const ReductionOrder order :
           {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes, ReductionOrder::kOff}) {
        const Types types = kTypes[round % std::size(kTypes)];
        check_like_the_cpu({.strategy = strategy,
                            .mesh = mesh,
                            .micro_batches = 2 * world,
                            .order = order,
                            .state = types.state,
                            .compute = types.compute,
                            .reduce = types.reduce,
                            .overlaps = true,
                            .steps = 2},
                           std::span(kPlaces).subspan(round % 2, 1));
        ++round;
      }
    }
  }
}

TEST_CASE("on GPUs gathers come after what reads their places, and before what reads them") {
  for (const Strategy strategy : {Strategy::kZero3, Strategy::kShardGradOp, Strategy::kZero1}) {
    for (const GatherLimits& limits :
         {GatherLimits{}, GatherLimits{.max_live = 1, .prefetch = 0},
          GatherLimits{.max_live = 200'000, .prefetch = 100'000},
          GatherLimits{.max_reuse_distance = 100'000, .persistence_threshold = 40'000}}) {
      check_like_the_cpu({.strategy = strategy,
                          .mesh = Mesh{.dp_shard = 2},
                          .micro_batches = 2,
                          .compute = DType::kBF16,
                          .tied = false,
                          .steps = 1,
                          .limits = limits,
                          .spoilt = true,
                          .late = true},
                         std::span(kPlaces).first(1));
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
