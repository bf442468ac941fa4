#pragma once
// What the time of a step goes into, operator by operator, on the loop's thread.

#include <cstdint>
#include <string_view>
#include <vector>

#include "train/report/step_seconds.h"

namespace troupe::train {

// Sums up what is told. Something runs from its begin() until the next begin() or end(), so that
// the parts of a step add up to its time less what no name stands for. A clock reading at each, no
// allocation after the first step. One thread uses it; names outlive it.
class OperatorTimes {
 public:
  // unit_count: of the model. The first and the last unit are its ends: embedding and head.
  explicit OperatorTimes(int unit_count) : last_unit_(unit_count - 1) {}

  // `variant` tells operators of one name apart and may be empty; unit: where it runs, -1: in none.
  void begin(std::string_view name, std::string_view variant, int unit, std::int64_t at_ns);
  void end(std::int64_t at_ns);
  // The sums since the last call, in the order in which they first came: "gemm nt" within a block,
  // "head gemm nt" at the ends. What runs at that moment counts from `at_ns` on.
  std::vector<OperatorSeconds> take(std::int64_t at_ns);

 private:
  struct Sum {
    std::string_view name, variant;
    bool at_an_end = false;
    std::int64_t ns = 0;
  };
  static constexpr int kNothing = -1;

  const int last_unit_;
  std::vector<Sum> sums_;
  int running_ = kNothing;
  std::int64_t since_ns_ = 0;
};

}  // namespace troupe::train
