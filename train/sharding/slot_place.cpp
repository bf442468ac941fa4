#include "train/sharding/slot_place.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/base/check.h"
#include "train/sharding/optimizer_device.h"
#include "train/sharding/state_buffers.h"

namespace troupe::train {

SlotPlace::SlotPlace(const RankLayout& layout, const Optimizer& optimizer, std::size_t slot,
                     DType state)
    : optimizer_(&optimizer), slot_(slot), state_(state) {
  const ParameterLayout& all = layout.layout();
  const std::vector<ParameterGroup>& groups = all.groups().groups();
  std::vector<SlotStorage> storages;
  for (const ParameterGroup& group : groups) {
    storages.push_back(optimizer.storage(slot, group.treatment));
    by_tensor_ = by_tensor_ || storages.back() == SlotStorage::kTensor;
  }
  const bool in_turn = std::ranges::find(storages, SlotStorage::kInTurn) != storages.end();
  const auto parameters = std::span(all.parameters());
  for (const UpdateRange& range : OptimizerShard::ranges_of(layout)) {
    const std::int64_t end = range.flat + range.elements;
    if (!by_tensor_) {
      // In turn all units have the same place.
      std::size_t at = in_turn ? 0 : bytes_;
      if (in_turn) turns_.push_back({.begin = range.slots});
      all.groups().for_each_part(
          range.flat, end, [&](std::size_t group, std::int64_t from, std::int64_t to) {
            const std::size_t size = dtype_size(state);
            const std::size_t bytes = storage_bytes(storages[group], to - from, size);
            stretches_.push_back(
                {.begin = range.slots + from - range.flat,
                 .at = at,
                 .end = at + bytes,
                 .block_bytes = storage_bytes(storages[group], kUpdateBlockElements, size)});
            at += bytes;
            if (bytes == 0) return;
            TROUPE_CHECK(!in_turn || storages[group] == SlotStorage::kInTurn);
            if (!in_turn) return;
            std::uint16_t& treatment = turns_.back().treatment;
            TROUPE_CHECK(treatment == 0 || treatment == groups[group].treatment,
                         "treatments {} and {} in one unit", treatment, groups[group].treatment);
            treatment = groups[group].treatment;
          });
      bytes_ = std::max(bytes_, at);
      continue;
    }
    const auto first = std::ranges::lower_bound(
        parameters, range.flat, {}, [&](const ParameterInfo& p) { return all.flat_offset(p); });
    for (auto at = first; at != parameters.end() && all.flat_offset(*at) < end; ++at) {
      const auto held = stored(*at);
      if (!held) continue;
      const auto count = std::accumulate(held->shape.begin(), held->shape.end(), std::int64_t{1},
                                         std::multiplies<>());
      const auto bytes = static_cast<std::size_t>(count) * dtype_size(held->dtype);
      stretches_.push_back({.begin = range.slots + all.flat_offset(*at) - range.flat,
                            .at = bytes_,
                            .end = bytes_ + bytes,
                            .tensor_bytes = bytes});
      bytes_ += bytes;
    }
  }
}

std::size_t SlotPlace::position(std::int64_t begin) const {
  const auto after = std::ranges::lower_bound(stretches_, begin, {}, &Stretch::begin);
  if (after != stretches_.end() && after->begin == begin) return after->at;
  if (after == stretches_.begin()) return 0;
  return position_in(*(after - 1), begin);
}

std::size_t SlotPlace::position_in(const Stretch& in, std::int64_t begin) const {
  const auto elements = static_cast<std::size_t>(begin - in.begin);
  return std::min(in.end,
                  in.at + in.tensor_bytes +
                      elements * in.block_bytes / static_cast<std::size_t>(kUpdateBlockElements));
}

std::size_t SlotPlace::bytes_of(std::int64_t begin, std::int64_t elements) const {
  const std::int64_t end = begin + elements;
  if (!in_turn()) return position(end) - position(begin);
  // Where the unit ends another one begins, at the same place as this one.
  const auto after = std::ranges::lower_bound(stretches_, end, {}, &Stretch::begin);
  if (elements == 0 || after == stretches_.begin()) return 0;
  return position_in(*(after - 1), end) - position(begin);
}

bool SlotPlace::is_used(std::int64_t begin, const SlotUse& use) const {
  if (!in_turn()) return true;
  const auto after = std::ranges::upper_bound(turns_, begin, {}, &Turn::begin);
  return after != turns_.begin() && is_used((after - 1)->treatment, use);
}

bool SlotPlace::is_used(std::uint16_t treatment, const SlotUse& use) const {
  if (!in_turn()) return true;
  return treatment != 0 && use.first > 0 && optimizer_->is_active(treatment, use.first) &&
         optimizer_->is_active(treatment, use.last);
}

std::optional<StoredSlot> SlotPlace::stored(const ParameterInfo& parameter) const {
  switch (optimizer_->storage(slot_, parameter.group.treatment)) {
    case SlotStorage::kState:
    case SlotStorage::kInTurn:
      return StoredSlot{.dtype = state_, .shape = parameter.shape};
    case SlotStorage::kBytes:
      return StoredSlot{.dtype = DType::kU8, .shape = parameter.shape};
    case SlotStorage::kScales:
      return StoredSlot{
          .shape = {(parameter.elements + kUpdateBlockElements - 1) / kUpdateBlockElements},
          .elements_each = kUpdateBlockElements};
    case SlotStorage::kTensor:
      return StoredSlot{
          .shape = optimizer_->tensor_shape(slot_, parameter.group.treatment, parameter.shape),
          .elements_each = 0};
    case SlotStorage::kNothing:
      break;
  }
  return std::nullopt;
}

std::span<std::byte> SlotBuffer::part(const UpdateRange& range, DType state,
                                      const SlotUse& use) const {
  if (place) {
    if (!place->is_used(range.slots, use)) return {};
    return data.subspan(place->position(range.slots), place->bytes_of(range.slots, range.elements));
  }
  const std::size_t size = dtype_size(state);
  return data.subspan(static_cast<std::size_t>(range.slots) * size,
                      static_cast<std::size_t>(range.elements) * size);
}

std::vector<SlotBuffer> places_of(const RankLayout& layout, const Optimizer& optimizer,
                                  DType state) {
  std::vector<SlotBuffer> slots;
  const auto names = optimizer.slots();
  for (std::size_t i = 0; i < names.size(); ++i)
    slots.push_back({.name = names[i],
                     .data = {},
                     .place = optimizer.rule()
                                  ? std::make_shared<const SlotPlace>(layout, optimizer, i, state)
                                  : nullptr});
  return slots;
}

std::int64_t slot_bytes(const RankLayout& layout, const Optimizer& optimizer, DType state) {
  if (!optimizer.rule())
    return std::ssize(optimizer.slots()) * layout.elements(Region::kOptimizer) *
           static_cast<std::int64_t>(dtype_size(state));
  std::size_t bytes = 0;
  for (std::size_t slot = 0; slot < optimizer.slots().size(); ++slot)
    bytes += SlotPlace(layout, optimizer, slot, state).bytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace troupe::train
