// The optimizer of a GPU whose state lies in the host's memory: the CPU's bits in pieces, whatever
// ends an update, and nothing of the device's touched by the host.
#include "train/sharding/offloaded_optimizer_device.h"
#include "train/optimizer/adamw.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "runtime/base/environment.h"
#include "runtime/base/random.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cuda/device/host_transfer.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/tensor/convert.h"

namespace troupe::train::offloaded_tests {
namespace {

// Of 34,000 tokens the embedding is more than one piece.
ModelConfig model_of(int tokens) {
  return ModelConfig::parse(
             fmt::format(R"({{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": {}, "tie_word_embeddings": true}})",
                         tokens),
             "config.json")
      .value();
}

const AdamW kAdamW({.weight_decay = 0.1});
const OptimizerStep kStep{.learning_rate = 1e-2, .updates = 3, .gradient_scale = 0.5f};

using Bytes = std::vector<std::byte>;

struct Kept {
  Bytes parameters, exp_avg, exp_avg_sq;
  friend bool operator==(const Kept&, const Kept&) = default;
};

struct Case {
  Strategy strategy = Strategy::kZero3;
  int ranks = 1;
  DType kept = DType::kF32, used = DType::kF32;
  Offload offload = Offload::kOptimizer;
  int tokens = 1500;
};

// What outlives a process of the rank, the device's gradients apart.
struct RankMemory {
  RankLayout layout;
  Case of;
  std::vector<float> gradients;
  Kept kept;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  UpdateLog::Layout sizes;
  std::vector<Line> marks, undo;

  RankMemory(const ParameterLayout& model, const Case& of_case)
      : layout(model, of_case.strategy, Mesh{.dp_shard = of_case.ranks}, of_case.ranks - 1),
        of(of_case),
        sizes{.chunks = ShardedOptimizer::chunk_count(layout),
              .chunk_bytes_max = ShardedOptimizer::chunk_bytes(of_case.kept, kAdamW.slots().size()),
              .undo_slots = 1},
        marks(sizes.marks_bytes() / 64 + 1),
        undo(sizes.undo_bytes() / 64 + 1) {
    const std::size_t updated = static_cast<std::size_t>(layout.elements(Region::kOptimizer));
    // One row of numbers, shifted: random enough, and made at once.
    SeededRandom random(7);
    std::vector<float> row(1021);
    for (float& x : row) x = static_cast<float>(2.0 * random.unit() - 1.0);
    const auto numbers = [&](std::size_t count, std::size_t shift, bool positive) {
      std::vector<float> shifted(row.begin() + static_cast<std::ptrdiff_t>(shift), row.end());
      if (positive) {
        for (float& x : shifted) x = x * x;
      }
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; i += shifted.size())
        std::memcpy(values.data() + i, shifted.data(),
                    std::min(shifted.size(), count - i) * sizeof(float));
      return values;
    };
    const auto kept_as = [&](const std::vector<float>& values) {
      Bytes bytes(values.size() * dtype_size(of.kept));
      REQUIRE(convert_from_float(values, of.kept, bytes).ok());
      return bytes;
    };
    gradients = numbers(static_cast<std::size_t>(layout.elements(Region::kGradients)), 5, false);
    kept = {kept_as(numbers(updated, 11, false)), kept_as(numbers(updated, 17, false)),
            kept_as(numbers(updated, 23, true))};
  }
  StateBuffers buffers(std::span<float> of_gradients) {
    return {.state = of.kept,
            .parameters_region = Region::kOptimizer,
            .parameters = kept.parameters,
            .gradients = of_gradients,
            .slots = {{"exp_avg", kept.exp_avg}, {"exp_avg_sq", kept.exp_avg_sq}}};
  }
  // What the CPU makes of it.
  Kept updated_by_cpu() const {
    RankMemory copy = *this;
    REQUIRE(
        make_cpu_optimizer_device(OptimizerShard::of(layout, copy.buffers(copy.gradients), kAdamW),
                                  one_thread(), nullptr)
            ->update(kStep, 9)
            .ok());
    return copy.kept;
  }
  static ParallelFor one_thread() {
    return [](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
      for (std::int64_t i = 0; i < count; ++i) fn(i, 0);
    };
  }
};

