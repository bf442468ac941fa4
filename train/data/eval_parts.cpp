#include "train/data/eval_parts.h"

namespace troupe::train {

json::Array to_json(const std::vector<EvalPart>& parts) {
  json::Array out;
  for (const EvalPart& part : parts)
    out.push_back(json::Object{{"name", part.name}, {"samples", part.samples}});
  return out;
}

std::optional<std::vector<EvalPart>> eval_parts_from_json(const json::Value& value) {
  std::vector<EvalPart> out;
  if (!value.is_array()) return std::nullopt;
  for (const json::Value& part : value.get_array()) {
    const auto name = json::find_string(part, "name");
    const auto samples = json::find_integer(part, "samples");
    if (!name || !samples || *samples < 1) return std::nullopt;
    out.push_back({*name, *samples});
  }
  return out;
}

}  // namespace troupe::train
