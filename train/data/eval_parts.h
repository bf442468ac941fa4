#pragma once
// Samples that are evaluated on, by the data sets that they came of.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace troupe::train {

// So many samples behind those of the parts before.
struct EvalPart {
  std::string name;
  std::int64_t samples = 0;
  bool operator==(const EvalPart&) const = default;
};

json::Array to_json(const std::vector<EvalPart>& parts);
// Nothing where it is none.
std::optional<std::vector<EvalPart>> eval_parts_from_json(const json::Value& value);

}  // namespace troupe::train
