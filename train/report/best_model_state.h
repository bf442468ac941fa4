#pragma once
// What is remembered of a run's best model.

#include <cstdint>
#include <type_traits>

namespace troupe::train {

// Plain numbers, so that they can be sent and kept as bytes.
struct BestModelState {
  double best_metric = 0;             // where best_step >= 0
  std::int64_t best_step = -1;        // best_global_step; -1: none yet
  std::int64_t checkpoint_step = -1;  // of best_model_checkpoint; -1: not saved
  std::int64_t misses = 0;            // evaluations in a row without improvement
  friend bool operator==(const BestModelState&, const BestModelState&) = default;
};
static_assert(std::is_trivially_copyable_v<BestModelState>);

}  // namespace troupe::train
