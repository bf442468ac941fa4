#include "train/model/linear.h"

#include "runtime/base/check.h"

namespace troupe::train {

Linear::Linear(const ParameterLayout& layout, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    const ParameterInfo* parameter = layout.find(name);
    TROUPE_CHECK(parameter && parameter->shape.size() == 2, "{}", name);
    inputs_ = parameter->shape[1];
    const std::int64_t outputs = parameter->shape[0];
    if (!parts_.empty() &&
        parts_.back().weight.offset + parts_.back().outputs * inputs_ == parameter->offset_elements)
      parts_.back().outputs += outputs;
    else
      parts_.push_back({parameter_ref(layout, name), outputs_, outputs});
    outputs_ += outputs;
  }
}

void Linear::forward(Operators& operators, const UnitParameters& unit, const float* x, float* y,
                     std::int64_t rows) const {
  for (const Part& part : parts_)
    operators.gemm({.m = rows,
                    .n = part.outputs,
                    .k = inputs_,
                    .a = x,
                    .a_stride = inputs_,
                    .b = unit.matrix(part.weight),
                    .b_type = unit.dtype,
                    .b_stride = inputs_,
                    .transpose_b = true,
                    .c = y + part.column,
                    .c_stride = outputs_,
                    .arithmetic = unit.arithmetic()});
}

void Linear::backward_input(Operators& operators, const UnitParameters& unit, const float* dy,
                            float* dx, std::int64_t rows) const {
  bool accumulate = false;
  for (const Part& part : parts_) {
    operators.gemm({.m = rows,
                    .n = inputs_,
                    .k = part.outputs,
                    .a = dy + part.column,
                    .a_stride = outputs_,
                    .b = unit.matrix(part.weight),
                    .b_type = unit.dtype,
                    .b_stride = inputs_,
                    .c = dx,
                    .c_stride = inputs_,
                    .accumulate = accumulate,
                    .arithmetic = unit.arithmetic()});
    accumulate = true;
  }
}

void Linear::backward_weight(Operators& operators, Arithmetic arithmetic, const float* dy,
                             const float* x, float* unit_gradient, std::int64_t rows) const {
  for (const Part& part : parts_)
    operators.gemm({.m = part.outputs,
                    .n = inputs_,
                    .k = rows,
                    .a = dy + part.column,
                    .a_stride = outputs_,
                    .transpose_a = true,
                    .b = x,
                    .b_stride = inputs_,
                    .c = unit_gradient + part.weight.offset,
                    .c_stride = inputs_,
                    .accumulate = true,
                    .arithmetic = arithmetic});
}

}  // namespace troupe::train
