#pragma once
// When faults strike that do not strike at points: pure, from time and steps to what is due.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/random.h"
#include "train/chaos/fault.h"

namespace troupe::train {

class StrikeSchedule {
 public:
  // Faults that strike at points are left out. `seed`: of random rates, besides each fault's own.
  StrikeSchedule(std::span<const Fault> faults, std::uint64_t seed);

  // The faults, by their place in the list, that became due since the last call. `elapsed_s`: since
  // the first step stood; `step`: the one under way. One that is due several times stands once:
  // what was missed is not made up for.
  std::vector<std::size_t> due(double elapsed_s, std::int64_t step);
  // Nothing will be due any more.
  bool exhausted() const;

 private:
  struct Entry {
    std::size_t index;
    Fault fault;
    SeededRandom random;
    double next_s = 0;
    std::int64_t struck = 0;
    bool done() const { return fault.times > 0 && struck >= fault.times; }
  };
  static double pause_s(Entry& entry);
  std::vector<Entry> entries_;
};

}  // namespace troupe::train
