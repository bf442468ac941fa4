#pragma once
// The norms of the decoder's stream: RMS or layer norm, as the configuration says.

#include <cstdint>
#include <string>

#include "train/model/model_config.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class Norm {
 public:
  Norm() = default;
  // `module`: the norm's name, without ".weight".
  Norm(const ModelConfig& config, const ModelLayout& layout, const std::string& module);

  // Weight and bias, where there is one, are both trained or both frozen.
  bool trained() const { return !weight_.frozen; }

  // x, y: (rows, hidden size). statistics: (rows, ModelConfig::norm_statistics()), kept for
  // backward; one pass must give the same `rows` in all calls.
  void forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
               float* statistics, std::int64_t rows) const;
  // sum = x + delta, y = norm(sum).
  void residual_forward(Operators& operators, const UnitParameters& unit, ConstElements x,
                        ConstElements delta, Elements sum, Elements y, float* statistics,
                        std::int64_t rows) const;
  // y again, the same bits.
  void apply(Operators& operators, const UnitParameters& unit, ConstElements x,
             const float* statistics, Elements y, std::int64_t rows) const;
  // Adds to dx and, where the norm is trained, to the unit's gradient, whose norm must hold
  // something even if it is fresh.
  void backward(Operators& operators, const UnitParameters& unit, ConstElements dy, ConstElements x,
                const float* statistics, Elements dx, const UnitGradient& gradient,
                std::int64_t rows) const;

 private:
  NormKind kind_ = NormKind::kRms;
  std::int64_t width_ = 0;
  float eps_ = 0;
  ParameterRef weight_, bias_;
};

}  // namespace troupe::train
