#pragma once
// When units are gathered and dropped: worked out once for a whole micro-batch, as a list that the
// run then follows.
//
// Pure. A pass over a model acquires and releases units in an order that is known beforehand, so
// the decisions (prefetch, keep, drop) and the places of the gathered units in one arena are too:
// every rank follows the same list, nothing is allocated while it runs, and a memory plan knows the
// arena's size. The same list serves parameters that come from other ranks and, later, from host
// memory or disk.
//
// The rules are those of DeepSpeed's ZeRO-3 (partitioned_param_coordinator.py): prefetch in order
// of use up to a bucket of elements that wait for their use; never more gathered elements than
// max_live but for a unit that is needed now; after a use a unit is kept if it is used again within
// max_reuse_distance elements, else dropped.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/model/parameter_layout.h"
#include "train/model/unit_access.h"

namespace troupe::train {

// A unit is acquired or released.
struct UnitEvent {
  int unit = 0;
  Phase phase = Phase::kForward;
  bool acquire = false;
  friend bool operator==(const UnitEvent&, const UnitEvent&) = default;
};

// The order in which Model::forward_backward and Model::forward use the units.
// `tied`: the head multiplies with unit 0's embedding.
// first_backward_unit: where the backward pass ends, 1 if it reaches the embedding.
std::vector<UnitEvent> training_events(int units, bool tied, int first_backward_unit = 1);
std::vector<UnitEvent> forward_events(int units, bool tied);

struct GatherLimits {
  bool reshard_after_forward = true;  // else a unit is kept from its forward to its backward use
  // In elements.
  std::int64_t max_live = 1'000'000'000;
  std::int64_t max_reuse_distance = 0;
  // Units that wait for their use; nothing: one unit, whatever its size. 0: no prefetch, which is
  // right where gathering cannot overlap with arithmetic.
  std::optional<std::int64_t> prefetch;
  std::int64_t persistence_threshold = 0;  // units up to this size are never dropped
};

// What one event asks for.
struct GatherStep {
  UnitEvent event;
  // Before the event, in this order; an acquired unit that was absent comes first, what follows is
  // prefetched.
  std::vector<int> gathers;
  // After the event.
  std::vector<int> drops;
};

class GatherSchedule {
 public:
  GatherSchedule(std::span<const std::int64_t> unit_elements, std::vector<UnitEvent> events,
                 const GatherLimits& limits);

  // In the order of the events. Whatever is gathered and not persistent is dropped at the end.
  const std::vector<GatherStep>& steps() const { return steps_; }
  // Gathered once per optimizer step, before the first event, and kept.
  const std::vector<int>& persistent() const { return persistent_; }
  // Where `unit`, which is gathered at or before `step` and not dropped since, lies: an offset in
  // elements into the arena.
  std::int64_t offset_at(std::size_t step, int unit) const;
  std::int64_t arena_elements() const { return arena_elements_; }

 private:
  class Simulation;
  struct Place {
    std::size_t first_step;  // from when on it is valid
    std::int64_t offset;
  };

  std::vector<GatherStep> steps_;
  std::vector<int> persistent_;
  std::vector<std::vector<Place>> places_;  // by unit, in order of steps
  std::int64_t arena_elements_ = 0;
};

}  // namespace troupe::train
