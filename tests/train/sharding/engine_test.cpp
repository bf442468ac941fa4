// Every strategy against every other: the bits of the trained parameters.
#include "train/sharding/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "runtime/base/random.h"
#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/segment.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/initialize.h"
#include "train/model/model.h"
#include "train/sharding/cpu_engine_device.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kRows = 2, kLength = 8;

ModelConfig small_model(bool tied) {
  const std::string text = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 512, "tie_word_embeddings": )" +
                           std::string(tied ? "true}" : "false}");
  return ModelConfig::parse(text, "config.json").value();
}

struct Setting {
  Strategy strategy = Strategy::kDdp;
  Mesh mesh;
  std::int64_t micro_batches = 4;  // of a step, over all ranks
  ReductionOrder order = ReductionOrder::kStrategy;
  DType compute = DType::kF32;
  DType reduce = DType::kF32;
  bool tied = true;
  bool overlaps = false;
  int threads = 1;
  std::int64_t steps = 3;
  GatherLimits limits;
  bool apart = false;   // every rank on a node of its own
  bool spoilt = false;  // places of gradients hold NaN before a micro-batch begins them
};

struct Outcome {
  std::vector<float> parameters;  // whole
  double norm = 0;
  std::uint64_t bytes_sent = 0;           // by rank 0, in gathers and reductions of the last step
  std::uint64_t bytes_read_in_place = 0;  // by rank 0 of other ranks' memory
};

// Writes NaN where a unit's gradient will be put and holds nothing yet.
class SpoiltUnits final : public UnitAccess {
 public:
  explicit SpoiltUnits(UnitAccess& inner) : inner_(inner) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    return inner_.acquire(unit, phase);
  }
  void release(int unit, Phase phase) override { inner_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override {
    const UnitGradient gradient = TROUPE_TRY(inner_.gradient(unit));
    const bool begins = begun_.insert(unit).second;
    if (begins && gradient.fresh) std::fill(gradient.values.begin(), gradient.values.end(), NAN);
    return gradient;
  }
  Status gradient_done(int unit) override { return inner_.gradient_done(unit); }

 private:
  UnitAccess& inner_;
  std::set<int> begun_;
};

std::vector<std::int32_t> tokens_of(std::int64_t step, std::int64_t micro_batch) {
  SeededRandom random(static_cast<std::uint64_t>(step * 1000 + micro_batch));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kRows * kLength));
  for (auto& id : ids) id = static_cast<std::int32_t>(random.below(512));
  return ids;
}

class Rank {
 public:
  Rank(const Setting& setting, int rank)
      : setting_(setting),
        arena_(setting.threads),
        operators_(make_cpu_operators(arena_)),
        model_(make_model(small_model(setting.tied), *operators_)),
        layout_(model_->layout(), setting.strategy, setting.mesh, rank),
        activations_(model_->config(), {.rows_max = kRows, .length_max = kLength}, *operators_) {
    const std::pair<Region, std::span<float>*> buffers[] = {{Region::kParameters, &parameters_},
                                                            {Region::kGradients, &gradients_},
                                                            {Region::kOptimizer, &exp_avg_},
                                                            {Region::kOptimizer, &exp_avg_sq_}};
    std::size_t elements = 0;
    for (const auto& [region, buffer] : buffers)
      elements += static_cast<std::size_t>(layout_.elements(region));
    segment_ = memory::Segment::create("engine-test", elements * sizeof(float)).value();
    std::span<float> rest(reinterpret_cast<float*>(segment_.data()), elements);
    for (const auto& [region, buffer] : buffers) {
      *buffer = rest.first(static_cast<std::size_t>(layout_.elements(region)));
      rest = rest.subspan(buffer->size());
    }
    for (int unit = 0; unit < layout_.units(); ++unit) {
      std::vector<float> whole(static_cast<std::size_t>(layout_.unit_elements(unit)));
      initialize_unit(model_->layout(), unit, 0.1, 5, whole);
      const ElementRange held = layout_.sharded(Region::kParameters)
                                    ? layout_.owned(unit)
                                    : ElementRange{0, layout_.unit_elements(unit)};
      std::memcpy(parameters_.data() + layout_.offset(Region::kParameters, unit, held.begin),
                  whole.data() + held.begin, static_cast<std::size_t>(held.size()) * 4);
    }
  }

