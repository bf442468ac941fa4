// Ranks that share the GPU: every strategy against every other, and against one rank.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <thread>

#include "runtime/collective/cpu_communicator.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/device_model.h"
#include "train/cpu/arena.h"
#include "train/cuda/communicator/staged_communicator.h"
#include "train/model/activations.h"
#include "train/sharding/cuda_engine_device.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/engine.h"
#include "train/sharding/offloaded_optimizer_device.h"

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
  train::Offload offload = train::Offload::kNothing;
  bool large = false;  // a model whose update takes time
};

// What a rank ends with.
struct ShardingEnd {
  double seconds = 0;             // of the last step: passes, and the update until it is everywhere
  double update_seconds = 0;      // of its update
  double norm = 0;                // of the last step
  std::vector<float> parameters;  // whole
};

train::ModelConfig sharding_model(bool rehearsal, bool large) {
  const NamedConfig small = small_models(true).front();
  if (rehearsal) return small.config;
  if (large) {
    Result<train::ModelConfig> config = train::ModelConfig::parse(
        R"({"model_type": "qwen2", "vocab_size": 16384, "hidden_size": 1024,
            "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 2, "initializer_range": 0.05, "tie_word_embeddings": true})",
        "a check's config.json");
    return std::move(config).value();
  }
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
      : device_(std::move(device)),
        case_(given),
        rehearsal_(rehearsal),
        // Ranks share the machine's cores.
        threads_(std::max(
            1, static_cast<int>(std::thread::hardware_concurrency()) / given.mesh.size())) {}

  Result<ShardingEnd> train(collective::Communicator& host) {
    train::CudaStream stream = TROUPE_TRY(train::CudaStream::create(device_));
    train::GemmAlgorithms algorithms(device_, rehearsal_ ? 64 << 10 : train::kGemmWorkspaceBytes);
    const auto scratch = TROUPE_TRY(take(rehearsal_ ? 8 << 20 : 256 << 20));
    const auto operators = TROUPE_TRY(train::CudaOperators::create(stream, algorithms, scratch));
    const train::ModelConfig config = sharding_model(rehearsal_, case_.large);
    const auto model = train::make_model(config, *operators);
    const train::RankLayout layout(model->layout(), case_.strategy, case_.mesh, host.rank());
    const train::ActivationOptions wanted{
        .rows_max = kRows, .length_max = length(), .compute = case_.compute};
    const auto activation_bytes = train::Activations::bytes_needed(config, wanted);
    train::Activations activations(config, wanted, *operators,
                                   TROUPE_TRY(take(static_cast<std::int64_t>(activation_bytes))));
    const train::StateBuffers buffers = TROUPE_TRY(make_state(layout, config, *operators));
    const auto updates = TROUPE_TRY(make_updates(stream, layout, buffers));
    TROUPE_RETURN_IF_ERROR(updates->forget_updates());
    TROUPE_RETURN_IF_ERROR(updates->place_parameters());
    const auto communicator = TROUPE_TRY(train::make_staged_communicator(
        {.library = device_->library(), .context = device_->context(), .host = &host}));
    train::CudaEngineDevice engine_device(
        {.device = device_, .communicator = communicator.get(), .compute = &stream});
    ShardingEnd end;
    {
      SystemClock clock;
      const auto engine = TROUPE_TRY(
          train::Engine::make(layout, options(layout), engine_device, clock, *updates, buffers));
      TROUPE_RETURN_IF_ERROR(run(*engine, engine_device, layout, *model, activations, config, end));
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

  // Of the host's, zeroed.
  std::span<std::byte> take_of_host(std::int64_t bytes) {
    host_memory_.emplace_back(static_cast<std::size_t>(bytes + 63) / 64);
    return std::as_writable_bytes(std::span(host_memory_.back()))
        .first(static_cast<std::size_t>(bytes));
  }

  bool offloads() const { return case_.offload != train::Offload::kNothing; }

  // Also makes what is offloaded: parameters and moments in the host's memory.
  Result<std::unique_ptr<train::OptimizerDevice>> make_updates(train::CudaStream& stream,
                                                               const train::RankLayout& layout,
                                                               const train::StateBuffers& buffers) {
    if (!offloads()) {
      return std::unique_ptr<train::OptimizerDevice>(TROUPE_TRY(train::CudaOptimizerDevice::create(
          stream, train::OptimizerShard::of(layout, buffers, adamw_),
          TROUPE_TRY(take(train::CudaOptimizerDevice::log_bytes(layout, buffers.state))),
          TROUPE_TRY(take(train::CudaOptimizerDevice::scratch_bytes(layout))))));
    }
    const train::UpdateLog::Layout chunks{
        .chunks = train::ShardedOptimizer::chunk_count(layout),
        .chunk_bytes_max = train::ShardedOptimizer::chunk_bytes(DType::kF32, adamw_.slots().size()),
        .undo_slots = threads_};
    log_.emplace(chunks, take_of_host(static_cast<std::int64_t>(chunks.marks_bytes())),
                 take_of_host(static_cast<std::int64_t>(chunks.undo_bytes())));
    arena_.emplace(threads_);
    return std::unique_ptr<train::OptimizerDevice>(
        TROUPE_TRY(train::OffloadedOptimizerDevice::create(
            stream, layout,
            {.kept = kept_,
             .parameters = buffers.parameters,
             .used = case_.compute,
             .offload = case_.offload},
            adamw_,
            [this](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
              arena_->parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
            },
            &*log_, TROUPE_TRY(take(train::OffloadedOptimizerDevice::scratch_bytes(layout))))));
  }

  train::EngineOptions options(const train::RankLayout& layout) const {
    train::EngineOptions options;
    options.reduction = {.order = case_.order,
                         .micro_batches = micro_batches() / case_.mesh.size(),
                         .reduce = case_.reduce,
                         .tied = true,
                         .overlaps = true};
    options.compute = {.compute = case_.compute, .tied = true};
    if (offloads()) options.compute.state = case_.compute;
    options.compute.from_host = case_.offload == train::Offload::kParameters;
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
    const auto gradients = TROUPE_TRY(region(Region::kGradients));
    if (offloads()) return make_offloaded_state(layout, start, gradients);
    const auto parameters = TROUPE_TRY(region(Region::kParameters));
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
                               .slots = {{adamw_.slots()[0], std::as_writable_bytes(first)},
                                         {adamw_.slots()[1], std::as_writable_bytes(second)}}};
  }

  // What is updated in kept_; the engine's buffers.
  Result<train::StateBuffers> make_offloaded_state(const train::RankLayout& layout,
                                                   std::span<const float> start,
                                                   std::span<float> gradients) {
    const std::int64_t updated = layout.elements(Region::kOptimizer) * 4;
    kept_ = {.parameters_region = Region::kOptimizer,
             .parameters = take_of_host(updated),
             .gradients = gradients,
             .slots = {{adamw_.slots()[0], take_of_host(updated)},
                       {adamw_.slots()[1], take_of_host(updated)}}};
    auto* const masters = reinterpret_cast<float*>(kept_.parameters.data());
    for (int unit = 0; unit < layout.units(); ++unit) {
      const train::ElementRange own = layout.updated(unit);
      const std::int64_t flat =
          layout.layout().units()[static_cast<std::size_t>(unit)].flat_offset + own.begin;
      std::copy_n(start.data() + flat, own.size(),
                  masters + layout.offset(Region::kOptimizer, unit, own.begin));
    }
    const std::int64_t used = layout.elements(Region::kParameters) *
                              static_cast<std::int64_t>(train::dtype_size(case_.compute));
    train::StateBuffers buffers{.state = case_.compute, .gradients = gradients};
    if (case_.offload == train::Offload::kParameters) {
      pinned_ = TROUPE_TRY(train::PinnedMemory::allocate(device_, used, "parameters of a check"));
      buffers.parameters = {pinned_->data(), static_cast<std::size_t>(used)};
    } else {
      buffers.parameters = TROUPE_TRY(take(used));
    }
    return buffers;
  }

  Status run(train::Engine& engine, train::EngineDevice& device, const train::RankLayout& layout,
             train::Model& model, train::Activations& activations, const train::ModelConfig& config,
             ShardingEnd& end) {
    const SystemClock clock;
    const auto seconds_since = [&](TimePoint began) {
      return std::chrono::duration<double>(clock.now() - began).count();
    };
    TROUPE_RETURN_IF_ERROR(engine.parameters_changed(offloads()));
    for (std::int64_t step = 1; step <= steps(); ++step) {
      TROUPE_RETURN_IF_ERROR(device.synchronize());
      const TimePoint began = clock.now();
      engine.begin_step(micro_batches());
      for (std::int64_t micro_batch = 0; micro_batch < engine.reducer().micro_batches();
           ++micro_batch) {
        engine.begin_micro_batch(micro_batch);
        const std::int64_t leaf =
            engine.reducer().number_in_step(micro_batch, layout.mesh().data_rank_of(layout.rank()));
        const CountingBatch batch(kRows, length(), config.vocab_size,
                                  static_cast<int>(step * micro_batches() + leaf), false);
        TROUPE_RETURN_IF_ERROR(model
                                   .forward_backward(batch.micro(), engine.units(),
                                                     train::CrossEntropyLoss(), 0.01f, activations)
                                   .status());
      }
      TROUPE_RETURN_IF_ERROR(engine.finish_gradients());
      end.norm = TROUPE_TRY(engine.optimizer().norm()).norm;
      const TimePoint updates = clock.now();
      TROUPE_RETURN_IF_ERROR(
          engine.optimizer().update({.learning_rate = 1e-3, .updates = step}, step));
      end.update_seconds = seconds_since(updates);
      TROUPE_RETURN_IF_ERROR(engine.parameters_changed(true));
      TROUPE_RETURN_IF_ERROR(device.synchronize());
      end.seconds = seconds_since(began);
    }
    return {};
  }

  // Every owner's parameters, put together.
  Status collect(train::Engine& engine, const train::RankLayout& layout,
                 const train::StateBuffers& buffers, train::Operators& operators,
                 ShardingEnd& end) {
    end.parameters.resize(static_cast<std::size_t>(layout.layout().total_elements()));
    const auto* parameters = reinterpret_cast<const float*>(offloads() ? kept_.parameters.data()
                                                                       : buffers.parameters.data());
    for (int unit = 0; unit < layout.units(); ++unit) {
      const auto whole =
          std::span(end.parameters)
              .subspan(static_cast<std::size_t>(
                           layout.layout().units()[static_cast<std::size_t>(unit)].flat_offset),
                       static_cast<std::size_t>(layout.unit_elements(unit)));
      const train::ElementRange own = layout.owned(unit);
      const auto held =
          whole.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.size()));
      if (!held.empty() && offloads())
        std::copy_n(parameters + layout.offset(Region::kOptimizer, unit, own.begin), held.size(),
                    held.data());
      else if (!held.empty())
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
  const int threads_;  // of the host, that update what is offloaded
  // All of it ends after what uses it.
  std::vector<DeviceMemory> memory_;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::deque<std::vector<Line>> host_memory_;
  std::optional<train::PinnedMemory> pinned_;
  train::StateBuffers kept_;
  const train::AdamW adamw_{{}};
  std::optional<train::UpdateLog> log_;
  std::optional<train::Arena> arena_;
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

Check offload_check(DType compute) {
  return {
      .name = fmt::format("sharding/offload {}", compute == DType::kBF16 ? "bf16" : "f32"),
      .what =
          "norm and parameters after two steps of 1 and 2 ranks on this GPU, with optimizer "
          "state and with parameters in the host's memory: the bits of those without",
      .seconds = 5,
      .run = [compute](Bench& bench) -> Result<Figure> {
        int differing = 0, cases = 0;
        std::string which;
        for (const int ranks : {1, 2}) {
          for (const auto& [strategy, mesh] : strategies(ranks)) {
            if (bench.rehearsal() && strategy != train::Strategy::kZero1 &&
                strategy != train::Strategy::kZero3)
              continue;
            ShardingCase given{.strategy = strategy, .mesh = mesh, .compute = compute};
            const ShardingEnd without = TROUPE_TRY(train_ranks(bench, given));
            for (const auto offload : {train::Offload::kOptimizer, train::Offload::kParameters}) {
              given.offload = offload;
              if (offload == train::Offload::kParameters && !train::offloads_parameters(strategy))
                continue;
              const ShardingEnd end = TROUPE_TRY(train_ranks(bench, given));
              ++cases;
              if (end.norm == without.norm && end.parameters == without.parameters) continue;
              ++differing;
              which += " " + train::describe(strategy, mesh);
            }
          }
        }
        return Figure{.value = static_cast<double>(differing),
                      .unit = "cases that differ",
                      .bar = Figure::Bar::kAtMost,
                      .bar_value = 0,
                      .text = fmt::format("{} cases{}", cases, which.empty() ? "" : ";" + which)};
      }};
}

Check offload_rate_check() {
  return {.name = "sharding/offload rate",
          .what =
              "a step of one rank in bf16 with optimizer state, and with parameters, in the host's "
              "memory: how long, and how long its update; no bar",
          .seconds = 8,
          .run = [](Bench& bench) -> Result<Figure> {
            std::string text;
            double seconds = 0;
            for (const auto& [offload, name] :
                 {std::pair(train::Offload::kNothing, "nothing"),
                  std::pair(train::Offload::kOptimizer, "the optimizer's state"),
                  std::pair(train::Offload::kParameters, "parameters too")}) {
              const ShardingEnd end =
                  TROUPE_TRY(train_ranks(bench, {.strategy = train::Strategy::kZero3,
                                                 .mesh = {},
                                                 .compute = DType::kBF16,
                                                 .offload = offload,
                                                 .large = true}));
              if (offload == train::Offload::kOptimizer) seconds = end.seconds;
              text += fmt::format("{}{} offloaded: {:.0f} ms, its update {:.0f} ms",
                                  text.empty() ? "" : "; ", name, 1e3 * end.seconds,
                                  1e3 * end.update_seconds);
            }
            return Figure{.value = 1e3 * seconds,
                          .unit = "ms a step",
                          .bar = Figure::Bar::kNone,
                          .bar_value = 0,
                          .text = text};
          }};
}

}  // namespace

void add_sharding_checks(std::vector<Check>& checks) {
  for (const bool across : {false, true})
    for (const DType compute : {DType::kF32, DType::kBF16})
      checks.push_back(strategies_check(compute, across));
  for (const DType compute : {DType::kF32, DType::kBF16}) checks.push_back(offload_check(compute));
  checks.push_back(offload_rate_check());
}

}  // namespace troupe::tools::gpu
