#include "train/trainer/derived_base.h"

#include <utility>

#include "train/model/adapter_tensors.h"
#include "train/model/model_family.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

}  // namespace

Status DerivedBase::open() {
  if (base_) return {};
  AdaptedModel base = TROUPE_TRY(AdaptedModel::open(*files_, source_.folder, source_.merged));
  if (!config_->tie_word_embeddings) TROUPE_RETURN_IF_ERROR(base.untie_head());
  base_.emplace(std::move(base));
  return {};
}

Status DerivedBase::read_rows_before(const ParameterInfo& parameter, std::span<float> out) {
  ParameterInfo before = parameter;
  before.shape[0] = source_.grown->rows_before;
  before.elements = before.shape[0] * before.shape[1];
  return base_->read_merged(before, AdaptedModel::Rounding::kStoredType,
                            out.first(static_cast<std::size_t>(before.elements)));
}

Status DerivedBase::read_base(const ParameterInfo& parameter, std::span<float> out) {
  TROUPE_RETURN_IF_ERROR(open());
  const EndNames ends = end_names(*config_);
  const std::string embedding = ends.token_embedding + std::string(kWeightSuffix);
  const bool is_head = parameter.name == ends.output + std::string(kWeightSuffix);
  if (!source_.grown || !(is_head || parameter.name == embedding))
    return base_->read_merged(parameter, AdaptedModel::Rounding::kStoredType, out);
  TROUPE_RETURN_IF_ERROR(read_rows_before(parameter, out));
  std::vector<float> of_embedding;
  if (is_head && !source_.grown->described.empty()) {
    of_embedding.resize(out.size());
    TROUPE_RETURN_IF_ERROR(read_rows_before(*model_->find(embedding), of_embedding));
  }
  // A head that was the embedding begins as it.
  source_.grown->fill(out, parameter.shape[1], base_->unties_head() ? embedding : parameter.name,
                      is_head ? std::span<const float>(of_embedding) : out);
  return {};
}

Result<const PrincipalFactors*> DerivedBase::factors_of(const LoraModule& lora,
                                                        std::span<const float> weight) {
  const auto kept = factors_.find(lora.module);
  if (kept != factors_.end()) return &kept->second;
  auto factors = TROUPE_TRY(principal_factors(weight, matrix_of(lora), *source_.pissa));
  return &factors_.emplace(lora.module, std::move(factors)).first->second;
}

PissaMatrix DerivedBase::matrix_of(const LoraModule& lora) const {
  const ParameterInfo& weight = *model_->frozen().find(lora.module + std::string(kWeightSuffix));
  const bool transposed = config_->transposed_weights;
  return {.module = lora.module,
          .rank = lora.rank,
          .in = weight.shape[transposed ? 0 : 1],
          .out = weight.shape[transposed ? 1 : 0],
          .scale = lora.scale,
          .transposed = transposed};
}

const LoraModule* DerivedBase::adapter_of(std::string_view tensor) const {
  if (!source_.pissa) return nullptr;
  for (const LoraModule& lora : model_->trainables().lora)
    for (const std::string& name : {lora.module + std::string(kWeightSuffix),
                                    lora_a_name(lora.module), lora_b_name(lora.module)})
      if (name == tensor) return &lora;
  return nullptr;
}

Status DerivedBase::compute(const ParameterInfo& parameter) {
  if (name_ == parameter.name) return {};
  name_.clear();
  const LoraModule* lora = adapter_of(parameter.name);
  if (!lora) {
    values_.resize(static_cast<std::size_t>(parameter.elements));
    TROUPE_RETURN_IF_ERROR(read_base(parameter, values_));
  } else if (is_adapter_tensor(parameter.name)) {
    if (!factors_.contains(lora->module)) {
      const ParameterInfo& base = *model_->frozen().find(lora->module + std::string(kWeightSuffix));
      std::vector<float> weight(static_cast<std::size_t>(base.elements));
      TROUPE_RETURN_IF_ERROR(read_base(base, weight));
      TROUPE_RETURN_IF_ERROR(factors_of(*lora, weight));
    }
    const PrincipalFactors& factors = factors_.find(lora->module)->second;
    values_ = parameter.name == lora_a_name(lora->module) ? factors.a : factors.b;
  } else {
    values_.resize(static_cast<std::size_t>(parameter.elements));
    TROUPE_RETURN_IF_ERROR(read_base(parameter, values_));
    const PrincipalFactors* factors = TROUPE_TRY(factors_of(*lora, values_));
    subtract_factors(values_, matrix_of(*lora), *factors);
    TROUPE_RETURN_IF_ERROR(base_->round_as_stored(parameter, values_));
  }
  name_ = parameter.name;
  return {};
}

Status DerivedBase::write_start(const std::string& folder, AdapterConfig adapter) {
  adapter.init_lora_weights = true;
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<float>> values;
  for (const ParameterInfo& parameter : model_->trained().parameters()) {
    TROUPE_RETURN_IF_ERROR(compute(parameter));
    values.push_back(values_);
    tensors.push_back({parameter.name, DType::kF32, parameter.shape, {}});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i].data = std::as_bytes(std::span(values[i]));
  TROUPE_RETURN_IF_ERROR(files_->create_directories(folder));
  TROUPE_RETURN_IF_ERROR(write_adapter(*files_, folder, adapter, std::move(tensors)));
  return {};
}

Status DerivedBase::read(const ParameterInfo& parameter, std::int64_t begin,
                         std::span<std::byte> out, DType dtype) {
  TROUPE_RETURN_IF_ERROR(compute(parameter));
  const auto values = std::span<const float>(values_).subspan(static_cast<std::size_t>(begin),
                                                              out.size() / dtype_size(dtype));
  return convert_from_float(values, dtype, out);
}

}  // namespace troupe::train
