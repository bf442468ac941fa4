#include "train/sharding/cuda_optimizer_device.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

// Scratch memory: what the sums take, then the tables of the update, each aligned.
std::int64_t sums_bytes(std::int64_t tiles) {
  constexpr std::int64_t kAlign = 256;
  return (CudaOptimizer::scratch_bytes(tiles) + kAlign - 1) / kAlign * kAlign;
}

std::int64_t elements_in(std::span<const UpdateRange> ranges) {
  std::int64_t elements = 0;
  for (const UpdateRange& range : ranges) elements += range.elements;
  return elements;
}

}  // namespace

std::int64_t CudaOptimizerDevice::log_bytes(const RankLayout& layout, DType state) {
  return TransactedUpdate::log_bytes(
      elements_in(OptimizerShard::ranges_of(layout)) / kUpdateElements, state);
}

std::int64_t CudaOptimizerDevice::scratch_bytes(const RankLayout& layout) {
  const std::vector<UpdateRange> ranges = OptimizerShard::ranges_of(layout);
  return sums_bytes(elements_in(ranges) / kTileElements) +
         TransactedUpdate::scratch_bytes(std::ssize(ranges), layout.layout().groups());
}

Status CudaOptimizerDevice::check(const Optimizer& optimizer, const ParameterGroups& groups) {
  constexpr const char* kWayOut =
      "let the host update it (troupe.offload: optimizer), or train on CPUs (troupe.device: cpu)";
  if (!dynamic_cast<const AdamW*>(&optimizer)) {
    return error(Code::kUnsupported,
                 "there is no {} on GPUs, AdamW is the only optimizer there: use optim: "
                 "adamw_torch, {}",
                 optimizer.name(), kWayOut);
  }
  for (const ParameterGroup& group : groups.groups()) {
    if (group.learning_rate_factor != 1.0) {
      return error(Code::kUnsupported,
                   "some parameters have {} times the learning rate of others, which is not there "
                   "on GPUs: {}",
                   group.learning_rate_factor, kWayOut);
    }
  }
  return {};
}

CudaOptimizerDevice::CudaOptimizerDevice(CudaStream& stream, OptimizerShard shard,
                                         CudaOptimizer optimizer,
                                         std::optional<TransactedUpdate> transacted,
                                         UpdateObserver observer)
    : stream_(&stream),
      shard_(std::move(shard)),
      adamw_(dynamic_cast<const AdamW*>(shard_.optimizer)),
      optimizer_(std::move(optimizer)),
      transacted_(std::move(transacted)),
      observer_(std::move(observer)) {}

Result<std::unique_ptr<CudaOptimizerDevice>> CudaOptimizerDevice::create(
    CudaStream& stream, OptimizerShard shard, std::span<std::byte> log,
    std::span<std::byte> scratch, UpdateObserver observer) {
  TROUPE_RETURN_IF_ERROR(check(*shard.optimizer, *shard.groups));
  const std::size_t sums = index(sums_bytes(shard.tiles()));
  TROUPE_CHECK(scratch.size() >= sums);
  CudaOptimizer optimizer = TROUPE_TRY(CudaOptimizer::create(stream, scratch.first(sums)));
  std::optional<TransactedUpdate> transacted;
  if (!log.empty()) {
    const StateBuffers& b = shard.buffers;
    const UpdateTarget target{.state = b.state,
                              .ranges = shard.ranges,
                              .groups = shard.groups,
                              .parameters = b.parameters.data(),
                              .gradients = b.gradients.data(),
                              .first_moments = b.slots[0].data.data(),
                              .second_moments = b.slots[1].data.data()};
    transacted = TROUPE_TRY(TransactedUpdate::create(stream, target, log, scratch.subspan(sums)));
  }
  return std::unique_ptr<CudaOptimizerDevice>(new CudaOptimizerDevice(
      stream, std::move(shard), std::move(optimizer), std::move(transacted), std::move(observer)));
}

Result<std::vector<double>> CudaOptimizerDevice::tile_sums() {
  return optimizer_.tile_sums(shard_.buffers.gradients.data(), shard_.ranges, kTileElements);
}

Status CudaOptimizerDevice::update(const OptimizerStep& step, std::int64_t number) {
  const auto tell = [this](std::string_view moment) {
    if (observer_) observer_(0, moment);
  };
  tell("before");
  TROUPE_RETURN_IF_ERROR(enqueue(adamw_->at(step), number));
  tell("launched");
  TROUPE_RETURN_IF_ERROR(stream_->wait("the optimizer's update"));
  tell("after");
  return {};
}

Status CudaOptimizerDevice::enqueue(const AdamWStep& step, std::int64_t number) {
  if (transacted_) return transacted_->enqueue(step, number);
  const StateBuffers& b = shard_.buffers;
  const auto update = [&]<typename T>(T*) -> Status {
    const auto part = [](std::span<std::byte> region, std::int64_t offset) {
      return reinterpret_cast<T*>(region.data()) + offset;
    };
    for (const UpdateRange& range : shard_.ranges)
      TROUPE_RETURN_IF_ERROR(optimizer_.update(
          step, *shard_.groups, range.flat, part(b.parameters, range.parameters),
          b.gradients.data() + range.gradients, part(b.slots[0].data, range.slots),
          part(b.slots[1].data, range.slots), range.elements));
    return {};
  };
  return b.state == DType::kBF16 ? update(static_cast<std::uint16_t*>(nullptr))
                                 : update(static_cast<float*>(nullptr));
}

Status CudaOptimizerDevice::forget_updates() {
  return transacted_ ? transacted_->forget() : Status{};
}

}  // namespace troupe::train
