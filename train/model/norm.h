#pragma once
// The norms of the decoder's stream, of the kind that the configuration says.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// The arguments of a norm's functions.
struct NormPass {
  Operators& operators;
  const float* weight;  // (width)
  const float* bias;    // (width), or null where the kind has none
  float* statistics;    // NormKind::statistics() of these rows
  std::int64_t rows;
  std::int64_t width;
  float eps;
};

// A norm as calls of operators; x, y and so on are (rows, width).
struct NormKind {
  bool has_bias;
  // torch.nn.LayerNorm has no weight decay, whatever a module of it is named.
  bool decays_by_name;
  InitialValue::Kind initial_weight;
  // Rows are multiplied by the sum of this and the weight.
  float weight_offset;
  std::initializer_list<OperatorName> operators;  // that it calls
  // Numbers that are kept for the backward pass.
  std::int64_t (*statistics)(std::int64_t rows, std::int64_t width);
  void (*forward)(const NormPass& pass, ConstElements x, Elements y);
  // sum = x + delta, y = norm(sum).
  void (*residual_forward)(const NormPass& pass, ConstElements x, ConstElements delta, Elements sum,
                           Elements y);
  // y again, the same bits.
  void (*apply)(const NormPass& pass, ConstElements x, Elements y);
  // Adds to dx and, where they are not null, to dweight and dbias.
  void (*backward)(const NormPass& pass, ConstElements dy, ConstElements x, Elements dx,
                   float* dweight, float* dbias);
};

// kRmsNorm and kLayerNorm are declared in model_config.h.

class Norm {
 public:
  Norm() = default;
  // `module`: the norm's name, without ".weight".
  Norm(const ModelConfig& config, const ModelLayout& layout, const std::string& module);

  // Weight and bias, where there is one, are both trained or both frozen.
  bool trained() const { return !weight_.frozen; }

  // x, y: (rows, hidden size). statistics: ModelConfig::norm_statistics(rows), kept for backward;
  // one pass must give the same `rows` in all calls.
  void forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
               float* statistics, std::int64_t rows) const {
    kind_->forward(pass(operators, unit, statistics, rows), x, y);
  }
  // sum = x + delta, y = norm(sum).
  void residual_forward(Operators& operators, const UnitParameters& unit, ConstElements x,
                        ConstElements delta, Elements sum, Elements y, float* statistics,
                        std::int64_t rows) const {
    kind_->residual_forward(pass(operators, unit, statistics, rows), x, delta, sum, y);
  }
  // y again, the same bits.
  void apply(Operators& operators, const UnitParameters& unit, ConstElements x, float* statistics,
             Elements y, std::int64_t rows) const {
    kind_->apply(pass(operators, unit, statistics, rows), x, y);
  }
  // Adds to dx and, where the norm is trained, to the unit's gradient, whose norm must hold
  // something even if it is fresh.
  void backward(Operators& operators, const UnitParameters& unit, ConstElements dy, ConstElements x,
                float* statistics, Elements dx, const UnitGradient& gradient,
                std::int64_t rows) const;

 private:
  NormPass pass(Operators& operators, const UnitParameters& unit, float* statistics,
                std::int64_t rows) const;

  const NormKind* kind_ = nullptr;
  std::int64_t width_ = 0;
  float eps_ = 0;
  ParameterRef weight_, bias_;
};

}  // namespace troupe::train
