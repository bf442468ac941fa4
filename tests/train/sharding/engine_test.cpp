// Every strategy against every other: the bits of the trained parameters.
#include "train/sharding/engine.h"

#include "tests/train/sharding/engine_ranks.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train::tests {
namespace {

TEST_CASE("all strategies give the same bits at one world size") {
  for (const bool tied : {true, false}) {
    for (const int world : {1, 2, 3, 4}) {
      const std::int64_t micro_batches = 2 * world;
      const Outcome ddp = train({.strategy = Strategy::kDdp,
                                 .mesh = Mesh{.dp_replicate = world},
                                 .micro_batches = micro_batches,
                                 .tied = tied});
      for (const auto& [strategy, mesh] : strategies(world)) {
        CAPTURE(describe(strategy, mesh));
        CAPTURE(world);
        CHECK(same(ddp, train({.strategy = strategy,
                               .mesh = mesh,
                               .micro_batches = micro_batches,
                               .tied = tied,
                               .overlaps = true,
                               .threads = 2})));
      }
    }
  }
}

TEST_CASE("ranks of one node read in place, with the bits of ranks that are apart") {
  for (const int world : {2, 4}) {
    for (const DType reduce : {DType::kF32, DType::kBF16}) {
      for (const auto& [strategy, mesh] : strategies(world)) {
        CAPTURE(describe(strategy, mesh));
        // One micro-batch of a rank: gradients that are whole lie in the region at once.
        Setting setting{.strategy = strategy, .mesh = mesh, .micro_batches = world};
        setting.reduce = reduce;
        const Outcome together = train(setting);
        setting.apart = true;
        const Outcome apart = train(setting);
        CHECK(same(together, apart));
        CHECK(together.bytes_read_in_place > 100'000);
        CHECK(apart.bytes_read_in_place == 0);
        CHECK(together.bytes_sent == apart.bytes_sent);
      }
    }
  }
}

TEST_CASE("nothing of what lay in a gradient's place gets into the gradient") {
  for (const ReductionOrder order :
       {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes, ReductionOrder::kOff}) {
    for (const bool tied : {true, false}) {
      for (const int world : {1, 2}) {
        for (const auto& [strategy, mesh] : strategies(world)) {
          CAPTURE(describe(strategy, mesh));
          CAPTURE(world);
          // An odd number: with two ranks one of them has nothing in the last turn.
          Setting setting{.strategy = strategy,
                          .mesh = mesh,
                          .micro_batches = order == ReductionOrder::kAcrossWorldSizes ? 3 : 4,
                          .order = order,
                          .tied = tied,
                          .overlaps = true,
                          .steps = 2};
          const Outcome clean = train(setting);
          CHECK(std::isfinite(clean.norm));
          setting.spoilt = true;
          CHECK(same(clean, train(setting)));
        }
      }
    }
  }
}

TEST_CASE("optimizers of blocks and of whole tensors have the same bits under every strategy") {
  OptimizerSettings settings{.weight_decay = 0.1, .hidden_size = 64, .heads = 4};
  settings.projection = {.rank = 4, .interval = 2};
  settings.blocks = {.layers = 3, .switch_interval = 2};
  for (const char* optim :
       {"adamw_8bit", "adafactor", "muon", "galore", "apollo", "adam_mini", "badam"}) {
    settings.projection.scales_gradient = std::string_view(optim) == "apollo";
    const std::shared_ptr<const Optimizer> optimizer = make_optimizer(optim, settings);
    const std::string_view name = optim;
    const bool both =
        name == "adamw_8bit" || name == "adafactor" || name == "muon" || name == "galore";
    for (const int world : {2, 4}) {
      if (world == 4 && !both) continue;
      const Outcome ddp = train({.strategy = Strategy::kDdp,
                                 .mesh = Mesh{.dp_replicate = world},
                                 .steps = 2,
                                 .optimizer = optimizer});
      CHECK(std::isfinite(ddp.norm));
      for (const auto& [strategy, mesh] : strategies(world)) {
        // Of four ranks: whole shards, and shards of a group.
        if ((world == 4 || !both) && strategy != Strategy::kZero3 &&
            (!both || strategy != Strategy::kHybridShard))
          continue;
        CAPTURE(optim);
        CAPTURE(describe(strategy, mesh));
        CHECK(same(
            ddp, train({.strategy = strategy, .mesh = mesh, .steps = 2, .optimizer = optimizer})));
      }
    }
  }
}

TEST_CASE("limits of gathered parameters change no bit") {
  const Mesh mesh{.dp_shard = 2};
  const Outcome plain = train({.strategy = Strategy::kZero3, .mesh = mesh});
  for (const GatherLimits& limits :
       {GatherLimits{.max_live = 1}, GatherLimits{.max_reuse_distance = 1'000'000},
        GatherLimits{.prefetch = 1'000'000}, GatherLimits{.persistence_threshold = 40'000}}) {
    for (const bool overlaps : {false, true}) {
      CHECK(same(plain, train({.strategy = Strategy::kZero3,
                               .mesh = mesh,
                               .overlaps = overlaps,
                               .limits = limits})));
    }
  }
}

TEST_CASE("the tree over micro-batches gives the same bits at every world size") {
  for (const std::int64_t micro_batches : {12, 7}) {
    const auto setting = [&](Strategy strategy, Mesh mesh) {
      return Setting{.strategy = strategy,
                     .mesh = mesh,
                     .micro_batches = micro_batches,
                     .order = ReductionOrder::kAcrossWorldSizes};
    };
    const Outcome alone = train(setting(Strategy::kDdp, {}));
    for (const int world : {1, 2, 3, 4}) {
      for (const auto& [strategy, mesh] : strategies(world)) {
        CAPTURE(describe(strategy, mesh));
        CAPTURE(world);
        CHECK(same(alone, train(setting(strategy, mesh))));
      }
    }
  }
}

TEST_CASE("the tree over micro-batches gives the same bits at every world size in bf16, too") {
  const auto setting = [&](Strategy strategy, Mesh mesh) {
    return Setting{.strategy = strategy,
                   .mesh = mesh,
                   .micro_batches = 7,
                   .order = ReductionOrder::kAcrossWorldSizes,
                   .reduce = DType::kBF16,
                   .overlaps = true};
  };
  const Outcome alone = train(setting(Strategy::kDdp, {}));
  Setting exact = setting(Strategy::kDdp, {});
  exact.reduce = DType::kF32;
  const Outcome wide = train(exact);
  CHECK_FALSE(same(alone, wide));
  CHECK(alone.norm == doctest::Approx(wide.norm).epsilon(0.02));
  for (const int world : {2, 3, 4}) {
    for (const auto& [strategy, mesh] : strategies(world)) {
      CAPTURE(describe(strategy, mesh));
      CAPTURE(world);
      CHECK(same(alone, train(setting(strategy, mesh))));
    }
  }
}

TEST_CASE("without determinism whole gradients are reduced once, to the same values") {
  const Outcome strict = train({.strategy = Strategy::kDdp, .mesh = {.dp_replicate = 2}});
  for (const auto& [strategy, mesh] : strategies(2)) {
    const Outcome loose =
        train({.strategy = strategy, .mesh = mesh, .order = ReductionOrder::kOff});
    CHECK(loose.norm == doctest::Approx(strict.norm).epsilon(1e-5));
  }
}

TEST_CASE("bf16 reduction without determinism sends whole gradients once, too") {
  for (const bool overlaps : {false, true}) {
    const auto setting = [&](Strategy strategy, Mesh mesh, std::int64_t micro_batches) {
      return Setting{.strategy = strategy,
                     .mesh = mesh,
                     .micro_batches = micro_batches,
                     .order = ReductionOrder::kOff,
                     .reduce = DType::kBF16,
                     .overlaps = overlaps};
    };
    const Outcome strict =
        train({.strategy = Strategy::kDdp, .mesh = {.dp_replicate = 2}, .micro_batches = 8});
    const Outcome once = train(setting(Strategy::kDdp, {.dp_replicate = 2}, 2));
    const Outcome often = train(setting(Strategy::kDdp, {.dp_replicate = 2}, 8));
    CHECK(often.bytes_sent == once.bytes_sent);
    CHECK(often.norm == doctest::Approx(strict.norm).epsilon(0.02));
    const Outcome zero1 = train(setting(Strategy::kZero1, {.dp_shard = 2}, 8));
    CHECK(same(zero1, often));
    const Outcome sharded = train(setting(Strategy::kZero2, {.dp_shard = 2}, 8));
    CHECK(sharded.bytes_sent > zero1.bytes_sent);
  }
}

TEST_CASE("bf16 reduction rounds once, in groups that are replicated as elsewhere") {
  const auto setting = [](Strategy strategy, Mesh mesh, bool overlaps) {
    return Setting{.strategy = strategy,
                   .mesh = mesh,
                   .micro_batches = 8,
                   .reduce = DType::kBF16,
                   .overlaps = overlaps};
  };
  const Outcome ddp = train(setting(Strategy::kDdp, {.dp_replicate = 4}, false));
  auto all = strategies(4);
  all.emplace_back(Strategy::kHybridShard, Mesh{.dp_replicate = 4, .dp_shard = 1});
  all.emplace_back(Strategy::kHybridShard, Mesh{.dp_replicate = 1, .dp_shard = 4});
  for (const auto& [strategy, mesh] : all) {
    CAPTURE(describe(strategy, mesh));
    CHECK(same(ddp, train(setting(strategy, mesh, true))));
  }
  // Groups that are no power of two, too.
  CHECK(same(train(setting(Strategy::kZero3, {.dp_shard = 6}, false)),
             train(setting(Strategy::kHybridShard, {.dp_replicate = 2, .dp_shard = 3}, false))));
}

TEST_CASE("bf16 compute and reduction give the same bits under all strategies, near fp32's") {
  const Outcome exact = train({.strategy = Strategy::kDdp, .mesh = {.dp_replicate = 2}});
  const Outcome ddp =
      train({.strategy = Strategy::kDdp, .mesh = {.dp_replicate = 2}, .compute = DType::kBF16});
  CHECK(ddp.norm == doctest::Approx(exact.norm).epsilon(0.02));
  CHECK_FALSE(same(ddp, exact));
  const Outcome narrow = train({.strategy = Strategy::kDdp,
                                .mesh = {.dp_replicate = 2},
                                .compute = DType::kBF16,
                                .reduce = DType::kBF16});
  CHECK(narrow.norm == doctest::Approx(exact.norm).epsilon(0.02));
  for (const auto& [strategy, mesh] : strategies(2)) {
    CAPTURE(describe(strategy, mesh));
    CHECK(same(ddp, train({.strategy = strategy, .mesh = mesh, .compute = DType::kBF16})));
    CHECK(same(narrow, train({.strategy = strategy,
                              .mesh = mesh,
                              .compute = DType::kBF16,
                              .reduce = DType::kBF16,
                              .overlaps = true})));
  }
}

}  // namespace
}  // namespace troupe::train::tests
