#include "train/model/norm.h"

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

void layer_norm_forward(const NormPass& p, ConstElements x, Elements y) {
  p.operators.layer_norm_forward(x, p.weight, p.bias, y, p.statistics + p.rows, p.statistics,
                                 p.rows, p.width, p.eps);
}

}  // namespace

const NormKind kRmsNorm{
    .has_bias = false,
    .decays_by_name = true,
    .initial_weight = InitialValue::Kind::kOnes,
    .weight_offset = 0.0f,
    .operators = {OperatorName::rms_norm_forward, OperatorName::residual_rms_norm_forward,
                  OperatorName::rms_norm_apply, OperatorName::rms_norm_backward},
    .statistics = [](std::int64_t rows, std::int64_t) { return rows; },
    .forward =
        [](const NormPass& p, ConstElements x, Elements y) {
          p.operators.rms_norm_forward(x, p.weight, y, p.statistics, p.rows, p.width, p.eps);
        },
    .residual_forward =
        [](const NormPass& p, ConstElements x, ConstElements delta, Elements sum, Elements y) {
          p.operators.residual_rms_norm_forward(x, delta, p.weight, sum, y, p.statistics, p.rows,
                                                p.width, p.eps);
        },
    .apply =
        [](const NormPass& p, ConstElements x, Elements y) {
          p.operators.rms_norm_apply(x, p.weight, p.statistics, y, p.rows, p.width);
        },
    .backward =
        [](const NormPass& p, ConstElements dy, ConstElements x, Elements dx, float* dweight,
           float*) {
          p.operators.rms_norm_backward(dy, x, p.weight, p.statistics, dx, dweight, p.rows,
                                        p.width);
        }};

// Keeps the rows' rstd, then their mean.
const NormKind kLayerNorm{
    .has_bias = true,
    .decays_by_name = false,
    .initial_weight = InitialValue::Kind::kOnes,
    .weight_offset = 0.0f,
    .operators = {OperatorName::layer_norm_forward, OperatorName::layer_norm_apply,
                  OperatorName::layer_norm_backward},
    .statistics = [](std::int64_t rows, std::int64_t) { return 2 * rows; },
    .forward = layer_norm_forward,
    .residual_forward =
        [](const NormPass& p, ConstElements x, ConstElements delta, Elements sum, Elements y) {
          p.operators.add(x, delta, sum, p.rows * p.width);
          layer_norm_forward(p, sum, y);
        },
    .apply =
        [](const NormPass& p, ConstElements x, Elements y) {
          p.operators.layer_norm_apply(x, p.weight, p.bias, p.statistics + p.rows, p.statistics, y,
                                       p.rows, p.width);
        },
    .backward =
        [](const NormPass& p, ConstElements dy, ConstElements x, Elements dx, float* dweight,
           float* dbias) {
          p.operators.layer_norm_backward(dy, x, p.weight, p.statistics + p.rows, p.statistics, dx,
                                          dweight, dbias, p.rows, p.width);
        }};

Norm::Norm(const ModelConfig& config, const ModelLayout& layout, const std::string& module)
    : kind_(config.norm),
      width_(config.hidden_size),
      eps_(static_cast<float>(config.norm_eps)),
      weight_(layout.ref(module + ".weight")) {
  if (!kind_->has_bias) return;
  bias_ = layout.ref(module + ".bias");
  TROUPE_CHECK(bias_.frozen == weight_.frozen, "{} is trained in part", module);
}

NormPass Norm::pass(Operators& operators, const UnitParameters& unit, float* statistics,
                    std::int64_t rows) const {
  return {operators,
          unit.vector(weight_),
          kind_->has_bias ? unit.vector(bias_) : nullptr,
          statistics,
          rows,
          width_,
          eps_};
}

void Norm::backward(Operators& operators, const UnitParameters& unit, ConstElements dy,
                    ConstElements x, float* statistics, Elements dx, const UnitGradient& gradient,
                    std::int64_t rows) const {
  kind_->backward(pass(operators, unit, statistics, rows), dy, x, dx, gradient.at(weight_),
                  kind_->has_bias ? gradient.at(bias_) : nullptr);
}

}  // namespace troupe::train