// A process of the rank. The host must not touch what is the device's.
class Process {
 public:
  explicit Process(RankMemory& memory, UpdateObserver observer = {}) : memory_(memory) {
    troupe::tests::fake_cuda_reset({.guards_memory = true});
    device_ =
        CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment())
            .value();
    stream_ = CudaStream::create(device_).value();
    transfer_.emplace(HostTransfer::create(*stream_).value());
    const std::size_t gradient_bytes = memory.gradients.size() * sizeof(float);
    const std::size_t used_bytes =
        static_cast<std::size_t>(memory.layout.elements(Region::kParameters)) *
        dtype_size(memory.of.used);
    const auto gradients = take(gradient_bytes);
    REQUIRE(transfer_
                ->upload(memory.gradients.data(), gradients.data(),
                         static_cast<std::int64_t>(gradient_bytes))
                .ok());
    if (memory.of.offload == Offload::kParameters) {
      pinned_ =
          PinnedMemory::allocate(device_, static_cast<std::int64_t>(used_bytes), "test").value();
      used_ = {pinned_->data(), used_bytes};
    } else {
      used_ = take(used_bytes);
    }
    UpdateObserver seen = std::move(observer);
    log_.emplace(memory.sizes, std::as_writable_bytes(std::span(memory.marks)),
                 std::as_writable_bytes(std::span(memory.undo)));
    optimizer_ =
        OffloadedOptimizerDevice::create(
            *stream_, memory.layout,
            {.kept = memory.buffers(
                 {reinterpret_cast<float*>(gradients.data()), memory.gradients.size()}),
             .parameters = used_,
             .used = memory.of.used,
             .offload = memory.of.offload},
            kAdamW, RankMemory::one_thread(), &*log_,
            take(static_cast<std::size_t>(OffloadedOptimizerDevice::scratch_bytes(memory.layout))),
            std::move(seen))
            .value();
  }
  ~Process() {
    optimizer_.reset(), pinned_.reset(), taken_.clear(), transfer_.reset(), stream_.reset();
    device_.reset();
    CHECK(troupe::tests::fake_cuda_left().empty());
    troupe::tests::fake_cuda_reset();
  }

  OptimizerDevice& optimizer() { return *optimizer_; }
  // The rank's own parameters where units are gathered from, in the order of those that are kept.
  Bytes used() {
    Bytes whole(used_.size());
    REQUIRE(transfer_->download(used_.data(), whole.data(), std::ssize(whole)).ok());
    const std::size_t size = dtype_size(memory_.of.used);
    Bytes own;
    for (const UpdateRange& range : OptimizerShard::ranges_of(memory_.layout)) {
      const auto at = whole.begin() + range.parameters * static_cast<std::int64_t>(size);
      own.insert(own.end(), at, at + range.elements * static_cast<std::int64_t>(size));
    }
    return own;
  }

 private:
  std::span<std::byte> take(std::size_t bytes) {
    taken_.push_back(DeviceMemory::allocate(device_, static_cast<std::int64_t>(bytes), "test",
                                            MemoryPurpose::kOther)
                         .value());
    return taken_.back().bytes().first(bytes);
  }

  RankMemory& memory_;
  std::shared_ptr<CudaDevice> device_;
  std::optional<CudaStream> stream_;
  std::optional<HostTransfer> transfer_;
  std::deque<DeviceMemory> taken_;
  std::optional<PinnedMemory> pinned_;
  std::span<std::byte> used_;
  std::optional<UpdateLog> log_;
  std::unique_ptr<OffloadedOptimizerDevice> optimizer_;
};

