#include "train/sharding/optimizer_device.h"

#include <algorithm>
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

  const Optimizer* optimizer() const override { return update_.shard().optimizer; }

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
    update_.for_each_tile(*prepared, number, parallel_for_,
                          [&](std::int64_t tile, int slot, std::span<const float> directions) {
                            update_.update_tile(*prepared, number, slot, tile, gradients_of(tile),
                                                directions);
                          });
    return {};
  }

  Status forget_updates() override {
    update_.forget();
    return {};
  }

 private:
  std::span<const float> gradients_of(std::int64_t tile) const {
    return update_.gradients(tile, 1);
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
    TROUPE_CHECK((slot.place != nullptr) == (optimizer.rule() != nullptr));
    TROUPE_CHECK(
        slot.data.size() ==
        (slot.place ? slot.place->bytes() : index(layout.elements(Region::kOptimizer)) * size));
  }
  OptimizerShard shard{.buffers = buffers,
                       .ranges = ranges_of(layout, buffers.parameters_region),
                       .groups = &layout.layout().groups(),
                       .optimizer = &optimizer,
                       .blocks = {}};
  if (optimizer.rule() && layout.layout().has_whole_tensors())
    shard.blocks = blocks_of(layout, shard.ranges);
  return shard;
}

std::vector<UpdateBlock> OptimizerShard::blocks_of(const RankLayout& layout,
                                                   std::span<const UpdateRange> ranges) {
  const ParameterLayout& all = layout.layout();
  const auto same_treatment_before = [&](const ParameterInfo& parameter) {
    const auto end = all.parameters().begin() + (&parameter - all.parameters().data());
    return std::count_if(all.parameters().begin(), end, [&](const ParameterInfo& other) {
      return other.group.treatment == parameter.group.treatment;
    });
  };
  const auto of_others = [&](std::uint16_t treatment) {
    return std::ranges::count_if(all.parameters(), [&](const ParameterInfo& other) {
      return other.group.treatment != treatment;
    });
  };
  std::vector<UpdateBlock> blocks;
  std::int64_t tiles = 0;
  auto range = ranges.begin();
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ElementRange own = layout.updated(unit);
    if (own.size() == 0) continue;
    const std::int64_t base = all.units()[index(unit)].flat_offset;
    const std::size_t before = blocks.size();
    for (const std::int64_t cut : all.cuts(unit)) {
      if (cut < own.begin || cut >= own.end) continue;
      blocks.push_back({.first_tile = tiles + (cut - own.begin) / kTileElements, .tensors = {}});
    }
    tiles += own.size() / kTileElements;
    for (std::size_t i = before; i < blocks.size(); ++i) {
      const std::int64_t end = i + 1 < blocks.size() ? blocks[i + 1].first_tile : tiles;
      blocks[i].tiles = end - blocks[i].first_tile;
    }
    std::size_t block = before;
    for (const ParameterInfo& parameter : all.parameters(unit)) {
      const std::int64_t begin = parameter.offset_elements;
      if (parameter.update_unit != UpdateUnit::kTensor || begin < own.begin || begin >= own.end)
        continue;
      const std::int64_t tile = tiles - (own.end - begin + kTileElements - 1) / kTileElements;
      while (blocks[block].first_tile + blocks[block].tiles <= tile) ++block;
      const auto& known = all.groups().groups();
      const auto group = std::ranges::find(known, parameter.group) - known.begin();
      blocks[block].tensors.push_back(
          {.parameter = &parameter,
           .group = static_cast<std::size_t>(group),
           .number = of_others(parameter.group.treatment) + same_treatment_before(parameter) + 1,
           .range = part_of(*range, base + begin - range->flat, parameter.elements)});
    }
    ++range;
  }
  return blocks;
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
