#include "train/model/linear.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {

Linear::Linear(const ParameterLayout& layout, const std::vector<std::string>& modules,
               bool transposed, EightBits eight_bits)
    : transposed_(transposed) {
  if (eight_bits == EightBits::kAllowed) value_ = Narrow::kValue, passed_back_ = Narrow::kGradient;
  for (const std::string& module : modules) {
    const ParameterInfo* weight = layout.find(module + ".weight");
    TROUPE_CHECK(weight && weight->shape.size() == 2, "{}", module);
    inputs_ = weight->shape[transposed ? 0 : 1];
    const std::int64_t outputs = weight->shape[transposed ? 1 : 0];
    const bool follows =
        !weights_.empty() && weights_.back().parameter.offset + weights_.back().outputs * inputs_ ==
                                 weight->offset_elements;
    if (follows && !transposed)
      weights_.back().outputs += outputs;
    else
      weights_.push_back({parameter_ref(layout, weight->name), outputs_, outputs});
    const std::string bias = module + ".bias";
    if (layout.find(bias)) biases_.push_back({parameter_ref(layout, bias), outputs_, outputs});
    outputs_ += outputs;
  }
}

void Linear::forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
                     std::int64_t rows) const {
  for (const Part& part : weights_)
    operators.gemm({.m = rows,
                    .n = part.outputs,
                    .k = inputs_,
                    .a = x.data,
                    .a_type = x.type,
                    .a_stride = inputs_,
                    .b = unit.matrix(part.parameter),
                    .b_type = unit.dtype,
                    .b_stride = weight_stride(part),
                    .transpose_b = !transposed_,
                    .c = y + part.column,
                    .c_stride = outputs_,
                    .arithmetic = unit.arithmetic(),
                    .narrow_a = value_,
                    .narrow_b = value_});
  for (const Part& part : biases_)
    operators.add_bias(y + part.column, outputs_, unit.vector(part.parameter), rows, part.outputs);
}

void Linear::backward_input(Operators& operators, const UnitParameters& unit, ConstElements dy,
                            Elements dx, std::int64_t rows) const {
  bool accumulate = false;
  for (const Part& part : weights_) {
    operators.gemm({.m = rows,
                    .n = inputs_,
                    .k = part.outputs,
                    .a = (dy + part.column).data,
                    .a_type = dy.type,
                    .a_stride = outputs_,
                    .b = unit.matrix(part.parameter),
                    .b_type = unit.dtype,
                    .b_stride = weight_stride(part),
                    .transpose_b = transposed_,
                    .c = dx,
                    .c_stride = inputs_,
                    .accumulate = accumulate,
                    .arithmetic = unit.arithmetic(),
                    .narrow_a = passed_back_,
                    .narrow_b = value_});
    accumulate = true;
  }
}

void Linear::backward_weight(Operators& operators, Arithmetic arithmetic, ConstElements dy,
                             ConstElements x, const UnitGradient& gradient,
                             std::int64_t rows) const {
  for (const Part& part : weights_) {
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
              .arithmetic = arithmetic,
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
    operators.bias_backward(dy + part.column, outputs_, gradient.at(part.parameter), rows,
                            part.outputs);
}

void Linear::append_written(std::vector<GradientRange>& ranges) const {
  for (const Part& part : weights_)
    ranges.push_back({part.parameter.offset, part.parameter.offset + part.outputs * inputs_});
}

}  // namespace troupe::train
