#pragma once
// Groups of parameters that the optimizer treats alike, and which flat positions are of which
// group.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace troupe::train {

// What a group has of its own. The rest is the optimizer's.
struct ParameterGroup {
  double learning_rate_factor = 1.0;  // times the schedule's learning rate
  bool decays = false;                // weight decay applies
  std::uint16_t treatment = 0;        // by an optimizer that has several: TensorRule
  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

// Covers the flat concatenation of all units from 0 on.
class ParameterGroups {
 public:
  ParameterGroups() = default;
  // add() for each.
  ParameterGroups(std::initializer_list<std::pair<std::int64_t, ParameterGroup>> parts) {
    for (const auto& [end, group] : parts) add(end, group);
  }

  // A stretch of flat positions whose group is groups()[group].
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::size_t group = 0;
  };

  // From where the last positions ended up to `end` all are of `group`.
  void add(std::int64_t end, const ParameterGroup& group) {
    const auto known = std::find(groups_.begin(), groups_.end(), group);
    const auto index = static_cast<std::size_t>(known - groups_.begin());
    if (known == groups_.end()) groups_.push_back(group);
    if (!ranges_.empty() && ranges_.back().group == index)
      ranges_.back().end = end;
    else
      ranges_.push_back({this->end(), end, index});
  }

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  // In order, without gaps; neighbours are of different groups.
  const std::vector<Range>& ranges() const { return ranges_; }
  const ParameterGroup& of(const Range& range) const { return groups_[range.group]; }
  std::int64_t end() const { return ranges_.empty() ? 0 : ranges_.back().end; }

  // Calls fn(group, from, to) for the parts of [begin, end), which lies within [0, end()).
  template <typename F>
  void for_each_part(std::int64_t begin, std::int64_t end, F&& fn) const {
    auto range = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                                  [](std::int64_t at, const Range& r) { return at < r.end; });
    for (; begin < end && range != ranges_.end(); ++range) {
      const std::int64_t to = std::min(end, range->end);
      fn(range->group, begin, to);
      begin = to;
    }
  }

 private:
  std::vector<ParameterGroup> groups_;
  std::vector<Range> ranges_;
};

}  // namespace troupe::train
