#pragma once
// A small model trained by ranks that are threads, under any strategy, on the CPU or on the fake
// GPU.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/random.h"
#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/segment.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/cuda/communicator/nccl_communicator.h"
#include "train/cuda/communicator/staged_communicator.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/model/initialize.h"
#include "train/model/model.h"
#include "train/optimizer/adamw.h"
#include "train/sharding/cpu_engine_device.h"
#include "train/sharding/cuda_engine_device.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/engine.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {

inline constexpr std::int64_t kRows = 2;

inline ModelConfig small_model(bool tied) {
  const std::string text = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 512, "tie_word_embeddings": )" +
                           std::string(tied ? "true}" : "false}");
  return ModelConfig::parse(text, "config.json").value();
}

// By unit; made once, as every rank of every training begins with them.
inline const std::vector<std::vector<float>>& initial_units(bool tied) {
  const auto make = [](bool is_tied) {
    const ParameterLayout layout(small_model(is_tied));
    std::vector<std::vector<float>> units;
    for (const UnitInfo& info : layout.units()) {
      const int unit = static_cast<int>(units.size());
      initialize_unit(layout, unit, 0.1, 5,
                      units.emplace_back(static_cast<std::size_t>(info.elements)));
    }
    return units;
  };
  static const auto with_ties = make(true), without = make(false);
  return tied ? with_ties : without;
}

// Where ranks compute, and how they talk to each other.
enum class Place { kCpu, kNccl, kOverHost };

struct Setting {
  Strategy strategy = Strategy::kDdp;
  Mesh mesh;
  std::int64_t micro_batches = 4;  // of a step, over all ranks
  ReductionOrder order = ReductionOrder::kStrategy;
  DType state = DType::kF32;
  DType compute = DType::kF32;
  DType reduce = DType::kF32;
  bool tied = true;
  bool overlaps = false;
  int threads = 1;
  std::int64_t steps = 2;  // the second one begins with what the first one made
  // Of a row. With fewer than 8 tokens the CPU's attention has a GPU's bits: it never rounds to
  // bf16 then.
  std::int64_t length = 8;
  GatherLimits limits;
  bool apart = false;   // every rank on a node of its own
  bool spoilt = false;  // places of gradients hold NaN before a micro-batch begins them
  bool late = false;    // a GPU's arithmetic comes long after it was enqueued
  std::shared_ptr<const Optimizer> optimizer = nullptr;  // of CPUs; null: adamw()
  Place place = Place::kCpu;
  bool guarded = false;                 // a GPU's memory is none of the host's
  std::uint64_t lazy_streams_seed = 0;  // of FakeCudaOptions
  GraphOptions::Use graphs = GraphOptions::Use::kNever;
  // Called by a rank when it has the gradient of a unit as the last one of the first step.
  std::function<void(int rank, int unit, EngineDevice& device)> strike;
  // Where ranks that fail wait for each other before they go: what one of them hears of another's
  // failure is not that it has gone.
  std::latch* leave_together = nullptr;
};

struct Outcome {
  Status status;                  // what ended it, if something did
  Status afterwards;              // what the engine said when asked again
  std::vector<float> parameters;  // whole
  std::vector<float> gradients;   // this rank's region, of the last step
  double norm = 0;
  std::uint64_t bytes_sent = 0;           // in gathers and reductions of the last step
  std::uint64_t bytes_read_in_place = 0;  // of other ranks' memory
  std::int64_t graphs_launched = 0;
};

inline const AdamW& adamw() {
  static const AdamW optimizer({.weight_decay = 0.1});
  return optimizer;
}

inline const Optimizer& optimizer_of(const Setting& setting) {
  return setting.optimizer ? *setting.optimizer : adamw();
}

