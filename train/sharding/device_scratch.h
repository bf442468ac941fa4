#pragma once
// How much scratch memory a model's passes take on a GPU, found without one.

#include <cstdint>
#include <memory>

#include "train/cuda/device/cuda_library.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/model/activations.h"
#include "train/model/model_config.h"
#include "train/objectives/objective.h"

namespace troupe::train {

// Bytes of any operator of a forward and backward pass over the largest micro-batches that
// `activations` hold, by `objective`: rows beside each other, and where `ragged` all tokens in one
// row. workspace_bytes: of products. `options`: of the operators that will run. Asks the library
// for sizes and whether cuDNN is there, nothing of a device; null: the sizes that the library of
// this program's version has, with cuDNN.
Result<std::int64_t> device_scratch_bytes(std::shared_ptr<const CudaLibrary> library,
                                          const ModelConfig& model, const Objective& objective,
                                          const ActivationOptions& activations,
                                          std::int64_t workspace_bytes,
                                          const CudaOptions& options = {}, bool ragged = true);

// The same passes with operators that will compute them: what these ask of the vendor's libraries
// once is asked, as it will be with `scratch_bytes` of scratch memory, and nothing is run. The
// first failure.
Status plan_device_passes(CudaOperators& operators, const ModelConfig& model,
                          const Objective& objective, const ActivationOptions& activations,
                          std::int64_t scratch_bytes, bool ragged = true);

}  // namespace troupe::train
