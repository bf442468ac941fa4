#pragma once
// What a process loads at its first pass on a GPU, loaded before it has anything to compute.

#include <memory>

#include "train/cuda/operators/cuda_operators.h"
#include "train/model/activations.h"
#include "train/model/model_config.h"
#include "train/objectives/objective.h"

namespace troupe::train {

// One pass of a small model of the same kind: the vendor's libraries make their objects, kernels
// come to the device. Its memory, about 100 MiB, is given back. `activations`: of the model's own
// passes, for their types. Nothing depends on its outcome; a failure says that the first pass may
// fail, too.
Status warm_up_device(CudaStream& stream, const ModelConfig& model, const Objective& objective,
                      const ActivationOptions& activations, const CudaOptions& options);

}  // namespace troupe::train
