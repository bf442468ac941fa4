#include "train/trainer/training_state_io.h"

#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

Status read_tensor(const StoredTensor* tensor, const ParameterInfo& parameter,
                   std::string_view name, const ParameterLayout& layout, std::span<float> flat) {
  if (!tensor) return error(Code::kDataLoss, "there is no tensor {}", name);
  if (tensor->shape != parameter.shape) {
    return error(Code::kDataLoss, "the tensor {} has another shape than the model's", name);
  }
  return convert_to_float(tensor->data, tensor->dtype,
                          flat.subspan(static_cast<std::size_t>(layout.flat_offset(parameter)),
                                       static_cast<std::size_t>(parameter.elements)))
      .with("tensor", name);
}

}  // namespace

Status read_parameters(const Weights& weights, const ModelConfig& config,
                       const ParameterLayout& layout, std::span<float> parameters) {
  std::vector<ExpectedTensor> expected;
  for (const auto& parameter : layout.parameters()) {
    expected.push_back({parameter.name, parameter.shape});
  }
  const auto ignored = [&](std::string_view name) {
    // A stored copy of a tied head, and buffers of old checkpoints.
    return (config.tie_word_embeddings && name == "lm_head.weight") ||
           name.ends_with(".rotary_emb.inv_freq");
  };
  TROUPE_RETURN_IF_ERROR(check_weights(weights, expected, ignored));
  for (const auto& parameter : layout.parameters()) {
    TROUPE_RETURN_IF_ERROR(
        read_tensor(weights.find(parameter.name), parameter, parameter.name, layout, parameters));
  }
  return {};
}

Status read_moments(const SafetensorsFile& file, const ParameterLayout& layout,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq) {
  for (const auto& parameter : layout.parameters()) {
    const std::string first = "exp_avg." + parameter.name;
    const std::string second = "exp_avg_sq." + parameter.name;
    TROUPE_RETURN_IF_ERROR(read_tensor(file.find(first), parameter, first, layout, exp_avg));
    TROUPE_RETURN_IF_ERROR(read_tensor(file.find(second), parameter, second, layout, exp_avg_sq));
  }
  return {};
}

std::vector<StoredTensor> tensors_of(const ParameterLayout& layout, std::string_view prefix,
                                     std::span<const float> flat) {
  std::vector<StoredTensor> tensors;
  for (const auto& parameter : layout.parameters()) {
    const auto values = flat.subspan(static_cast<std::size_t>(layout.flat_offset(parameter)),
                                     static_cast<std::size_t>(parameter.elements));
    tensors.push_back({std::string(prefix) + parameter.name, DType::kF32, parameter.shape,
                       std::as_bytes(values)});
  }
  return tensors;
}

}  // namespace troupe::train
