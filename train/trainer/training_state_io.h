#pragma once
// Between files' tensors and the flat state.

#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"
#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {

// Fills `parameters` (layout.total_elements()) from a model's weights, whatever type they are
// stored in. Names the tensors that are missing, unknown or of another shape.
Status read_parameters(const Weights& weights, const ModelConfig& config,
                       const ParameterLayout& layout, std::span<float> parameters);

// Fills both moments from a checkpoint's exp_avg.NAME and exp_avg_sq.NAME.
Status read_moments(const SafetensorsFile& file, const ParameterLayout& layout,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq);

// Every parameter's stretch of `flat` as a tensor named `prefix` + its name. Spans into `flat`.
std::vector<StoredTensor> tensors_of(const ParameterLayout& layout, std::string_view prefix,
                                     std::span<const float> flat);

}  // namespace troupe::train
