#include "train/sharding/shard_map.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {

ShardMap::ShardMap(const ParameterLayout& layout, int members) : members_(members) {
  TROUPE_CHECK(members > 0, "{} members", members);
  const auto units = static_cast<int>(layout.units().size());
  shard_offsets_.assign(static_cast<std::size_t>(members), 0);
  // Who gets the next tile that does not divide: on from unit to unit, so that nobody is ever more
  // than a tile ahead.
  std::int64_t next = 0;
  for (int unit = 0; unit < units; ++unit) {
    const UnitInfo& info = layout.units()[static_cast<std::size_t>(unit)];
    unit_offsets_.push_back(info.flat_offset);
    const std::int64_t tiles = info.elements / kTileElements;
    std::vector<std::int64_t> ends;
    if (layout.has_whole_tensors()) ends = ends_between_tensors(layout, unit);
    std::int64_t begin = 0;
    for (int member = 0; member < members; ++member) {
      const bool one_more = (member - next + members) % members < tiles % members;
      const std::int64_t elements = ends.empty()
                                        ? (tiles / members + (one_more ? 1 : 0)) * kTileElements
                                        : ends[static_cast<std::size_t>(member)] - begin;
      counts_.push_back(static_cast<std::size_t>(elements));
      begins_.push_back(begin);
      shard_offsets_.push_back(shard_offsets_[at(unit, member)] + elements);
      begin += elements;
    }
    next = (next + tiles) % members;
  }
}

std::vector<std::int64_t> ShardMap::ends_between_tensors(const ParameterLayout& layout,
                                                         int unit) const {
  const UnitInfo& info = layout.units()[static_cast<std::size_t>(unit)];
  const std::int64_t tiles = info.elements / kTileElements;
  const std::int64_t so_far = info.flat_offset / kTileElements + tiles;
  // By how much a member's shard is smaller than its equal part of all units so far, times the
  // number of members.
  std::vector<std::int64_t> lacks;
  std::int64_t lacks_sum = 0;
  for (int member = 0; member < members_; ++member) {
    const std::int64_t held = shard_offsets_[at(unit, member)] / kTileElements;
    lacks.push_back(std::max<std::int64_t>(0, so_far - members_ * held));
    lacks_sum += lacks.back();
  }
  const std::vector<std::int64_t> cuts = layout.cuts(unit);
  std::vector<std::int64_t> ends;
  std::int64_t wanted_sum = 0, end = 0;
  for (int member = 0; member < members_; ++member) {
    wanted_sum += lacks[static_cast<std::size_t>(member)];
    const std::int64_t wanted =
        lacks_sum > 0 ? tiles * wanted_sum / lacks_sum * kTileElements : info.elements;
    const auto after = std::ranges::lower_bound(cuts, wanted);
    std::int64_t nearest = after == cuts.end() ? info.elements : *after;
    if (after != cuts.begin() && wanted - *(after - 1) <= nearest - wanted) nearest = *(after - 1);
    end = member + 1 == members_ ? info.elements : std::max(end, nearest);
    ends.push_back(end);
  }
  return ends;
}

ElementRange ShardMap::range(int unit, int member) const {
  const std::int64_t begin = begins_[at(unit, member)];
  return {begin, begin + static_cast<std::int64_t>(counts_[at(unit, member)])};
}

ElementRange ShardMap::flat_range(int unit, int member) const {
  const ElementRange own = range(unit, member);
  const std::int64_t base = unit_offsets_[static_cast<std::size_t>(unit)];
  return {base + own.begin, base + own.end};
}

std::span<const std::size_t> ShardMap::counts(int unit) const {
  return std::span(counts_).subspan(at(unit, 0), static_cast<std::size_t>(members_));
}

std::int64_t ShardMap::shard_offset(int unit, int member) const {
  return shard_offsets_[at(unit, member)];
}

std::int64_t ShardMap::shard_elements(int member) const {
  return shard_offsets_[shard_offsets_.size() - static_cast<std::size_t>(members_) +
                        static_cast<std::size_t>(member)];
}

}  // namespace troupe::train
