#include "train/sharding/shard_map.h"

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
    std::int64_t begin = 0;
    for (int member = 0; member < members; ++member) {
      const bool one_more = (member - next + members) % members < tiles % members;
      const std::int64_t elements = (tiles / members + (one_more ? 1 : 0)) * kTileElements;
      counts_.push_back(static_cast<std::size_t>(elements));
      begins_.push_back(begin);
      shard_offsets_.push_back(shard_offsets_[at(unit, member)] + elements);
      begin += elements;
    }
    next = (next + tiles) % members;
  }
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
