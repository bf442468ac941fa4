#include "train/model/linear.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {

Linear::Linear(const ModelLayout& layout, const std::vector<std::string>& modules, bool transposed,
               EightBits eight_bits, std::optional<LinearPlace> place)
    : transposed_(transposed) {
  if (place) adapters_ = LowRankAdapters(layout, modules, transposed, *place);
  if (eight_bits == EightBits::kAllowed) value_ = Narrow::kValue, passed_back_ = Narrow::kGradient;
  for (const std::string& module : modules) {
    const ParameterInfo* weight = layout.find(module + ".weight");
    TROUPE_CHECK(weight && weight->shape.size() == 2, "{}", module);
    inputs_ = weight->shape[transposed ? 0 : 1];
    const std::int64_t outputs = weight->shape[transposed ? 1 : 0];
    const ParameterRef ref = layout.ref(weight->name);
    const bool follows =
        !weights_.empty() && !ref.quantization && weights_.back().parameter.frozen == ref.frozen &&
        weights_.back().parameter.offset + weights_.back().outputs * inputs_ == ref.offset;
    if (follows && !transposed)
      weights_.back().outputs += outputs;
    else
      weights_.push_back({ref, outputs_, outputs});
    const std::string bias = module + ".bias";
    if (layout.find(bias)) biases_.push_back({layout.ref(bias), outputs_, outputs});
    outputs_ += outputs;
  }
  for (const Part& part : weights_) part_biases_.push_back(bias_of(part));
}

std::optional<ParameterRef> Linear::bias_of(const Part& part) const {
  std::optional<ParameterRef> first;
  std::int64_t covered = 0;
  for (const Part& bias : biases_) {
    if (bias.column < part.column || bias.column >= part.column + part.outputs) continue;
    if (!first) first = bias.parameter;
    // In the unit, and where its vectors lie in fp32.
    if (bias.column != part.column + covered || bias.parameter.frozen != first->frozen ||
        bias.parameter.offset != first->offset + covered ||
        bias.parameter.vector_offset != first->vector_offset + covered)
      return std::nullopt;
    covered += bias.outputs;
  }
  return covered == part.outputs ? first : std::nullopt;
}

Gemm Linear::product(const Part& part, const UnitParameters& unit, ConstElements x, Elements y,
                     std::int64_t rows) const {
  return {.m = rows,
          .n = part.outputs,
          .k = inputs_,
          .a = x.data,
          .a_type = x.type,
          .a_stride = inputs_,
          .b = unit.matrix(part.parameter),
          .b_type = unit.dtype(part.parameter),
          .b_stride = weight_stride(part),
          .transpose_b = by_output(part),
          .b_quantized = unit.quantized(part.parameter, part.outputs, inputs_),
          .c = y + part.column,
          .c_stride = outputs_,
          .arithmetic = unit.arithmetic(part.parameter),
          .narrow_a = value_,
          .narrow_b = value_};
}

Gemm Linear::gradient_product(const Part& part, const UnitParameters& unit, ConstElements dy,
                              Elements dx, std::int64_t rows) const {
  return {.m = rows,
          .n = inputs_,
          .k = part.outputs,
          .a = (dy + part.column).data,
          .a_type = dy.type,
          .a_stride = outputs_,
          .b = unit.matrix(part.parameter),
          .b_type = unit.dtype(part.parameter),
          .b_stride = weight_stride(part),
          .transpose_b = !by_output(part),
          .b_quantized = unit.quantized(part.parameter, part.outputs, inputs_),
          .c = dx,
          .c_stride = inputs_,
          .arithmetic = unit.arithmetic(part.parameter),
          .narrow_a = passed_back_,
          .narrow_b = value_};
}

