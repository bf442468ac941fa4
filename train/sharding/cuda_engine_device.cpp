#include "train/sharding/cuda_engine_device.h"

#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/waiting.h"
#include "train/sharding/index.h"
#include "train/sharding/stream_queue.h"

namespace troupe::train {
namespace {

std::int64_t elements_of(std::span<const float> values) {
  return static_cast<std::int64_t>(values.size());
}

// Enqueues on the communicator's stream, between its collectives.
class CudaShardOperations final : public ShardOperations {
 public:
  CudaShardOperations(const CudaDevice& device, TroupeCudaStream* stream)
      : device_(device), stream_(stream) {}

  Status copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    TROUPE_CHECK(from.size() == to.size());
    if (to.empty()) return {};
    return check(
        table().copy(stream_, from.data(), to.data(), static_cast<std::int64_t>(to.size())),
        "copying a part of a unit");
  }
  Status narrow(std::span<const float> from, std::span<std::uint16_t> to) override {
    TROUPE_CHECK(from.size() == to.size());
    if (to.empty()) return {};
    return check(table().convert(stream_, from.data(), TROUPE_CUDA_F32, to.data(), TROUPE_CUDA_BF16,
                                 elements_of(from)),
                 "rounding a part of a unit to bf16");
  }
  Status widen(std::span<const std::uint16_t> from, std::span<float> to) override {
    TROUPE_CHECK(from.size() == to.size());
    if (to.empty()) return {};
    return check(table().convert(stream_, from.data(), TROUPE_CUDA_BF16, to.data(), TROUPE_CUDA_F32,
                                 elements_of(to)),
                 "widening a part of a unit to fp32");
  }
  Status round(std::span<float> values) override {
    if (values.empty()) return {};
    return check(table().round_to_bf16(stream_, values.data(), values.data(), elements_of(values)),
                 "rounding gradients to bf16");
  }
  Status add(std::span<float> sum, std::span<const float> x) override {
    TROUPE_CHECK(sum.size() == x.size());
    if (sum.empty()) return {};
    return check(
        table().add(stream_, TROUPE_CUDA_F32, sum.data(), x.data(), sum.data(), elements_of(sum)),
        "adding gradients");
  }
  Status sum_parts(std::span<const std::uint16_t> parts, int members,
                   std::span<float> sum) override {
    TROUPE_CHECK(parts.size() == index(members) * sum.size() && members <= summed_parts_max());
    if (sum.empty()) return {};
    std::vector<const void*> each;
    for (std::size_t member = 0; member < index(members); ++member)
      each.push_back(parts.data() + member * sum.size());
    return check(table().tree_sum(stream_, each.data(), members, TROUPE_CUDA_BF16, sum.data(),
                                  TROUPE_CUDA_F32, elements_of(sum)),
                 "summing the gradients of a shard group");
  }
  int summed_parts_max() const override { return TROUPE_CUDA_PARTS_MAX; }
  Status expand(const ParameterLayout& layout, int unit, std::span<const std::uint16_t> unit_bf16,
                std::span<float> vectors) override;

 private:
  const TroupeCudaTable& table() const { return device_.table(); }
  Status check(int code, std::string_view what) const { return device_.status(code, what); }

  const CudaDevice& device_;
  TroupeCudaStream* const stream_;
};

Status CudaShardOperations::expand(const ParameterLayout& layout, int unit,
                                   std::span<const std::uint16_t> unit_bf16,
                                   std::span<float> vectors) {
  const UnitInfo& info = layout.units()[index(unit)];
  TROUPE_CHECK(unit_bf16.size() == index(info.elements) &&
               vectors.size() == index(info.vector_elements));
  for (const ParameterInfo& parameter : layout.parameters(unit)) {
    if (parameter.vector_offset < 0) continue;
    TROUPE_RETURN_IF_ERROR(
        widen(unit_bf16.subspan(index(parameter.offset_elements), index(parameter.elements)),
              vectors.subspan(index(parameter.vector_offset), index(parameter.elements))));
  }
  return {};
}

// Holds an engine's memory until nothing uses it any more. Where that cannot be waited for, it is
// left where it is: giving it back would pull it away from under what runs.
class MemoryInUse {
 public:
  MemoryInUse(const CudaEngineDeviceOptions& options, std::unique_ptr<DeviceMemory> memory)
      : device_(options.device),
        communication_(options.communicator->stream()),
        compute_(options.compute->get()),
        memory_(std::move(memory)) {}
  ~MemoryInUse() {
    const TroupeCudaTable& table = device_->table();
    const bool unused = drained(table, communication_) && drained(table, compute_);
    if (!unused) static_cast<void>(memory_.release());
  }
  MemoryInUse(const MemoryInUse&) = delete;
  MemoryInUse& operator=(const MemoryInUse&) = delete;

 private:
  const std::shared_ptr<CudaDevice> device_;
  TroupeCudaStream* const communication_;
  TroupeCudaStream* const compute_;
  std::unique_ptr<DeviceMemory> memory_;  // null: somebody else's
};

EngineGroup group_of(DeviceCommunicator& communicator) {
  return {&communicator, &communicator.host(), nullptr};
}

}  // namespace

CudaEngineDevice::CudaEngineDevice(const CudaEngineDeviceOptions& options) : options_(options) {
  TROUPE_CHECK(options_.device && options_.communicator && options_.compute);
}

EngineGroup CudaEngineDevice::world() { return group_of(*options_.communicator); }

Result<EngineGroup> CudaEngineDevice::subgroup(std::span<const int> ranks, std::string_view name) {
  auto made = TROUPE_TRY(options_.communicator->device_subgroup(ranks, name));
  EngineGroup group = group_of(*made);
  group.owned = std::move(made);
  return group;
}

Result<WorkingMemory> CudaEngineDevice::make_memory(const WorkingBytes& bytes, bool) {
  std::unique_ptr<DeviceMemory> allocated;
  std::span<std::byte> stretch = options_.memory;
  if (stretch.empty() && bytes.total() > 0) {
    allocated = std::make_unique<DeviceMemory>(TROUPE_TRY(DeviceMemory::allocate(
        options_.device, bytes.total(), "gathered parameters and gradients on their way",
        MemoryPurpose::kCommunication)));
    stretch = allocated->bytes();
  }
  if (static_cast<std::int64_t>(stretch.size()) < bytes.total())
    return error(Code::kFailedPrecondition,
                 "{}: {} bytes are given for gathered parameters and gradients on their way, which "
                 "need {} (engine_bytes)",
                 options_.device->name(), stretch.size(), bytes.total());
  return WorkingMemory::over(stretch, bytes,
                             std::make_shared<MemoryInUse>(options_, std::move(allocated)));
}

std::unique_ptr<CommunicationQueue> CudaEngineDevice::make_queue(bool) {
  return make_stream_queue({.library = options_.device->library(),
                            .context = options_.device->context(),
                            .device = options_.device->name(),
                            .communicator = options_.communicator,
                            .compute = options_.compute->get(),
                            .limit = options_.limit});
}

std::unique_ptr<ShardOperations> CudaEngineDevice::make_operations(const CommunicationQueue&) {
  return std::make_unique<CudaShardOperations>(*options_.device, options_.communicator->stream());
}

Status CudaEngineDevice::synchronize() {
  TROUPE_RETURN_IF_ERROR(options_.communicator->settle(Deadline::after(options_.limit)));
  // What followed the last collective on its stream, too.
  TROUPE_RETURN_IF_ERROR(options_.communicator->lead(options_.compute->get()));
  return options_.compute->wait("what an engine enqueued", options_.limit);
}

}  // namespace troupe::train
