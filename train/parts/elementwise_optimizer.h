#pragma once
// An optimizer whose update of an element depends on that element alone, written in fp32.
//
// The base does the rest: which elements are updated when, groups of parameters with rates of their
// own, clipping, and a state that is kept in bf16, whose results are rounded as the run rounds.

#include "train/optimizer/optimizer.h"

namespace troupe::train {

// The numbers that all elements of a group share in a step.
struct ElementwiseStep {
  float learning_rate = 0;  // of the schedule, times the group's factor
  // Whether weight decay is for this group; how much is the optimizer's own argument.
  bool decays = false;
  std::int64_t updates = 1;  // of the slots, this one included
};

class ElementwiseOptimizer : public Optimizer {
 public:
  // Element i of `parameters` by gradients[i], clipped, and slots[s][i], in the order of slots();
  // all have as many elements. The result of an element must not depend on the others: shards begin
  // anywhere. From any thread.
  virtual void update_elements(const ElementwiseStep& step, std::span<float> parameters,
                               std::span<const float> gradients,
                               std::span<const std::span<float>> slots) const = 0;

  std::unique_ptr<const PreparedUpdate> prepare(const OptimizerStep& step,
                                                std::span<const ParameterGroup> groups) const final;
};

}  // namespace troupe::train
