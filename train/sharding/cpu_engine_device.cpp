#include "train/sharding/cpu_engine_device.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/collective/reduce_tree.h"
#include "train/sharding/index.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

// Beyond a collective's own deadline: only a bug gets there.
constexpr auto kQueueMargin = std::chrono::seconds(60);

// Elements of bf16 parts that are widened and summed at once: in the nearest cache.
constexpr std::size_t kSumElements = 1024;

TROUPE_VECTORIZED
void add_elements(float* __restrict sum, const float* __restrict x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

std::int64_t count_of(std::span<const float> values) {
  return static_cast<std::int64_t>(values.size());
}

void widen_elements(std::span<const std::uint16_t> from, std::span<float> to) {
  float_from_bf16(from.data(), to.data(), count_of(to));
}

class CpuShardOperations final : public ShardOperations {
 public:
  // beside: pieces run beside the arithmetic.
  CpuShardOperations(Operators& operators, bool beside) : operators_(operators), beside_(beside) {}

  Status copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    TROUPE_CHECK(from.size() == to.size());
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
    return {};
  }
  Status narrow(std::span<const float> from, std::span<std::uint16_t> to) override {
    TROUPE_CHECK(from.size() == to.size());
    bf16_from_float(from.data(), to.data(), count_of(from));
    return {};
  }
  Status widen(std::span<const std::uint16_t> from, std::span<float> to) override {
    TROUPE_CHECK(from.size() == to.size());
    widen_elements(from, to);
    return {};
  }
  Status round(std::span<float> values) override {
    round_to_bf16(values.data(), values.data(), count_of(values));
    return {};
  }
  Status add(std::span<float> sum, std::span<const float> x) override {
    TROUPE_CHECK(sum.size() == x.size());
    if (beside_) {
      // The operators' threads are the backward pass's.
      add_elements(sum.data(), x.data(), count_of(sum));
    } else {
      operators_.add(sum.data(), x.data(), sum.data(), count_of(sum));
    }
    return {};
  }
  Status sum_parts(std::span<const std::uint16_t> parts, int members,
                   std::span<float> sum) override;
  int summed_parts_max() const override { return std::numeric_limits<int>::max(); }
  Status expand(const ParameterLayout& layout, int unit, std::span<const std::uint16_t> unit_bf16,
                std::span<float> vectors) override {
    expand_vectors(layout, unit, unit_bf16, vectors);
    return {};
  }

 private:
  Operators& operators_;
  const bool beside_;
};

Status CpuShardOperations::sum_parts(std::span<const std::uint16_t> parts, int members,
                                     std::span<float> sum) {
  const std::size_t count = index(members);
  TROUPE_CHECK(parts.size() == count * sum.size());
  std::vector<float> wide(count * kSumElements);
  std::vector<const std::byte*> inputs;
  for (std::size_t member = 0; member < count; ++member)
    inputs.push_back(reinterpret_cast<const std::byte*>(&wide[member * kSumElements]));
  for (std::size_t begin = 0; begin < sum.size(); begin += kSumElements) {
    const std::size_t elements = std::min(kSumElements, sum.size() - begin);
    for (std::size_t member = 0; member < count; ++member)
      widen_elements(parts.subspan(member * sum.size() + begin, elements),
                     std::span(wide).subspan(member * kSumElements, elements));
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(&sum[begin]), elements,
                            collective::DataType::kFloat32, collective::ReduceOp::kSum);
  }
  return {};
}

}  // namespace

Result<EngineGroup> CpuEngineDevice::subgroup(std::span<const int> ranks, std::string_view name) {
  auto made = TROUPE_TRY(world_.subgroup(ranks, name));
  collective::Communicator* const group = made.get();
  return EngineGroup{group, group, std::move(made)};
}

Result<WorkingMemory> CpuEngineDevice::make_memory(const WorkingBytes& bytes, bool shared) {
  return WorkingMemory::allocate(bytes, shared);
}

std::unique_ptr<CommunicationQueue> CpuEngineDevice::make_queue(bool overlaps) {
  return overlaps ? make_threaded_queue(world_.default_timeout() + kQueueMargin)
                  : make_inline_queue();
}

std::unique_ptr<ShardOperations> CpuEngineDevice::make_operations(const CommunicationQueue& queue) {
  return std::make_unique<CpuShardOperations>(operators_, queue.overlaps());
}

}  // namespace troupe::train
