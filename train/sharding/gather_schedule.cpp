#include "train/sharding/gather_schedule.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

void use(std::vector<UnitEvent>& events, int unit, Phase phase) {
  events.push_back({unit, phase, true});
  events.push_back({unit, phase, false});
}

// The head holds its own unit and, tied, the embedding's at the same time.
void use_head(std::vector<UnitEvent>& events, int head, bool tied, Phase phase) {
  events.push_back({head, phase, true});
  if (tied) use(events, 0, phase);
  events.push_back({head, phase, false});
}

}  // namespace

std::vector<UnitEvent> forward_events(int units, bool tied) {
  std::vector<UnitEvent> events;
  for (int unit = 0; unit < units - 1; ++unit) use(events, unit, Phase::kForward);
  use_head(events, units - 1, tied, Phase::kForward);
  return events;
}

std::vector<UnitEvent> training_events(int units, bool tied, int first_backward_unit) {
  std::vector<UnitEvent> events;
  for (int unit = 0; unit < units - 1; ++unit) use(events, unit, Phase::kForward);
  use_head(events, units - 1, tied, Phase::kBackward);
  for (int unit = units - 2; unit >= first_backward_unit; --unit)
    use(events, unit, Phase::kBackward);
  return events;
}

// Walks the events once, keeping account of what is gathered where.
class GatherSchedule::Simulation {
 public:
  Simulation(GatherSchedule& schedule, std::span<const std::int64_t> sizes,
             const std::vector<UnitEvent>& events, const GatherLimits& limits)
      : schedule_(schedule), sizes_(sizes), events_(events), limits_(limits) {
    gathered_.assign(sizes.size(), false);
    waiting_.assign(sizes.size(), false);
    persistent_.assign(sizes.size(), false);
    schedule_.places_.resize(sizes.size());
  }

  void run() {
    for (std::size_t unit = 0; unit < sizes_.size(); ++unit) {
      if (sizes_[unit] > limits_.persistence_threshold) continue;
      persistent_[unit] = true;
      schedule_.persistent_.push_back(static_cast<int>(unit));
      place(0, static_cast<int>(unit));
    }
    for (std::size_t at = 0; at < events_.size(); ++at) {
      schedule_.steps_.push_back({events_[at], {}, {}});
      if (events_[at].acquire) {
        acquire(at);
      } else {
        release(at);
      }
    }
    for (std::size_t unit = 0; unit < sizes_.size(); ++unit)
      TROUPE_CHECK(!gathered_[unit] || persistent_[unit], "unit {} stays gathered", unit);
  }

 private:
  std::int64_t size(int unit) const { return sizes_[static_cast<std::size_t>(unit)]; }

  void acquire(std::size_t at) {
    const int unit = events_[at].unit;
    if (!gathered_[static_cast<std::size_t>(unit)]) gather(at, unit);
    if (waiting_[static_cast<std::size_t>(unit)]) {
      waiting_[static_cast<std::size_t>(unit)] = false;
      waiting_elements_ -= size(unit);
    }
    prefetch(at);
  }

  void gather(std::size_t at, int unit) {
    schedule_.steps_[at].gathers.push_back(unit);
    place(at, unit);
  }

  void prefetch(std::size_t at) {
    int ahead = 0;
    for (std::size_t next = at + 1; next < events_.size(); ++next) {
      const int unit = events_[next].unit;
      if (!events_[next].acquire) continue;
      if (gathered_[static_cast<std::size_t>(unit)]) {
        ahead += waiting_[static_cast<std::size_t>(unit)] ? 1 : 0;
        if (!limits_.prefetch && ahead > 0) return;
        continue;
      }
      const bool fits_bucket =
          limits_.prefetch ? waiting_elements_ + size(unit) <= *limits_.prefetch : ahead == 0;
      if (!fits_bucket || live_ + size(unit) > limits_.max_live) return;
      gather(at, unit);
      waiting_[static_cast<std::size_t>(unit)] = true;
      waiting_elements_ += size(unit);
      ++ahead;
    }
  }

  void release(std::size_t at) {
    const int unit = events_[at].unit;
    if (persistent_[static_cast<std::size_t>(unit)] || keeps(at, unit)) return;
    schedule_.steps_[at].drops.push_back(unit);
    gathered_[static_cast<std::size_t>(unit)] = false;
    live_ -= size(unit);
    free(schedule_.places_[static_cast<std::size_t>(unit)].back().offset, size(unit));
  }

  bool keeps(std::size_t at, int unit) const {
    std::int64_t distance = 0;
    for (std::size_t next = at + 1; next < events_.size(); ++next) {
      if (!events_[next].acquire) continue;
      if (events_[next].unit == unit) {
        const bool crosses =
            events_[at].phase == Phase::kForward && events_[next].phase == Phase::kBackward;
        const bool wanted =
            distance <= limits_.max_reuse_distance || (crosses && !limits_.reshard_after_forward);
        return wanted && live_ <= limits_.max_live;
      }
      distance += size(events_[next].unit);
    }
    return false;
  }

  // The arena: first fit over a sorted list of holes.
  void place(std::size_t at, int unit) {
    gathered_[static_cast<std::size_t>(unit)] = true;
    live_ += size(unit);
    schedule_.places_[static_cast<std::size_t>(unit)].push_back({at, take(size(unit))});
  }
  std::int64_t take(std::int64_t elements) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->end - hole->begin < elements) continue;
      const std::int64_t offset = hole->begin;
      hole->begin += elements;
      if (hole->begin == hole->end) holes_.erase(hole);
      return offset;
    }
    // At the end, growing a hole that lies there.
    std::int64_t offset = schedule_.arena_elements_;
    if (!holes_.empty() && holes_.back().end == offset) {
      offset = holes_.back().begin;
      holes_.pop_back();
    }
    schedule_.arena_elements_ = offset + elements;
    return offset;
  }
  void free(std::int64_t offset, std::int64_t elements) {
    const auto after = std::find_if(holes_.begin(), holes_.end(),
                                    [&](const Hole& hole) { return hole.begin > offset; });
    auto hole = holes_.insert(after, {offset, offset + elements});
    if (auto next = std::next(hole); next != holes_.end() && next->begin == hole->end) {
      hole->end = next->end;
      hole = std::prev(holes_.erase(next));
    }
    if (hole != holes_.begin() && std::prev(hole)->end == hole->begin) {
      std::prev(hole)->end = hole->end;
      holes_.erase(hole);
    }
  }

  struct Hole {
    std::int64_t begin, end;
  };

  GatherSchedule& schedule_;
  std::span<const std::int64_t> sizes_;
  const std::vector<UnitEvent>& events_;
  const GatherLimits& limits_;
  std::vector<bool> gathered_, waiting_, persistent_;
  std::int64_t live_ = 0;              // elements gathered
  std::int64_t waiting_elements_ = 0;  // of prefetched units that were not acquired yet
  std::vector<Hole> holes_;
};

GatherSchedule::GatherSchedule(std::span<const std::int64_t> unit_elements,
                               std::vector<UnitEvent> events, const GatherLimits& limits) {
  Simulation(*this, unit_elements, events, limits).run();
}

std::int64_t GatherSchedule::offset_at(std::size_t step, int unit) const {
  const auto& places = places_[static_cast<std::size_t>(unit)];
  const auto after = std::upper_bound(
      places.begin(), places.end(), step,
      [](std::size_t value, const Place& place) { return value < place.first_step; });
  TROUPE_CHECK(after != places.begin(), "unit {} is not gathered at step {}", unit, step);
  return std::prev(after)->offset;
}

}  // namespace troupe::train
