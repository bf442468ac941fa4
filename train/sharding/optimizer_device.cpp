#include "train/sharding/optimizer_device.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/optimizer/gradient_norm.h"
#include "train/sharding/host_update.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

class CpuOptimizerDevice final : public OptimizerDevice {
 public:
  CpuOptimizerDevice(OptimizerShard shard, ParallelFor parallel_for, UpdateLog* log,
                     UpdateObserver observer)
      : update_(std::move(shard), log, std::move(observer)),
        parallel_for_(std::move(parallel_for)) {}

  Result<std::vector<double>> tile_sums() override {
    std::vector<double> sums(index(update_.tiles()));
    parallel_for_(update_.tiles(), [&](std::int64_t tile, int) {
      sums[index(tile)] = tile_sum_of_squares(gradients_of(tile));
    });
    return sums;
  }

  Status update(const OptimizerStep& step, std::int64_t number) override {
    const auto prepared = update_.prepare(step);
    update_.restore(number);
    parallel_for_(update_.tiles(), [&](std::int64_t tile, int slot) {
      update_.update_tile(*prepared, number, slot, tile, gradients_of(tile));
    });
    return {};
  }

  Status forget_updates() override {
    update_.forget();
    return {};
  }

 private:
  std::span<const float> gradients_of(std::int64_t tile) const {
    return update_.shard().buffers.gradients.subspan(index(update_.tile(tile).gradients),
                                                     index(kTileElements));
  }

  HostUpdate update_;
  const ParallelFor parallel_for_;
};

}  // namespace

OptimizerShard OptimizerShard::of(const RankLayout& layout, const StateBuffers& buffers,
                                  const Optimizer& optimizer) {
  const std::size_t size = dtype_size(buffers.state);
  TROUPE_CHECK(buffers.parameters.size() ==
               index(layout.elements(buffers.parameters_region)) * size);
  TROUPE_CHECK(buffers.gradients.size() == index(layout.elements(Region::kGradients)));
  const std::span<const std::string_view> slots = optimizer.slots();
  TROUPE_CHECK(slots.size() <= kOptimizerSlotsMax);
  TROUPE_CHECK(buffers.slots.size() == slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const SlotBuffer& slot = buffers.slots[i];
    TROUPE_CHECK(slot.name == slots[i], "slot {} instead of {}", slot.name, slots[i]);
    TROUPE_CHECK(slot.data.size() == index(layout.elements(Region::kOptimizer)) * size);
  }
  return {.buffers = buffers,
          .ranges = ranges_of(layout, buffers.parameters_region),
          .groups = &layout.layout().groups(),
          .optimizer = &optimizer};
}

std::vector<UpdateRange> OptimizerShard::ranges_of(const RankLayout& layout, Region parameters) {
  std::vector<UpdateRange> ranges;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ElementRange own = layout.updated(unit);
    if (own.size() == 0) continue;
    ranges.push_back({.flat = layout.layout().units()[index(unit)].flat_offset + own.begin,
                      .parameters = layout.offset(parameters, unit, own.begin),
                      .gradients = layout.offset(Region::kGradients, unit, own.begin),
                      .slots = layout.offset(Region::kOptimizer, unit, own.begin),
                      .elements = own.size()});
  }
  return ranges;
}

std::vector<UpdateRange> tiles_of(std::span<const UpdateRange> ranges) {
  std::vector<UpdateRange> tiles;
  for (const UpdateRange& range : ranges) {
    for (std::int64_t at = 0; at < range.elements; at += kTileElements)
      tiles.push_back(part_of(range, at, kTileElements));
  }
  return tiles;
}

std::int64_t OptimizerShard::elements() const {
  std::int64_t sum = 0;
  for (const UpdateRange& range : ranges) sum += range.elements;
  return sum;
}

std::unique_ptr<OptimizerDevice> make_cpu_optimizer_device(OptimizerShard shard,
                                                           ParallelFor parallel_for, UpdateLog* log,
                                                           UpdateObserver observer) {
  return std::make_unique<CpuOptimizerDevice>(std::move(shard), std::move(parallel_for), log,
                                              std::move(observer));
}

}  // namespace troupe::train
