// The optimizer on a GPU against the CPU's: bits, and updates that a killed process left.
#include "train/sharding/cuda_optimizer_device.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "runtime/base/environment.h"
#include "runtime/base/random.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cuda/device/device_arena.h"
#include "train/cuda/device/host_transfer.h"
#include "train/optimizer/random_rounding.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

using troupe::tests::fake_cuda_end_update;
using troupe::tests::fake_cuda_update_moments;

ModelConfig tiny_model() {
  return ModelConfig::parse(
             R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 400, "tie_word_embeddings": true})",
             "config.json")
      .value();
}

const AdamW kAdamW({.weight_decay = 0.1});
const OptimizerStep kThird{.learning_rate = 1e-2, .updates = 3, .gradient_scale = 0.5f};

// States in bf16 are rounded randomly.
OptimizerStep third(DType state) {
  OptimizerStep step = kThird;
  if (state == DType::kBF16) step.rounding_key = rounding_key(42, 9);
  return step;
}

// The regions of a rank in memory of the host, with what a step finds there.
struct HostState {
  RankLayout layout;
  DType state;
  std::vector<float> gradients;
  std::vector<std::byte> parts[3];  // parameters, exp_avg, exp_avg_sq

  HostState(const ParameterLayout& of, Strategy strategy, const Mesh& mesh, int rank, DType type)
      : layout(of, strategy, mesh, rank), state(type) {
    SeededRandom random(static_cast<std::uint64_t>(rank) + 7);
    const auto numbers = [&](std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& x : values) x = static_cast<float>(2.0 * random.unit() - 1.0);
      return values;
    };
    gradients = numbers(layout.elements(Region::kGradients));
    for (int i = 0; i < 3; ++i) {
      std::vector<float> values =
          numbers(layout.elements(i == 0 ? Region::kParameters : Region::kOptimizer));
      if (i == 2) {
        for (float& x : values) x = x * x;
      }
      parts[i].resize(values.size() * dtype_size(state));
      if (state == DType::kBF16)
        bf16_from_float(values.data(), reinterpret_cast<std::uint16_t*>(parts[i].data()),
                        std::ssize(values));
      else
        std::memcpy(parts[i].data(), values.data(), parts[i].size());
    }
  }
  OptimizerShard shard() {
    return OptimizerShard::of(layout,
                              {.state = state,
                               .parameters = parts[0],
                               .gradients = gradients,
                               .slots = {{"exp_avg", parts[1]}, {"exp_avg_sq", parts[2]}}},
                              kAdamW);
  }
  std::unique_ptr<OptimizerDevice> device(UpdateLog* log = nullptr, UpdateObserver observer = {}) {
    return make_cpu_optimizer_device(
        shard(),
        [](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
          for (std::int64_t i = 0; i < count; ++i) fn(i, 0);
        },
        log, std::move(observer));
  }
  bool same_state(const HostState& other) const {
    return parts[0] == other.parts[0] && parts[1] == other.parts[1] && parts[2] == other.parts[2];
  }
};

bool says(const Status& status, std::string_view words) {
  return status.message().find(words) != std::string::npos;
}

// A process of the rank: the device, the rank's memory of it, the optimizer.
class GpuProcess {
 public:
  static ArenaPlan plan(const HostState& host) {
    ArenaPlan plan;
    plan.add("gradients", MemoryPurpose::kGradients, std::ssize(host.gradients) * 4);
    for (int i = 0; i < 3; ++i)
      plan.add(kNames[i], MemoryPurpose::kParameters, std::ssize(host.parts[i]));
    plan.add("log", MemoryPurpose::kOptimizerState,
             CudaOptimizerDevice::log_bytes(host.layout, host.state));
    return plan;
  }

