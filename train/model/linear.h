#pragma once
// One or several linear layers over the same input, with weights [out, in] side by side in a unit.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "train/model/parameter_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Outputs of all layers stand side by side in a row. Layers whose weights are neighbours in memory
// become one product.
class Linear {
 public:
  Linear() = default;
  // The parameters of these names, which belong to one unit.
  Linear(const ParameterLayout& layout, std::initializer_list<std::string> names);

  // y = x·Wᵀ. x: (rows, in) dense, y: (rows, out) dense, both fp32. `unit` holds the weights: what
  // type they are of says what is computed in.
  void forward(Operators& operators, const UnitParameters& unit, const float* x, float* y,
               std::int64_t rows) const;
  // dx = dy·W.
  void backward_input(Operators& operators, const UnitParameters& unit, const float* dy, float* dx,
                      std::int64_t rows) const;
  // dW += dyᵀ·x in the unit's gradient buffer, in the arithmetic of the forward pass.
  void backward_weight(Operators& operators, Arithmetic arithmetic, const float* dy, const float* x,
                       float* unit_gradient, std::int64_t rows) const;

 private:
  struct Part {
    ParameterRef weight;      // of the first layer in it
    std::int64_t column = 0;  // of the first output
    std::int64_t outputs = 0;
  };
  std::vector<Part> parts_;
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
};

}  // namespace troupe::train
