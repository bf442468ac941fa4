#pragma once
// Data parallelism as a UnitAccess: every rank holds all parameters, gradients are summed over the
// ranks as each unit's backward pass completes.
//
// Order of sums, so that bits do not depend on timing: each micro-batch's gradient of a unit is
// summed over the ranks by the communicator's fixed tree; the sums of the micro-batches are added
// in their order. The first micro-batch of a step is reduced in place, later ones by way of a
// scratch buffer, which exists only where a step has more than one micro-batch.

#include <span>
#include <vector>

#include "runtime/collective/communicator.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class DataParallelUnits final : public UnitAccess {
 public:
  // `parameters`, `gradients`: (layout.total_elements()), owned by the caller like everything else.
  // `accumulates`: steps have more than one micro-batch.
  DataParallelUnits(const ParameterLayout& layout, Operators& operators,
                    collective::Communicator& communicator, std::span<const float> parameters,
                    std::span<float> gradients, bool accumulates);

  // Before each micro-batch of a step: `first` for its first one.
  void begin_micro_batch(bool first);

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int, Phase) override {}
  Result<std::span<float>> gradient(int unit) override;
  Status gradient_done(int unit) override;

  // Bytes of the scratch buffers: what a memory plan counts.
  static std::size_t scratch_bytes(const ParameterLayout& layout, bool accumulates);

 private:
  std::span<float> stored_gradient(int unit) const;
  std::span<float> scratch(int unit);

  const ParameterLayout& layout_;
  Operators& operators_;
  collective::Communicator& communicator_;
  std::span<const float> parameters_;
  std::span<float> gradients_;
  bool first_ = true;
  // Whether the unit's gradient of this micro-batch was begun.
  std::vector<bool> begun_;
  // Unit 0 keeps its own buffer through the whole backward pass, because with tied embeddings the
  // head adds to it first and the embedding last; the others use one after another.
  std::vector<float> scratch_first_;
  std::vector<float> scratch_other_;
};

}  // namespace troupe::train