  // New memory with the host's contents, or what another process left behind a descriptor.
  explicit GpuProcess(const HostState& host, std::optional<int> descriptor = {},
                      std::int64_t bytes = 0, bool logged = true) {
    troupe::tests::fake_cuda_reset();
    device_ =
        CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment())
            .value();
    stream_ = CudaStream::create(device_).value();
    const auto outlives = DeviceArena::Outlives::kProcess;
    arena_ = descriptor ? DeviceArena::import(device_, plan(host), *descriptor, bytes).value()
                        : DeviceArena::allocate(device_, plan(host), outlives).value();
    scratch_ = DeviceMemory::allocate(device_, CudaOptimizerDevice::scratch_bytes(host.layout),
                                      "scratch", MemoryPurpose::kWorkspace)
                   .value();
    const auto gradients = arena_->part_of<float>("gradients").first(host.gradients.size());
    const auto part = [&](int i) { return arena_->part(kNames[i]).first(host.parts[i].size()); };
    transfer_ = std::make_unique<HostTransfer>(HostTransfer::create(*stream_).value());
    if (!descriptor) {
      REQUIRE(
          transfer_->upload(host.gradients.data(), gradients.data(), std::ssize(host.gradients) * 4)
              .ok());
      for (int i = 0; i < 3; ++i)
        REQUIRE(transfer_->upload(host.parts[i].data(), part(i).data(), std::ssize(host.parts[i]))
                    .ok());
      // What a device's new memory may hold: rubbish where marks and headers lie.
      const std::vector<std::byte> rubbish(128 << 10, std::byte{0xee});
      REQUIRE(
          transfer_->upload(rubbish.data(), arena_->part("log").data(), std::ssize(rubbish)).ok());
    }
    auto shard = OptimizerShard::of(host.layout,
                                    {.state = host.state,
                                     .parameters = part(0),
                                     .gradients = gradients,
                                     .slots = {{"exp_avg", part(1)}, {"exp_avg_sq", part(2)}}},
                                    kAdamW);
    optimizer_ = CudaOptimizerDevice::create(*stream_, std::move(shard),
                                             logged ? arena_->part("log") : std::span<std::byte>(),
                                             scratch_->bytes(),
                                             [this](std::uint64_t, std::string_view moment) {
                                               moments.push_back(std::string(moment));
                                             })
                     .value();
    if (!descriptor) REQUIRE(optimizer_->forget_updates().ok());
  }
  ~GpuProcess() {
    optimizer_.reset(), transfer_.reset(), scratch_.reset(), arena_.reset(), stream_.reset();
    CHECK(device_.use_count() == 1);
    device_.reset();
    CHECK(troupe::tests::fake_cuda_left().empty());
  }

  OptimizerDevice& optimizer() { return *optimizer_; }
  UniqueFd descriptor() { return arena_->export_descriptor().value(); }
  std::int64_t bytes() const { return arena_->bytes(); }
  // Of the device into `state`.
  void download(HostState& state) {
    for (int i = 0; i < 3; ++i)
      REQUIRE(transfer_
                  ->download(arena_->part(kNames[i]).data(), state.parts[i].data(),
                             std::ssize(state.parts[i]))
                  .ok());
  }

  std::vector<std::string> moments;  // that the observer was told

 private:
  static constexpr const char* kNames[] = {"parameters", "exp_avg", "exp_avg_sq"};
  std::shared_ptr<CudaDevice> device_;
  std::optional<CudaStream> stream_;
  std::optional<DeviceArena> arena_;
  std::optional<DeviceMemory> scratch_;
  std::unique_ptr<HostTransfer> transfer_;
  std::unique_ptr<CudaOptimizerDevice> optimizer_;
};

struct Case {
  Strategy strategy;
  int ranks;
  DType state;
};
constexpr Case kCases[] = {{Strategy::kDdp, 1, DType::kF32},
                           {Strategy::kZero1, 2, DType::kF32},
                           {Strategy::kZero3, 3, DType::kF32},
                           {Strategy::kZero3, 2, DType::kBF16}};

TEST_CASE("a rank's norm and update on a GPU have the CPU's bits, with a log and without") {
  const ParameterLayout layout(tiny_model());
  for (const Case& c : kCases) {
    for (int rank = 0; rank < c.ranks; ++rank) {
      const HostState before(layout, c.strategy, Mesh{.dp_shard = c.ranks}, rank, c.state);
      HostState expected = before;
      const std::vector<double> sums = expected.device()->tile_sums().value();
      REQUIRE(expected.device()->update(third(c.state), 9).ok());
      REQUIRE_FALSE(expected.same_state(before));
      for (const bool logged : {true, false}) {
        GpuProcess gpu(before, {}, 0, logged);
        CHECK(gpu.optimizer().tile_sums().value() == sums);
        REQUIRE(gpu.optimizer().update(third(c.state), 9).ok());
        HostState found = before;
        gpu.download(found);
        CHECK(found.same_state(expected));
        CHECK(gpu.moments == std::vector<std::string>{"before", "launched", "after"});
        if (!logged) continue;
        // Done is done, until it is forgotten; another step is another one.
        REQUIRE(gpu.optimizer().update(third(c.state), 9).ok());
        gpu.download(found);
        CHECK(found.same_state(expected));
        HostState further = expected;
        REQUIRE(further.device()->update(third(c.state), 10).ok());
        REQUIRE(further.device()->update(third(c.state), 9).ok());
        REQUIRE(gpu.optimizer().update(third(c.state), 10).ok());
        REQUIRE(gpu.optimizer().forget_updates().ok());
        REQUIRE(gpu.optimizer().update(third(c.state), 10).ok());
        gpu.download(found);
        CHECK(found.same_state(further));
      }
    }
  }
}