// What is kept, as it is used.
Bytes as_used(const Kept& kept, const Case& of) {
  if (of.kept == of.used) return kept.parameters;
  Bytes narrow(kept.parameters.size() / 2);
  bf16_from_float(reinterpret_cast<const float*>(kept.parameters.data()),
                  reinterpret_cast<std::uint16_t*>(narrow.data()), std::ssize(narrow) / 2);
  return narrow;
}

constexpr Case kCases[] = {
    {.tokens = 34000},
    {.strategy = Strategy::kZero1, .ranks = 2, .used = DType::kBF16},
    {.strategy = Strategy::kZero3,
     .ranks = 3,
     .used = DType::kBF16,
     .offload = Offload::kParameters},
    {.strategy = Strategy::kZero3, .ranks = 2, .kept = DType::kBF16, .used = DType::kBF16}};

TEST_CASE("an offloaded update has the CPU's bits, and parameters are where they are used") {
  for (const Case& c : kCases) {
    const ParameterLayout layout(model_of(c.tokens));
    CAPTURE(static_cast<int>(&c - kCases));
    RankMemory memory(layout, c);
    const Kept expected = memory.updated_by_cpu();
    const std::vector<double> sums =
        make_cpu_optimizer_device(
            OptimizerShard::of(memory.layout, memory.buffers(memory.gradients), kAdamW),
            RankMemory::one_thread(), nullptr)
            ->tile_sums()
            .value();
    Process process(memory);
    REQUIRE(process.optimizer().forget_updates().ok());
    REQUIRE(process.optimizer().place_parameters().ok());
    CHECK((process.used() == as_used(memory.kept, c)));
    CHECK(process.optimizer().tile_sums().value() == sums);
    REQUIRE(process.optimizer().update(kStep, 9).ok());
    CHECK((memory.kept == expected));
    CHECK((process.used() == as_used(expected, c)));
    // Done is done.
    REQUIRE(process.optimizer().update(kStep, 9).ok());
    CHECK((memory.kept == expected));
  }
}

TEST_CASE("an offloaded update that a killed process left is finished by the next one") {
  const ParameterLayout layout(model_of(1500));
  struct Killed {};
  for (const Case& c : {kCases[1], kCases[2]}) {
    const RankMemory before(layout, c);
    const Kept expected = before.updated_by_cpu();
    // In the midst of the first tile, and of the last one: chunks that an observer is told of.
    const std::uint64_t last = static_cast<std::uint64_t>(before.sizes.chunks) - 16 + 8;
    for (const std::uint64_t chunk : {std::uint64_t{8}, last}) {
      CAPTURE(chunk);
      RankMemory memory = before;
      {
        Process process(memory, [&](std::uint64_t at, std::string_view moment) {
          // As a kill in the midst of the chunk's update would leave it.
          if (at != chunk || moment != "saved") return;
          std::memset(memory.kept.parameters.data() + at * kUpdateElements * dtype_size(c.kept),
                      0x5a, 1000);
          throw Killed{};
        });
        CHECK_THROWS_AS(static_cast<void>(process.optimizer().update(kStep, 9)), Killed);
      }
      REQUIRE_FALSE((memory.kept == expected));
      Process process(memory);
      REQUIRE(process.optimizer().update(kStep, 9).ok());
      CHECK((memory.kept == expected));
      CHECK((process.used() == as_used(expected, c)));
    }
  }
}

TEST_CASE("what fails on the way is told with the GPU and what was under way") {
  const ParameterLayout layout(model_of(1500));
  RankMemory memory(layout, {});
  Process process(memory);
  troupe::tests::fake_cuda_inject({.function = "copy", .after_calls = 1, .text = "no more"});
  const Status failed = process.optimizer().update(kStep, 9);
  CHECK(failed.message().find("GPU 0") != std::string::npos);
  CHECK(failed.message().find("no more") != std::string::npos);
  CHECK(failed.message().find("on their way to the") != std::string::npos);
  troupe::tests::fake_cuda_lose_device(0);
  CHECK(process.optimizer().update(kStep, 9).code() == Code::kUnavailable);
}

}  // namespace
}  // namespace troupe::train::offloaded_tests
