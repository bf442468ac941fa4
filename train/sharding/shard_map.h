#pragma once
// Who owns which tiles: every unit is dealt out in whole tiles to the members of a shard group.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/model/parameter_layout.h"

namespace troupe::train {

// A range of elements.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Each member owns one contiguous range of each unit, ranges in the members' order. What does not
// divide goes round the members from unit to unit, so that shards differ by at most a tile. Where
// tensors are updated as wholes, ranges end between them, and who has least so far gets most of the
// next unit. Depends on the layout and the number of members alone.
class ShardMap {
 public:
  ShardMap(const ParameterLayout& layout, int members);

  int members() const { return members_; }
  // What `member` owns of `unit`, relative to the unit's begin. May be empty.
  ElementRange range(int unit, int member) const;
  // The same in the concatenation of all units.
  ElementRange flat_range(int unit, int member) const;
  // Elements of `unit` by member: the counts of a reduce-scatter or all-gather.
  std::span<const std::size_t> counts(int unit) const;
  // Where the member's range of `unit` begins in its shard: the concatenation of its ranges.
  std::int64_t shard_offset(int unit, int member) const;
  // Elements of the member's shard.
  std::int64_t shard_elements(int member) const;

 private:
  // Where each member's range of the unit ends, in elements.
  std::vector<std::int64_t> ends_between_tensors(const ParameterLayout& layout, int unit) const;
  std::size_t at(int unit, int member) const {
    return static_cast<std::size_t>(unit) * static_cast<std::size_t>(members_) +
           static_cast<std::size_t>(member);
  }

  const int members_;
  std::vector<std::int64_t> unit_offsets_;   // flat, by unit
  std::vector<std::size_t> counts_;          // (units, members)
  std::vector<std::int64_t> begins_;         // (units, members), within the unit
  std::vector<std::int64_t> shard_offsets_;  // (units + 1, members)
};

}  // namespace troupe::train
