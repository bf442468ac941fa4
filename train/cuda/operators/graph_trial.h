#pragma once
// Whether graphs pay, from blocks of work that were timed with and without. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace troupe::train {

// Each block alone on its stream: the same work by its launches, and by a graph. What the host
// takes for the launches shows there where it is longer than what the device takes for the work;
// where it is shorter, both take as long and a graph gains nothing.
class GraphTrial {
 public:
  // Pairs that are enough; the share of the time without graphs below which they pay; blocks after
  // which too few pairs say that blocks are seldom the same again.
  static constexpr std::size_t kPairs = 24;
  static constexpr double kShareMax = 0.95;
  static constexpr std::int64_t kBlocksMax = 4096;

  // A block was run, however.
  void count_block() { ++blocks_; }
  // The same block, twice.
  void add(Duration without, Duration with);

  struct Verdict {
    bool pays = false;
    std::string why;  // a sentence with the figures
  };
  // Nothing as long as too little is known.
  std::optional<Verdict> verdict() const;

 private:
  struct Pair {
    double without, with;  // seconds
  };
  std::int64_t blocks_ = 0;
  std::vector<Pair> pairs_;
};

}  // namespace troupe::train