// What a rank's buffers lie in, and what computes on them.
class RankSide {
 public:
  virtual ~RankSide() = default;
  virtual Operators& operators() = 0;
  virtual std::int64_t graphs_launched() const { return 0; }
  // Filled with zeros.
  virtual std::span<std::byte> make_state(std::size_t bytes) = 0;
  virtual const memory::Segment* segment() const { return nullptr; }
  virtual std::span<std::byte> make_activations(std::size_t bytes) = 0;
  virtual std::unique_ptr<OptimizerDevice> make_updates(const RankLayout& layout,
                                                        const StateBuffers& buffers) = 0;
  // Collective. bytes: engine_bytes().
  virtual EngineDevice& form(collective::Communicator& host, std::int64_t bytes) = 0;
  // The good end. Collective.
  virtual Status end() { return {}; }
  virtual void spoil(std::span<float> values) = 0;
  // Something that takes a while comes before the arithmetic that is enqueued from now on.
  virtual void delay() {}
};

class CpuSide final : public RankSide {
 public:
  explicit CpuSide(const Setting& setting)
      : optimizer_(optimizer_of(setting)),
        arena_(setting.threads),
        operators_(make_cpu_operators(arena_)) {}
  Operators& operators() override { return *operators_; }
  std::span<std::byte> make_state(std::size_t bytes) override {
    segment_ = memory::Segment::create("engine-test", bytes).value();
    return segment_.bytes();
  }
  const memory::Segment* segment() const override { return &segment_; }
  std::span<std::byte> make_activations(std::size_t bytes) override {
    activations_.reset(allocate_huge(bytes));
    return {activations_.get(), bytes};
  }
  std::unique_ptr<OptimizerDevice> make_updates(const RankLayout& layout,
                                                const StateBuffers& buffers) override {
    return make_cpu_optimizer_device(
        OptimizerShard::of(layout, buffers, optimizer_),
        [this](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
          arena_.parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
        },
        nullptr);
  }
  EngineDevice& form(collective::Communicator& host, std::int64_t) override {
    return device_.emplace(host, *operators_);
  }
  void spoil(std::span<float> values) override { std::fill(values.begin(), values.end(), NAN); }

 private:
  const Optimizer& optimizer_;
  Arena arena_;
  std::unique_ptr<Operators> operators_;
  memory::Segment segment_;
  HugeBytes activations_;
  std::optional<CpuEngineDevice> device_;
};

