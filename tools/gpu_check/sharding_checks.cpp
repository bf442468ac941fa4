// Ranks that share the GPU: every strategy against every other, and against one rank.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numeric>
#include <thread>

#include "runtime/collective/cpu_communicator.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/communicator/staged_communicator.h"
#include "train/model/activations.h"
#include "train/sharding/cuda_engine_device.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/engine.h"

namespace troupe::tools::gpu {
namespace {

using train::DeviceMemory;
using train::DType;
using train::Region;

constexpr std::int64_t kRows = 2;

struct ShardingCase {
  train::Strategy strategy = train::Strategy::kDdp;
  train::Mesh mesh;
  train::ReductionOrder order = train::ReductionOrder::kStrategy;
  DType compute = DType::kF32;
  DType reduce = DType::kF32;
};

// What a rank ends with.
struct ShardingEnd {
  double norm = 0;                // of the last step
  std::vector<float> parameters;  // whole
};

train::ModelConfig sharding_model(bool rehearsal) {
  const NamedConfig small = small_models(true).front();
  if (rehearsal) return small.config;
  Result<train::ModelConfig> config = train::ModelConfig::parse(
      R"({"model_type": "qwen2", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
          "initializer_range": 0.05, "tie_word_embeddings": true})",
      "a check's config.json");
  return std::move(config).value();
}

// One rank, a thread of this process, with memory and streams of its own on the one device.
class SharingRank {
 public:
  SharingRank(std::shared_ptr<train::CudaDevice> device, const ShardingCase& given, bool rehearsal)
      : device_(std::move(device)), case_(given), rehearsal_(rehearsal) {}

  Result<ShardingEnd> train(collective::Communicator& host) {
    train::CudaStream stream = TROUPE_TRY(train::CudaStream::create(device_));
    train::GemmAlgorithms algorithms(device_, rehearsal_ ? 64 << 10 : train::kGemmWorkspaceBytes);
    const auto scratch = TROUPE_TRY(take(rehearsal_ ? 8 << 20 : 256 << 20));
    const auto operators = TROUPE_TRY(train::CudaOperators::create(stream, algorithms, scratch));
    const train::ModelConfig config = sharding_model(rehearsal_);
    const auto model = train::make_model(config, *operators);
    const train::RankLayout layout(model->layout(), case_.strategy, case_.mesh, host.rank());
    const train::ActivationOptions wanted{
        .rows_max = kRows, .length_max = length(), .compute = case_.compute};
    const auto activation_bytes = train::Activations::bytes_needed(config, wanted);
    train::Activations activations(config, wanted, *operators,
                                   TROUPE_TRY(take(static_cast<std::int64_t>(activation_bytes))));
    const train::StateBuffers buffers = TROUPE_TRY(make_state(layout, config, *operators));
    const auto updates = TROUPE_TRY(train::CudaOptimizerDevice::create(
        stream, train::OptimizerShard::of(layout, buffers),
        TROUPE_TRY(take(train::CudaOptimizerDevice::log_bytes(layout, buffers.state))),
        TROUPE_TRY(take(train::CudaOptimizerDevice::scratch_bytes(layout)))));
    TROUPE_RETURN_IF_ERROR(updates->forget_updates());
    const auto communicator = TROUPE_TRY(train::make_staged_communicator(
        {.library = device_->library(), .context = device_->context(), .host = &host}));
    train::CudaEngineDevice engine_device(
        {.device = device_, .communicator = communicator.get(), .compute = &stream});
    ShardingEnd end;
    {
      SystemClock clock;
      const auto engine = TROUPE_TRY(
          train::Engine::make(layout, options(layout), engine_device, clock, *updates, buffers));
      TROUPE_RETURN_IF_ERROR(run(*engine, layout, *model, activations, config, end));
      TROUPE_RETURN_IF_ERROR(engine_device.synchronize());
      TROUPE_RETURN_IF_ERROR(collect(*engine, layout, buffers, *operators, end));
    }
    TROUPE_RETURN_IF_ERROR(communicator->end(Deadline::after(std::chrono::seconds(60))));
    TROUPE_RETURN_IF_ERROR(operators->synchronize());
    return end;
  }

 private:
  std::int64_t length() const { return rehearsal_ ? 7 : 128; }
  static std::int64_t steps() { return 2; }
  // Of a step, over all ranks: the same whatever their number.
  static std::int64_t micro_batches() { return 4; }

  Result<std::span<std::byte>> take(std::int64_t bytes) {
    memory_.push_back(TROUPE_TRY(
        DeviceMemory::allocate(device_, bytes, "a rank's memory", train::MemoryPurpose::kOther)));
    return memory_.back().bytes().first(static_cast<std::size_t>(bytes));
  }

