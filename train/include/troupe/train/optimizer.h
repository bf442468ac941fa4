#pragma once
// An optimizer of a program's own, whose update of an element depends on that element alone,
// written in fp32.
//
// The run does the rest: clipping, schedule, which elements are updated when and by which rank,
// groups of parameters with rates of their own, and a state that is kept in bf16. The slots are
// sharded, saved, kept for other machines and planned with as AdamW's are. An update that a kill
// cut off is done again from what the elements held before: it is a pure function of them, of the
// step and of the arguments.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::train {

// The numbers that all elements of a group share in a step.
struct ElementwiseStep {
  float learning_rate = 0;  // of the schedule, times the group's factor
  // Whether weight decay is for this group; how much is the optimizer's own argument.
  bool decays = false;
  std::int64_t updates = 1;  // of the slots, this one included
};

class ElementwiseOptimizer {
 public:
  virtual ~ElementwiseOptimizer() = default;
  // For people: "Lion".
  virtual std::string_view name() const = 0;
  // The names of the buffers that it keeps, each with an element for every parameter, zero before
  // the first update; four at most. Checkpoints have them as "SLOT.PARAMETER": a name has no dot.
  virtual std::vector<std::string> slots() const { return {}; }
  // Element i of `parameters` by gradients[i], clipped, and slots[s][i], in the order of slots();
  // all have as many elements. The result of an element must not depend on the others: shards begin
  // anywhere. From any thread.
  virtual void update_elements(const ElementwiseStep& step, std::span<float> parameters,
                               std::span<const float> gradients,
                               std::span<const std::span<float>> slots) const = 0;
};

}  // namespace troupe::train
