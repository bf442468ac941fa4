#pragma once
// What a pass must zero of a gradient that holds nothing yet. Private to this folder.

#include <cstdint>
#include <vector>

#include "train/model/parameter_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Elements [begin, end) of a unit.
struct GradientRange {
  std::int64_t begin = 0, end = 0;
};

// All that is trained of a unit but what products write in every pass: norms, biases, embeddings,
// padding. Zeroing matrices, too, for products that add to them would send them through memory
// twice more.
class GradientRest {
 public:
  GradientRest() = default;
  // `written`: by products, in any order; the ranges do not overlap.
  GradientRest(const ParameterLayout& layout, int unit, std::vector<GradientRange> written);

  // Nothing to do unless the gradient is fresh.
  void zero(Operators& operators, const UnitGradient& gradient) const;

 private:
  std::vector<GradientRange> ranges_;
};

}  // namespace troupe::train