class FakeGpuSide final : public RankSide {
 public:
  FakeGpuSide(int rank, Place place, GraphOptions::Use graphs)
      : place_(place),
        device_(CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), rank,
                                 MapEnvironment())
                    .value()),
        stream_(CudaStream::create(device_).value()),
        algorithms_(device_, 64 << 10),
        scratch_(take(4 << 20)),
        operators_(
            CudaOperators::create(stream_, algorithms_, scratch_, {.graphs = {.use = graphs}})
                .value()) {}
  ~FakeGpuSide() override {
    engine_device_.reset();
    communicator_.reset();
    operators_.reset();
  }
  Operators& operators() override { return *operators_; }
  std::int64_t graphs_launched() const override {
    return operators_->graphs() ? operators_->graphs()->counts().launched : 0;
  }
  std::span<std::byte> make_state(std::size_t bytes) override {
    const auto state = take(static_cast<std::int64_t>(bytes));
    operators_->zero(reinterpret_cast<float*>(state.data()),
                     static_cast<std::int64_t>(bytes / sizeof(float)));
    return state;
  }
  std::span<std::byte> make_activations(std::size_t bytes) override {
    return take(static_cast<std::int64_t>(bytes));
  }
  // Under a log over NCCL, without one over the host.
  std::unique_ptr<OptimizerDevice> make_updates(const RankLayout& layout,
                                                const StateBuffers& buffers) override {
    const std::int64_t log =
        place_ == Place::kNccl ? CudaOptimizerDevice::log_bytes(layout, buffers.state) : 0;
    auto updates =
        CudaOptimizerDevice::create(stream_, OptimizerShard::of(layout, buffers, adamw()),
                                    take(log), take(CudaOptimizerDevice::scratch_bytes(layout)))
            .value();
    REQUIRE(updates->forget_updates().ok());
    return updates;
  }
  EngineDevice& form(collective::Communicator& host, std::int64_t bytes) override {
    const auto library = device_->library();
    // Small buffers: everything goes in several pieces.
    if (place_ == Place::kNccl) {
      communicator_ = make_nccl_communicator({.library = library,
                                              .context = device_->context(),
                                              .host = &host,
                                              .form_timeout = std::chrono::seconds(30),
                                              .operation_timeout = std::chrono::seconds(30),
                                              .scratch_bytes = 256 << 10,
                                              .chunk_bytes = 64 << 10,
                                              .compared_operations = 4,
                                              .watch_interval = std::chrono::milliseconds(1)})
                          .value();
    } else {
      communicator_ = make_staged_communicator({.library = library,
                                                .context = device_->context(),
                                                .host = &host,
                                                .chunk_bytes = 128 << 10})
                          .value();
    }
    // The NCCL ranks give their engines memory, the others let them allocate it.
    return engine_device_.emplace(
        CudaEngineDeviceOptions{.device = device_,
                                .communicator = communicator_.get(),
                                .compute = &stream_,
                                .memory = take(place_ == Place::kNccl ? bytes : 0),
                                .limit = std::chrono::seconds(30)});
  }
  Status end() override { return communicator_->end(Deadline::after(std::chrono::seconds(30))); }
  void spoil(std::span<float> values) override {
    REQUIRE(device_->table().fill(stream_.get(), values.data(), 0xff,
                                  static_cast<std::int64_t>(values.size_bytes())) ==
            TROUPE_CUDA_OK);
  }
  // The scratch of operators holds nothing between two of them.
  void delay() override {
    for (int i = 0; i < 4; ++i)
      REQUIRE(device_->table().fill(stream_.get(), scratch_.data(), i,
                                    static_cast<std::int64_t>(scratch_.size())) == TROUPE_CUDA_OK);
  }

 private:
  std::span<std::byte> take(std::int64_t bytes) {
    if (bytes == 0) return {};
    memory_.push_back(
        DeviceMemory::allocate(device_, bytes, "a rank's memory", MemoryPurpose::kOther).value());
    return memory_.back().bytes().first(static_cast<std::size_t>(bytes));
  }

  const Place place_;
  std::shared_ptr<CudaDevice> device_;
  // Outlived by the streams' work: streams end first.
  std::vector<DeviceMemory> memory_;
  CudaStream stream_;
  GemmAlgorithms algorithms_;
  std::span<std::byte> scratch_;
  std::unique_ptr<CudaOperators> operators_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  std::optional<CudaEngineDevice> engine_device_;
};

inline std::unique_ptr<RankSide> make_side(const Setting& setting, int rank) {
  if (setting.place == Place::kCpu) return std::make_unique<CpuSide>(setting);
  return std::make_unique<FakeGpuSide>(rank, setting.place, setting.graphs);
}

// Writes NaN where a unit's gradient will be put and holds nothing yet; makes arithmetic late;
// tells of gradients.
class WatchedUnits final : public UnitAccess {
 public:
  // told: of complete gradients, if anybody.
  WatchedUnits(UnitAccess& inner, const Setting& setting, RankSide& side,
               std::function<void(int unit)> told)
      : inner_(inner), setting_(setting), side_(side), told_(std::move(told)) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    UnitParameters parameters = TROUPE_TRY(inner_.acquire(unit, phase));
    if (setting_.late) side_.delay();
    return parameters;
  }
  void release(int unit, Phase phase) override { inner_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override {
    const UnitGradient gradient = TROUPE_TRY(inner_.gradient(unit));
    const bool begins = begun_.insert(unit).second;
    if (begins && gradient.fresh && setting_.spoilt) side_.spoil(gradient.values);
    return gradient;
  }
  Status gradient_done(int unit) override {
    if (told_) told_(unit);
    return inner_.gradient_done(unit);
  }

 private:
  UnitAccess& inner_;
  const Setting& setting_;
  RankSide& side_;
  const std::function<void(int)> told_;
  std::set<int> begun_;
};

