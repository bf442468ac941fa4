#pragma once
// A model of a program's own: named tensors, and a loss as a function of them and of numbers. A
// regression or a classification, say, on tensors that no language model has.
//
// The run does the rest: initial values by its seed, sharding and optimizer by its strategy, sums
// over ranks, clipping, schedule, checkpoints, recovery. The tensors are one unit: a rank has all
// of them for the length of a pass, whatever the strategy keeps sharded between passes. Products
// are the program's own code, on one thread of each rank.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "troupe/status.h"

namespace troupe::train {

struct OwnTensor {
  std::string name;                 // as in model.safetensors: "hidden.weight"
  std::vector<std::int64_t> shape;  // none of it 0
  // Of a normal distribution around 0, drawn by the run's seed and the name; 0: zeros.
  double initial_deviation = 0.02;
  bool decays = true;  // weight decay applies
};

class OwnModel {
 public:
  virtual ~OwnModel() = default;
  // The same at every call.
  virtual std::vector<OwnTensor> tensors() const = 0;
  // Numbers of a sample (TrainingSample::values), its target included. At least 1.
  virtual std::int64_t sample_values() const = 0;
  // The sum of the samples' losses. `samples`: count·sample_values() numbers, row by row; `tensors`
  // in the order of tensors(), row-major. Where `gradients` are there, as `tensors`, all zero:
  // replaces them by the derivatives of that sum. A pure function of these and of the arguments, or
  // a step that is computed again after a kill has other bits. An error ends the run with it.
  virtual Result<double> evaluate(std::int64_t count, std::span<const float> samples,
                                  std::span<const std::span<const float>> tensors,
                                  std::span<const std::span<float>> gradients) const = 0;
};

}  // namespace troupe::train
