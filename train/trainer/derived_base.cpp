#include "train/trainer/derived_base.h"

#include <utility>

#include "train/tensor/convert.h"

namespace troupe::train {

Status DerivedBase::open() {
  if (base_) return {};
  AdaptedModel base = TROUPE_TRY(AdaptedModel::open(*files_, source_.folder, source_.merged));
  if (!config_->tie_word_embeddings) TROUPE_RETURN_IF_ERROR(base.untie_head());
  base_.emplace(std::move(base));
  return {};
}

Status DerivedBase::compute(const ParameterInfo& parameter) {
  if (name_ == parameter.name) return {};
  TROUPE_RETURN_IF_ERROR(open());
  name_.clear();
  values_.resize(static_cast<std::size_t>(parameter.elements));
  TROUPE_RETURN_IF_ERROR(
      base_->read_merged(parameter, AdaptedModel::Rounding::kStoredType, values_));
  name_ = parameter.name;
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