  Outcome train(collective::Communicator& world) {
    const int data_rank = setting_.mesh.data_rank_of(layout_.rank());
    const std::int64_t turns =
        (setting_.micro_batches + setting_.mesh.size() - 1) / setting_.mesh.size();
    SystemClock clock;
    EngineOptions options;
    options.reduction = {.order = setting_.order,
                         .micro_batches = turns,
                         .reduce = setting_.reduce,
                         .tied = setting_.tied,
                         .overlaps = setting_.overlaps};
    options.compute = {
        .compute = setting_.compute, .limits = setting_.limits, .tied = setting_.tied};
    options.compute.limits.reshard_after_forward = layout_.row().reshards_after_forward;
    CpuEngineDevice device(world, *operators_);
    const StateBuffers buffers{.parameters = std::as_writable_bytes(parameters_),
                               .gradients = gradients_,
                               .exp_avg = std::as_writable_bytes(exp_avg_),
                               .exp_avg_sq = std::as_writable_bytes(exp_avg_sq_),
                               .segment = &segment_};
    const auto updates = make_cpu_optimizer_device(
        OptimizerShard::of(layout_, buffers),
        [this](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
          arena_.parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
        },
        nullptr);
    auto engine = Engine::make(layout_, options, device, clock, *updates, buffers).value();
    REQUIRE(engine->parameters_changed(false).ok());
    const CrossEntropyLoss loss;
    Outcome outcome;
    for (std::int64_t step = 1; step <= setting_.steps; ++step) {
      const std::uint64_t before = engine->communicators().algorithm_bytes_sent();
      engine->begin_step(setting_.micro_batches);
      for (std::int64_t turn = 0; turn < engine->reducer().turns(); ++turn) {
        engine->begin_turn(turn);
        const std::int64_t leaf = engine->reducer().leaf(turn, data_rank);
        auto ids = tokens_of(step, leaf);
        auto labels = ids;
        if (leaf >= setting_.micro_batches) labels.assign(ids.size(), kIgnoreLabel);
        const MicroBatch batch{.rows = kRows,
                               .length = kLength,
                               .ids = ids,
                               .labels = labels,
                               .position_ids = {},
                               .segment_ids = {}};
        SpoiltUnits spoilt(engine->units());
        UnitAccess& units = setting_.spoilt ? static_cast<UnitAccess&>(spoilt) : engine->units();
        const auto sum = model_->forward_backward(batch, units, loss, 0.01f, activations_);
        REQUIRE_MESSAGE(sum.ok(), sum.status().to_string());
        const PassSeconds seconds = engine->units().end_pass();
        CHECK(seconds.forward >= 0);
        CHECK(seconds.backward >= 0);
      }
      REQUIRE(engine->finish_gradients().ok());
      outcome.norm = engine->optimizer().norm().value().norm;
      const AdamWStep update{.learning_rate = 1e-2, .weight_decay = 0.1, .step = step};
      REQUIRE(engine->optimizer().update(update, step).ok());
      engine->units().take_communication_seconds();
      REQUIRE(engine->parameters_changed(true).ok());
      const double waited = engine->units().take_communication_seconds();
      const bool publishes =
          layout_.sharded(Region::kOptimizer) && !layout_.sharded(Region::kParameters);
      if (setting_.mesh.dp_shard == 1) CHECK(waited == 0);
      if (publishes && setting_.mesh.dp_shard > 1) CHECK(waited > 0);
      CHECK(engine->units().take_communication_seconds() == 0);
      outcome.bytes_sent = engine->communicators().algorithm_bytes_sent() - before;
    }
    for (const auto* communicator :
         {&world, engine->communicators().shard(), engine->communicators().replicate()})
      if (communicator)
        for (const auto& counter : communicator->counters())
          outcome.bytes_read_in_place += counter.bytes_read_in_place;
    collect(*engine, outcome);
    return outcome;
  }

 private:
  // Every owner's parameters, put together.
  void collect(Engine& engine, Outcome& outcome) {
    const auto total = static_cast<std::size_t>(model_->layout().total_elements());
    outcome.parameters.resize(total);
    for (int unit = 0; unit < layout_.units(); ++unit) {
      const auto base = static_cast<std::size_t>(
          model_->layout().units()[static_cast<std::size_t>(unit)].flat_offset);
      const auto whole = std::span(outcome.parameters)
                             .subspan(base, static_cast<std::size_t>(layout_.unit_elements(unit)));
      const ElementRange own = layout_.owned(unit);
      const auto held =
          whole.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.size()));
      std::memcpy(held.data(),
                  parameters_.data() + layout_.offset(Region::kParameters, unit, own.begin),
                  held.size_bytes());
      if (auto* group = engine.communicators().shard()) {
        REQUIRE(group->all_gather(std::span<const float>(held), whole, layout_.owned_counts(unit))
                    .ok());
      }
    }
  }

  const Setting setting_;
  Arena arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Model> model_;
  RankLayout layout_;
  Activations activations_;
  memory::Segment segment_;
  std::span<float> parameters_, gradients_, exp_avg_, exp_avg_sq_;
};

Outcome train(Setting setting) {
  const auto world = static_cast<std::size_t>(setting.mesh.size());
  std::vector<int> nodes(world, 0);
  if (setting.apart) std::iota(nodes.begin(), nodes.end(), 0);
  auto links = collective::make_local_links(nodes).value();
  std::vector<Outcome> outcomes(world);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator =
          collective::make_cpu_communicator({.rank = static_cast<int>(rank),
                                             .world_size = static_cast<int>(world),
                                             .generation = 1,
                                             // A model this small would be read in place by nobody.
                                             .in_place_bytes = 8u << 10},
                                            std::move(links[rank]));
      Rank trainer(setting, static_cast<int>(rank));
      outcomes[rank] = trainer.train(**communicator);
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t rank = 1; rank < world; ++rank) {
    CHECK(outcomes[rank].parameters == outcomes[0].parameters);
    CHECK(outcomes[rank].norm == outcomes[0].norm);
  }
  return outcomes[0];
}

bool same(const Outcome& a, const Outcome& b) {
  return a.norm == b.norm && std::memcmp(a.parameters.data(), b.parameters.data(),
                                         a.parameters.size() * sizeof(float)) == 0;
}

std::vector<std::pair<Strategy, Mesh>> strategies(int world) {
  std::vector<std::pair<Strategy, Mesh>> all;
  for (const StrategyRow& row : strategy_table()) {
    if (!row.hybrid) {
      all.emplace_back(row.strategy, make_mesh(row.strategy, world, world, 0, 0).value());
    } else if (world == 4) {
      all.emplace_back(row.strategy, Mesh{.dp_replicate = 2, .dp_shard = 2});
    }
  }
  return all;
}

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
}  // namespace troupe::train
