#include "train/chaos/schedule.h"

#include <algorithm>
#include <cmath>

namespace troupe::train {

StrikeSchedule::StrikeSchedule(std::span<const Fault> faults, std::uint64_t seed) {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (strikes_at_point(faults[i])) continue;
    const auto own = static_cast<std::uint64_t>(faults[i].seed);
    Entry entry{i, faults[i], SeededRandom(seed ^ (own << 32) ^ (i + 1))};
    entry.next_s = pause_s(entry);
    entries_.push_back(std::move(entry));
  }
}

double StrikeSchedule::pause_s(Entry& entry) {
  const Fault& fault = entry.fault;
  if (fault.at_s > 0) return fault.at_s;
  if (fault.every_s > 0) return fault.every_s;
  // Pauses of a Poisson process are exponentially distributed.
  if (fault.rate_per_min > 0) return -std::log1p(-entry.random.unit()) * 60 / fault.rate_per_min;
  return 0;  // by its step
}

std::vector<std::size_t> StrikeSchedule::due(double elapsed_s, std::int64_t step) {
  std::vector<std::size_t> due;
  for (Entry& entry : entries_) {
    if (entry.done()) continue;
    if (entry.fault.step > 0) {
      if (step < entry.fault.step + entry.struck) continue;
    } else if (elapsed_s < entry.next_s) {
      continue;
    }
    ++entry.struck;
    due.push_back(entry.index);
    if (entry.fault.step > 0) continue;
    while (entry.next_s <= elapsed_s) {
      const double before = entry.next_s;
      entry.next_s += pause_s(entry);
      if (entry.next_s <= before) break;
    }
  }
  return due;
}

bool StrikeSchedule::exhausted() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.done(); });
}

}  // namespace troupe::train