TEST_CASE("an update that a killed process left on the GPU is finished by those that import it") {
  const ParameterLayout layout(tiny_model());
  for (const Case& c : {kCases[2], kCases[3]}) {
    const HostState before(layout, c.strategy, Mesh{.dp_shard = c.ranks}, 1, c.state);
    HostState expected = before;
    REQUIRE(expected.device()->update(third(c.state), 9).ok());
    std::int64_t moments = 0;
    {
      GpuProcess gpu(before);
      fake_cuda_end_update({.moment = 0, .seed = 3});
      REQUIRE(gpu.optimizer().update(third(c.state), 9).ok());
      moments = fake_cuda_update_moments();
      HostState found = before;
      gpu.download(found);
      REQUIRE(found.same_state(expected));
    }
    for (std::int64_t life = 1; life <= 6; ++life) {
      CAPTURE(life);
      UniqueFd descriptor;
      std::int64_t bytes = 0;
      {
        GpuProcess gpu(before);
        descriptor = gpu.descriptor(), bytes = gpu.bytes();
        fake_cuda_end_update(
            {.moment = moments * life / 6, .seed = static_cast<std::uint64_t>(life)});
        const Status ended = gpu.optimizer().update(third(c.state), 9);
        CHECK(ended.code() == Code::kUnavailable);
        CHECK(says(ended, "the optimizer's update"));
        CHECK(gpu.moments.back() == "launched");
      }
      {  // It finishes some of it, and is killed too.
        GpuProcess gpu(before, descriptor.get(), bytes);
        fake_cuda_end_update({.moment = 3000 + 100 * life, .seed = 17});
        static_cast<void>(gpu.optimizer().update(third(c.state), 9));
      }
      GpuProcess gpu(before, descriptor.get(), bytes);
      REQUIRE(gpu.optimizer().update(third(c.state), 9).ok());
      HostState found = before;
      gpu.download(found);
      CHECK(found.same_state(expected));
    }
  }
}

TEST_CASE("the CPU's update is told in the midst of each tile, and finished from its log") {
  const ParameterLayout layout(tiny_model());
  for (const DType state : {DType::kF32, DType::kBF16}) {
    const HostState before(layout, Strategy::kZero3, Mesh{.dp_shard = 2}, 0, state);
    HostState expected = before;
    REQUIRE(expected.device()->update(third(state), 9).ok());
    const UpdateLog::Layout sizes{.chunks = ShardedOptimizer::chunk_count(before.layout),
                                  .chunk_bytes_max = ShardedOptimizer::chunk_bytes(state, 2),
                                  .undo_slots = 1};
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> marks(sizes.marks_bytes() / 64 + 1), undo(sizes.undo_bytes() / 64 + 1);
    const auto bytes_of = [](std::vector<Line>& lines) {
      return std::as_writable_bytes(std::span(lines));
    };
    UpdateLog log(sizes, bytes_of(marks), bytes_of(undo));
    HostState found = before;
    struct Killed {};
    std::vector<std::string> told;
    const auto dies = found.device(&log, [&](std::uint64_t chunk, std::string_view moment) {
      told.push_back(fmt::format("{} {}", chunk, moment));
      if (told.back() == "24 written") throw Killed{};
    });
    CHECK_THROWS_AS(static_cast<void>(dies->update(third(state), 9)), Killed);
    CHECK(told ==
          std::vector<std::string>{"8 saved", "8 written", "8 done", "24 saved", "24 written"});
    REQUIRE(found.device(&log)->update(third(state), 9).ok());
    CHECK(found.same_state(expected));
  }
}

TEST_CASE("a GPU that fails in an update is told by name") {
  const ParameterLayout layout(tiny_model());
  const HostState before(layout, Strategy::kDdp, Mesh{}, 0, DType::kF32);
  GpuProcess gpu(before);
  troupe::tests::fake_cuda_inject({.function = "adamw_transacted", .text = "no more of it"});
  const Status refused = gpu.optimizer().update(kThird, 9);
  CHECK(says(refused, "GPU 0"));
  CHECK(says(refused, "no more of it"));
  troupe::tests::fake_cuda_lose_device(0);
  CHECK_FALSE(gpu.optimizer().tile_sums().ok());
  CHECK_FALSE(gpu.optimizer().forget_updates().ok());
}

}  // namespace
}  // namespace troupe::train