inline std::vector<std::int32_t> tokens_of(std::int64_t step, std::int64_t micro_batch,
                                           std::int64_t length) {
  SeededRandom random(static_cast<std::uint64_t>(step * 1000 + micro_batch));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kRows * length));
  for (auto& id : ids) id = static_cast<std::int32_t>(random.below(512));
  return ids;
}

class Rank {
 public:
  Rank(const Setting& setting, int rank)
      : setting_(setting),
        side_(make_side(setting, rank)),
        model_(make_model(small_model(setting.tied), side_->operators(),
                          {.rule = {{setting.optimizer,
                                     setting.optimizer ? setting.optimizer->rule() : nullptr}}})),
        layout_(model_->layout(), setting.strategy, setting.mesh, rank) {
    const ActivationOptions wanted{
        .rows_max = kRows, .length_max = setting.length, .compute = setting.compute};
    activations_ = std::make_unique<Activations>(
        model_->config(), wanted, side_->operators(),
        side_->make_activations(Activations::bytes_needed(model_->config(), wanted)));
    const std::size_t size = dtype_size(setting.state);
    slots_ = places_of(layout_, optimizer_of(setting), setting.state);
    std::vector<std::size_t> bytes{elements(Region::kParameters) * size,
                                   elements(Region::kGradients) * sizeof(float)};
    for (const SlotBuffer& slot : slots_)
      bytes.push_back(slot.place ? slot.place->bytes() : elements(Region::kOptimizer) * size);
    std::span<std::byte> rest =
        side_->make_state(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
    const auto take = [&](std::size_t count) {
      const auto part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    for (std::size_t i = 0; i < regions_.size(); ++i) regions_[i] = take(bytes[i]);
    for (std::size_t i = 0; i < slots_.size(); ++i)
      slots_[i].data = take(bytes[regions_.size() + i]);
    for (int unit = 0; unit < layout_.units(); ++unit) initialize(unit);
  }

  Outcome train(collective::Communicator& host) {
    Outcome outcome;
    {
      SystemClock clock;
      const EngineOptions options = engine_options();
      EngineDevice& device = side_->form(host, engine_bytes(layout_, options));
      const StateBuffers buffers = state_buffers();
      const auto updates = side_->make_updates(layout_, buffers);
      auto engine = Engine::make(layout_, options, device, clock, *updates, buffers).value();
      outcome.status = run(*engine, device, outcome);
      if (!outcome.status.ok()) {
        outcome.afterwards = engine->finish_gradients();
        if (setting_.leave_together) setting_.leave_together->arrive_and_wait();
        return outcome;
      }
      CHECK(device.synchronize().ok());
      for (const auto* communicator :
           {&host, engine->communicators().shard(), engine->communicators().replicate()})
        if (communicator)
          for (const auto& counter : communicator->counters())
            outcome.bytes_read_in_place += counter.bytes_read_in_place;
      collect(*engine, outcome);
      outcome.graphs_launched = side_->graphs_launched();
    }
    CHECK(side_->end().ok());
    return outcome;
  }

 private:
  std::size_t elements(Region region) const {
    return static_cast<std::size_t>(layout_.elements(region));
  }
  void initialize(int unit) {
    std::vector<float> own;
    if (setting_.optimizer) {
      own.resize(static_cast<std::size_t>(layout_.unit_elements(unit)));
      initialize_unit(model_->layout(), unit, 0.1, 5, own);
    }
    const std::vector<float>& whole =
        setting_.optimizer ? own : initial_units(setting_.tied)[static_cast<std::size_t>(unit)];
    const ElementRange held = layout_.sharded(Region::kParameters)
                                  ? layout_.owned(unit)
                                  : ElementRange{0, layout_.unit_elements(unit)};
    const auto values = std::span(whole).subspan(static_cast<std::size_t>(held.begin),
                                                 static_cast<std::size_t>(held.size()));
    const std::size_t size = dtype_size(setting_.state);
    std::vector<std::byte> stored(values.size() * size);
    REQUIRE(convert_from_float(values, setting_.state, stored).ok());
    const auto offset =
        static_cast<std::size_t>(layout_.offset(Region::kParameters, unit, held.begin)) * size;
    if (!stored.empty())
      side_->operators().upload(stored.data(), regions_[0].data() + offset, stored.size());
  }

  EngineOptions engine_options() const {
    const std::int64_t micro_batches =
        (setting_.micro_batches + setting_.mesh.size() - 1) / setting_.mesh.size();
    EngineOptions options;
    options.reduction = {.order = setting_.order,
                         .micro_batches = micro_batches,
                         .reduce = setting_.reduce,
                         .tied = setting_.tied,
                         .overlaps = setting_.overlaps};
    options.compute = {.state = setting_.state,
                       .compute = setting_.compute,
                       .limits = setting_.limits,
                       .tied = setting_.tied};
    options.compute.limits.reshard_after_forward = layout_.row().reshards_after_forward;
    return options;
  }
  StateBuffers state_buffers() const {
    return {.state = setting_.state,
            .parameters = regions_[0],
            .gradients = {reinterpret_cast<float*>(regions_[1].data()),
                          regions_[1].size() / sizeof(float)},
            .slots = slots_,
            .segment = side_->segment()};
  }

  Status run(Engine& engine, EngineDevice& device, Outcome& outcome) {
    TROUPE_RETURN_IF_ERROR(engine.parameters_changed(false));
    for (std::int64_t step = 1; step <= setting_.steps; ++step) {
      const std::uint64_t before = engine.communicators().algorithm_bytes_sent();
      engine.begin_step(setting_.micro_batches);
      for (std::int64_t micro_batch = 0; micro_batch < engine.reducer().micro_batches();
           ++micro_batch)
        TROUPE_RETURN_IF_ERROR(one_micro_batch(engine, device, step, micro_batch));
      TROUPE_RETURN_IF_ERROR(engine.finish_gradients());
      outcome.norm = TROUPE_TRY(engine.optimizer().norm(step)).norm;
      TROUPE_RETURN_IF_ERROR(
          engine.optimizer().update({.learning_rate = 1e-2, .updates = step}, step));
      engine.units().take_communication_seconds();
      TROUPE_RETURN_IF_ERROR(engine.parameters_changed(true));
      check_waited(engine.units().take_communication_seconds());
      CHECK(engine.units().take_communication_seconds() == 0);
      outcome.bytes_sent = engine.communicators().algorithm_bytes_sent() - before;
    }
    return {};
  }

  Status one_micro_batch(Engine& engine, EngineDevice& device, std::int64_t step,
                         std::int64_t micro_batch) {
    engine.begin_micro_batch(micro_batch);
    const std::int64_t number =
        engine.reducer().number_in_step(micro_batch, setting_.mesh.data_rank_of(layout_.rank()));
    auto ids = tokens_of(step, number, setting_.length);
    auto labels = ids;
    if (number >= setting_.micro_batches) labels.assign(ids.size(), kIgnoreLabel);
    const MicroBatch batch{.rows = kRows,
                           .length = setting_.length,
                           .ids = ids,
                           .labels = labels,
                           .position_ids = {},
                           .segment_ids = {}};
    const bool last = step == 1 && micro_batch + 1 == engine.reducer().micro_batches();
    std::function<void(int)> told;
    if (setting_.strike && last)
      told = [&](int unit) { setting_.strike(layout_.rank(), unit, device); };
    WatchedUnits units(engine.units(), setting_, *side_, told);
    const auto sum =
        model_->forward_backward(batch, units, CrossEntropyLoss(), 0.01f, *activations_);
    TROUPE_RETURN_IF_ERROR(sum.status());
    const PassSeconds seconds = engine.units().end_pass();
    CHECK(seconds.forward >= 0);
    CHECK(seconds.backward >= 0);
    return {};
  }

  void check_waited(double seconds) const {
    const bool publishes =
        layout_.sharded(Region::kOptimizer) && !layout_.sharded(Region::kParameters);
    if (setting_.mesh.dp_shard == 1) CHECK(seconds == 0);
    if (publishes && setting_.mesh.dp_shard > 1) CHECK(seconds > 0);
  }

  // Every owner's parameters, put together, and this rank's gradients.
  void collect(Engine& engine, Outcome& outcome) {
    Operators& operators = side_->operators();
    outcome.gradients.resize(elements(Region::kGradients));
    operators.download(regions_[1].data(), outcome.gradients.data(), regions_[1].size());
    outcome.parameters.resize(static_cast<std::size_t>(model_->layout().total_elements()));
    const std::size_t size = dtype_size(setting_.state);
    for (int unit = 0; unit < layout_.units(); ++unit) {
      const auto base = static_cast<std::size_t>(
          model_->layout().units()[static_cast<std::size_t>(unit)].flat_offset);
      const auto whole = std::span(outcome.parameters)
                             .subspan(base, static_cast<std::size_t>(layout_.unit_elements(unit)));
      const ElementRange own = layout_.owned(unit);
      const auto held =
          whole.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.size()));
      std::vector<std::byte> stored(held.size() * size);
      if (!stored.empty()) {
        const auto offset =
            static_cast<std::size_t>(layout_.offset(Region::kParameters, unit, own.begin)) * size;
        operators.download(regions_[0].data() + offset, stored.data(), stored.size());
      }
      REQUIRE(convert_to_float(stored, setting_.state, held).ok());
      if (auto* group = engine.communicators().host_shard()) {
        REQUIRE(group->all_gather(std::span<const float>(held), whole, layout_.owned_counts(unit))
                    .ok());
      }
    }
    CHECK(operators.failure().ok());
  }