  train::EngineOptions options(const train::RankLayout& layout) const {
    train::EngineOptions options;
    options.reduction = {.order = case_.order,
                         .micro_batches = micro_batches() / case_.mesh.size(),
                         .reduce = case_.reduce,
                         .tied = true,
                         .overlaps = true};
    options.compute = {.compute = case_.compute, .tied = true};
    options.compute.limits.reshard_after_forward = layout.row().reshards_after_forward;
    return options;
  }

  Result<train::StateBuffers> make_state(const train::RankLayout& layout,
                                         const train::ModelConfig& config,
                                         train::Operators& operators) {
    const std::vector<float> start = initial_parameters(config, layout.layout(), 3);
    const auto region = [&](Region of) -> Result<std::span<float>> {
      const auto bytes = TROUPE_TRY(take(layout.elements(of) * 4));
      const std::span<float> values(reinterpret_cast<float*>(bytes.data()), bytes.size() / 4);
      operators.zero(values.data(), layout.elements(of));
      return values;
    };
    const auto parameters = TROUPE_TRY(region(Region::kParameters));
    const auto gradients = TROUPE_TRY(region(Region::kGradients));
    const auto first = TROUPE_TRY(region(Region::kOptimizer));
    const auto second = TROUPE_TRY(region(Region::kOptimizer));
    for (int unit = 0; unit < layout.units(); ++unit) {
      const train::ElementRange held = layout.sharded(Region::kParameters)
                                           ? layout.owned(unit)
                                           : train::ElementRange{0, layout.unit_elements(unit)};
      if (held.size() == 0) continue;
      const std::int64_t flat =
          layout.layout().units()[static_cast<std::size_t>(unit)].flat_offset + held.begin;
      operators.upload(start.data() + flat,
                       parameters.data() + layout.offset(Region::kParameters, unit, held.begin),
                       static_cast<std::size_t>(held.size()) * 4);
    }
    TROUPE_RETURN_IF_ERROR(operators.failure());
    return train::StateBuffers{.parameters = std::as_writable_bytes(parameters),
                               .gradients = gradients,
                               .exp_avg = std::as_writable_bytes(first),
                               .exp_avg_sq = std::as_writable_bytes(second)};
  }

  Status run(train::Engine& engine, const train::RankLayout& layout, train::Model& model,
             train::Activations& activations, const train::ModelConfig& config, ShardingEnd& end) {
    TROUPE_RETURN_IF_ERROR(engine.parameters_changed(false));
    for (std::int64_t step = 1; step <= steps(); ++step) {
      engine.begin_step(micro_batches());
      for (std::int64_t turn = 0; turn < engine.reducer().turns(); ++turn) {
        engine.begin_turn(turn);
        const std::int64_t leaf =
            engine.reducer().leaf(turn, layout.mesh().data_rank_of(layout.rank()));
        const CountingBatch batch(kRows, length(), config.vocab_size,
                                  static_cast<int>(step * micro_batches() + leaf), false);
        TROUPE_RETURN_IF_ERROR(model
                                   .forward_backward(batch.micro(), engine.units(),
                                                     train::CrossEntropyLoss(), 0.01f, activations)
                                   .status());
      }
      TROUPE_RETURN_IF_ERROR(engine.finish_gradients());
      end.norm = TROUPE_TRY(engine.optimizer().norm()).norm;
      TROUPE_RETURN_IF_ERROR(
          engine.optimizer().update({.learning_rate = 1e-3, .step = step}, step));
      TROUPE_RETURN_IF_ERROR(engine.parameters_changed(true));
    }
    return {};
  }

  // Every owner's parameters, put together.
  Status collect(train::Engine& engine, const train::RankLayout& layout,
                 const train::StateBuffers& buffers, train::Operators& operators,
                 ShardingEnd& end) {
    end.parameters.resize(static_cast<std::size_t>(layout.layout().total_elements()));
    const auto* parameters = reinterpret_cast<const float*>(buffers.parameters.data());
    for (int unit = 0; unit < layout.units(); ++unit) {
      const auto whole =
          std::span(end.parameters)
              .subspan(static_cast<std::size_t>(
                           layout.layout().units()[static_cast<std::size_t>(unit)].flat_offset),
                       static_cast<std::size_t>(layout.unit_elements(unit)));
      const train::ElementRange own = layout.owned(unit);
      const auto held =
          whole.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.size()));
      if (!held.empty())
        operators.download(parameters + layout.offset(Region::kParameters, unit, own.begin),
                           held.data(), held.size_bytes());
      if (auto* group = engine.communicators().host_shard())
        TROUPE_RETURN_IF_ERROR(
            group->all_gather(std::span<const float>(held), whole, layout.owned_counts(unit)));
    }
    return operators.failure();
  }

  const std::shared_ptr<train::CudaDevice> device_;
  const ShardingCase case_;
  const bool rehearsal_;
  std::vector<DeviceMemory> memory_;  // ends after what uses it
};