void Linear::forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
                     std::int64_t rows, const LayerPass& pass) const {
  const auto add_biases = [&](const Part& part) {
    for (const Part& bias : biases_)
      if (bias.column >= part.column && bias.column < part.column + part.outputs)
        operators.add_bias(y + bias.column, outputs_, unit.vector(bias.parameter), rows,
                           bias.outputs);
  };
  const bool biases_last = adapters_.scales_outputs();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const Part& part = weights_[i];
    const Gemm plain = product(part, unit, x, y, rows);
    if (part_biases_[i] && !biases_last) {
      Gemm biased = plain;
      biased.epilogue = Epilogue::kBias;
      biased.bias = unit.vector_as(*part_biases_[i], y.type);
      if (operators.fuses(biased)) {
        operators.gemm(biased);
        continue;
      }
    }
    operators.gemm(plain);
    if (!biases_last) add_biases(part);
  }
  adapters_.forward(operators, unit, x, y, rows, pass);
  if (biases_last)
    for (const Part& part : weights_) add_biases(part);
}

std::optional<Gemm> Linear::gelu_product(const UnitParameters& unit, ConstElements x,
                                         Elements gelu_input, Elements y, std::int64_t rows) const {
  if (weights_.size() != 1 || !part_biases_.front() || !adapters_.empty()) return std::nullopt;
  Gemm gemm = product(weights_.front(), unit, x, y, rows);
  gemm.epilogue = Epilogue::kBiasGelu;
  gemm.bias = unit.vector_as(*part_biases_.front(), y.type);
  gemm.gelu_input = gelu_input;
  return gemm;
}

void Linear::backward_input(Operators& operators, const UnitParameters& unit, ConstElements dy,
                            Elements dx, std::int64_t rows, const LayerPass& pass) const {
  bool accumulate = false;
  const ConstElements passed_back = adapters_.passed_back(dy, pass);
  for (const Part& part : weights_) {
    Gemm gemm = gradient_product(part, unit, passed_back, dx, rows);
    gemm.accumulate = accumulate;
    operators.gemm(gemm);
    accumulate = true;
  }
  adapters_.backward_input(operators, unit, dy, dx, rows, pass);
}

std::optional<Gemm> Linear::gelu_gradient_product(const UnitParameters& unit, ConstElements dy,
                                                  Elements gelu_input, Elements dx,
                                                  std::int64_t rows) const {
  if (weights_.size() != 1 || !adapters_.empty()) return std::nullopt;
  Gemm gemm = gradient_product(weights_.front(), unit, dy, dx, rows);
  gemm.epilogue = Epilogue::kGeluGradient;
  gemm.gelu_input = gelu_input;
  return gemm;
}

void Linear::backward_weight(Operators& operators, const UnitParameters& unit, ConstElements dy,
                             ConstElements x, const UnitGradient& gradient, std::int64_t rows,
                             const LayerPass& pass) const {
  adapters_.backward_weight(operators, unit, dy, x, gradient, rows, pass);
  for (const Part& part : weights_) {
    if (part.parameter.frozen) continue;
    Gemm gemm{.m = part.outputs,
              .n = inputs_,
              .k = rows,
              .a = (dy + part.column).data,
              .a_type = dy.type,
              .a_stride = outputs_,
              .transpose_a = true,
              .b = x.data,
              .b_type = x.type,
              .b_stride = inputs_,
              .c = gradient.at(part.parameter),
              .c_stride = weight_stride(part),
              .accumulate = !gradient.fresh,
              .arithmetic = unit.arithmetic(part.parameter),
              .narrow_a = passed_back_,
              .narrow_b = value_};
    if (transposed_) {
      std::swap(gemm.m, gemm.n);
      std::swap(gemm.a, gemm.b);
      std::swap(gemm.a_type, gemm.b_type);
      std::swap(gemm.a_stride, gemm.b_stride);
      std::swap(gemm.narrow_a, gemm.narrow_b);
    }
    operators.gemm(gemm);
  }
  for (const Part& part : biases_)
    if (!part.parameter.frozen)
      operators.bias_backward(dy + part.column, outputs_, gradient.at(part.parameter), rows,
                              part.outputs);
}

void Linear::append_written(std::vector<GradientRange>& ranges) const {
  adapters_.append_written(ranges);
  for (const Part& part : weights_)
    if (!part.parameter.frozen)
      ranges.push_back({part.parameter.offset, part.parameter.offset + part.outputs * inputs_});
}

}  // namespace troupe::train
