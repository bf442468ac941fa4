#include "train/model/norm.h"

#include "runtime/base/check.h"

namespace troupe::train {

Norm::Norm(const ModelConfig& config, const ModelLayout& layout, const std::string& module)
    : kind_(config.norm),
      width_(config.hidden_size),
      eps_(static_cast<float>(config.norm_eps)),
      weight_(layout.ref(module + ".weight")) {
  if (kind_ != NormKind::kLayer) return;
  bias_ = layout.ref(module + ".bias");
  TROUPE_CHECK(bias_.frozen == weight_.frozen, "{} is trained in part", module);
}

void Norm::forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
                   float* statistics, std::int64_t rows) const {
  if (kind_ == NormKind::kRms)
    operators.rms_norm_forward(x, unit.vector(weight_), y, statistics, rows, width_, eps_);
  else
    operators.layer_norm_forward(x, unit.vector(weight_), unit.vector(bias_), y, statistics + rows,
                                 statistics, rows, width_, eps_);
}

void Norm::residual_forward(Operators& operators, const UnitParameters& unit, ConstElements x,
                            ConstElements delta, Elements sum, Elements y, float* statistics,
                            std::int64_t rows) const {
  if (kind_ == NormKind::kRms)
    return operators.residual_rms_norm_forward(x, delta, unit.vector(weight_), sum, y, statistics,
                                               rows, width_, eps_);
  operators.add(x, delta, sum, rows * width_);
  forward(operators, unit, sum, y, statistics, rows);
}

void Norm::apply(Operators& operators, const UnitParameters& unit, ConstElements x,
                 const float* statistics, Elements y, std::int64_t rows) const {
  if (kind_ == NormKind::kRms)
    operators.rms_norm_apply(x, unit.vector(weight_), statistics, y, rows, width_);
  else
    operators.layer_norm_apply(x, unit.vector(weight_), unit.vector(bias_), statistics + rows,
                               statistics, y, rows, width_);
}

void Norm::backward(Operators& operators, const UnitParameters& unit, ConstElements dy,
                    ConstElements x, const float* statistics, Elements dx,
                    const UnitGradient& gradient, std::int64_t rows) const {
  float* dweight = gradient.at(weight_);
  if (kind_ == NormKind::kRms)
    operators.rms_norm_backward(dy, x, unit.vector(weight_), statistics, dx, dweight, rows, width_);
  else
    operators.layer_norm_backward(dy, x, unit.vector(weight_), statistics + rows, statistics, dx,
                                  dweight, gradient.at(bias_), rows, width_);
}

}  // namespace troupe::train
