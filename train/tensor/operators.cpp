#include "train/tensor/operators.h"

namespace troupe::train {

std::string_view operator_name(OperatorName name) {
  static constexpr std::string_view kNames[] = {
#define TROUPE_OPERATOR(name, ...) #name,
#include "train/tensor/operators.def"
  };
  return kNames[static_cast<std::size_t>(name)];
}

Status needs_operators(const Operators& operators, std::initializer_list<OperatorName> names,
                       std::string_view what) {
  for (const OperatorName name : names)
    if (!operators.supports(name))
      return error(Code::kUnsupported,
                   "{} needs the operator {}, which this device does not have: train on CPUs", what,
                   operator_name(name));
  return {};
}

}  // namespace troupe::train