  const Setting setting_;
  std::unique_ptr<RankSide> side_;
  std::unique_ptr<Model> model_;
  RankLayout layout_;
  std::unique_ptr<Activations> activations_;
  std::array<std::span<std::byte>, 2> regions_;  // parameters, gradients
  std::vector<SlotBuffer> slots_;
};

// Of all ranks.
inline std::vector<Outcome> train_ranks(const Setting& setting) {
  const auto world = static_cast<std::size_t>(setting.mesh.size());
  std::vector<int> nodes(world, 0);
  if (setting.apart) std::iota(nodes.begin(), nodes.end(), 0);
  if (setting.place != Place::kCpu)
    troupe::tests::fake_cuda_reset({.devices = setting.mesh.size(),
                                    .guards_memory = setting.guarded,
                                    .lazy_streams_seed = setting.lazy_streams_seed});
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
  if (setting.place != Place::kCpu) {
    troupe::tests::fake_cuda_reset();
    const auto left = troupe::tests::fake_cuda_left();
    CHECK_MESSAGE(left.empty(), (left.empty() ? std::string() : left[0]));
  }
  return outcomes;
}

// Of rank 0, which is told that all went well and the same everywhere.
inline Outcome train(const Setting& setting) {
  const std::vector<Outcome> outcomes = train_ranks(setting);
  for (const Outcome& outcome : outcomes) {
    CHECK_MESSAGE(outcome.status.ok(), outcome.status.to_string());
    CHECK(outcome.parameters == outcomes[0].parameters);
    CHECK(outcome.norm == outcomes[0].norm);
  }
  return outcomes[0];
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline bool same(const Outcome& a, const Outcome& b) {
  return a.norm == b.norm && same_bits(a.parameters, b.parameters);
}

inline std::vector<std::pair<Strategy, Mesh>> strategies(int world) {
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

}  // namespace troupe::train::tests
