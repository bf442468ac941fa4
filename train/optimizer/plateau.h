#pragma once
// lr_scheduler_type: reduce_lr_on_plateau, which is torch's ReduceLROnPlateau behind every
// evaluation: the learning rate falls when the metric has not become better for a while.

#include <cstdint>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct PlateauRule {
  bool greater_is_better = false;  // mode: max
  double factor = 0.1;
  std::int64_t patience = 10;  // evaluations in a row that may be no better
  double threshold = 1e-4;     // how much better is better
  bool is_relative = true;     // threshold_mode: rel
  std::int64_t cooldown = 0;   // evaluations behind a fall that count for nothing
  double least = 0;            // min_lr
  double epsilon = 1e-8;       // falls that are no greater are left out

  // lr_scheduler_kwargs. kInvalidArgument: a key that torch does not know, or a value out of range.
  static Result<PlateauRule> read(const json::Object& kwargs);
};

// Plain numbers, so that they can be sent and kept as bytes.
struct PlateauState {
  double learning_rate = 0;  // 0: the run's, before the first evaluation
  double best = 0;
  std::int64_t has_best = 0;
  std::int64_t misses = 0;  // in a row
  std::int64_t cooldown = 0;
};

// Behind an evaluation.
PlateauState plateau_after(const PlateauRule& rule, PlateauState state, double metric);

}  // namespace troupe::train