// All ranks' ends, which must be the same: that of one.
Result<ShardingEnd> train_ranks(Bench& bench, const ShardingCase& given) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const auto ranks = static_cast<std::size_t>(given.mesh.size());
  auto links = TROUPE_TRY(collective::make_local_links(std::vector<int>(ranks, 0)));
  std::vector<Result<ShardingEnd>> ends(ranks, Status(Code::kInternal, "not run"));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto host = collective::make_cpu_communicator({.rank = static_cast<int>(rank),
                                                     .world_size = static_cast<int>(ranks),
                                                     .generation = 1,
                                                     .name = "gpu-check"},
                                                    std::move(links[rank]));
      ends[rank] = host.ok() ? SharingRank(gpu->device, given, bench.rehearsal()).train(**host)
                             : Result<ShardingEnd>(host.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string what = train::describe(given.strategy, given.mesh);
  for (const auto& end : ends) {
    if (!end.ok()) return end.status().with("strategy", what);
    if (!std::isfinite(end->norm))
      return error(Code::kInternal, "{}: the norm is {}", what, end->norm);
    if (end->norm != ends[0]->norm || end->parameters != ends[0]->parameters)
      return error(Code::kInternal, "{}: the ranks differ", what);
  }
  return ends[0];
}

std::vector<std::pair<train::Strategy, train::Mesh>> strategies(int ranks) {
  std::vector<std::pair<train::Strategy, train::Mesh>> all;
  for (const train::StrategyRow& row : train::strategy_table()) {
    const train::Mesh mesh = row.hybrid ? train::Mesh{.dp_replicate = 2, .dp_shard = ranks / 2}
                             : row.strategy == train::Strategy::kDdp
                                 ? train::Mesh{.dp_replicate = ranks}
                                 : train::Mesh{.dp_shard = ranks};
    if (!row.hybrid || ranks >= 4) all.emplace_back(row.strategy, mesh);
  }
  return all;
}

// Both orders that promise bits. across: also between one rank and several.
Check strategies_check(DType compute, bool across) {
  const char* type = compute == DType::kBF16 ? "bf16" : "f32";
  return {
      .name = fmt::format("sharding/{} {}", across ? "across world sizes" : "strategies", type),
      .what = across ? "norm and parameters after two steps of 1, 2 and 4 ranks on this GPU, under "
                       "every strategy: the same bits"
                     : "norm and parameters after two steps of 2 and 4 ranks on this GPU: the same "
                       "bits under every strategy, near one rank's",
      .seconds = 5,
      .run = [compute, across](Bench& bench) -> Result<Figure> {
        ShardingCase given{.mesh = {},
                           .order = across ? train::ReductionOrder::kAcrossWorldSizes
                                           : train::ReductionOrder::kStrategy,
                           .compute = compute,
                           .reduce = compute};
        const ShardingEnd alone = TROUPE_TRY(train_ranks(bench, given));
        int differing = 0, cases = 0;
        double farthest = 0;
        std::string which;
        for (const int ranks : {2, 4}) {
          std::optional<ShardingEnd> first;
          if (across) first = alone;
          for (const auto& [strategy, mesh] : strategies(ranks)) {
            if (bench.rehearsal() && ranks == 4 && !train::row_of(strategy).hybrid) continue;
            given.strategy = strategy;
            given.mesh = mesh;
            const ShardingEnd end = TROUPE_TRY(train_ranks(bench, given));
            farthest = std::max(farthest, std::abs(end.norm / alone.norm - 1));
            if (!first) first = end;
            ++cases;
            if (end.norm == first->norm && end.parameters == first->parameters) continue;
            ++differing;
            which += " " + train::describe(strategy, mesh);
          }
        }
        // Without the tree over micro-batches one rank adds in another order, and rounds elsewhere.
        const double tolerance = compute == DType::kBF16 ? 2e-2 : 1e-4;
        if (farthest > tolerance)
          return error(Code::kInternal, "a norm is {:.2g} of itself from one rank's", farthest);
        return Figure{.value = static_cast<double>(differing),
                      .unit = "strategies that differ",
                      .bar = Figure::Bar::kAtMost,
                      .bar_value = 0,
                      .text = fmt::format("{} cases, the norm at most {:.1g} from one rank's{}",
                                          cases, farthest, which.empty() ? "" : ";" + which)};
      }};
}

}  // namespace

void add_sharding_checks(std::vector<Check>& checks) {
  for (const bool across : {false, true})
    for (const DType compute : {DType::kF32, DType::kBF16})
      checks.push_back(strategies_check(compute, across));
}

}  // namespace troupe::tools::gpu
