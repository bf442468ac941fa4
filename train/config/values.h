#pragma once
// Between JSON values and typed fields.
//
// from_value takes a canonical value (keys.h); what does not fit is a Status that says what was
// expected. to_value is its inverse.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/base/suggest.h"
#include "train/config/train_config.h"

namespace troupe::train {

// As Boost.JSON wants its keys.
inline boost::json::string_view json_view(std::string_view text) {
  return {text.data(), text.size()};
}

// The value at "section.key"; null where it or a mapping on the way is not there, or is null.
const json::Value* find_path(const json::Object& object, std::string_view path);
json::Value* find_path(json::Object& object, std::string_view path);

// Lenient readings of what users write: "8", 8.0, 5e8 and 8 are the integer 8; "1e-4" is a number;
// "true", "yes", "1" are true. Null and everything else are errors.
Result<bool> read_bool(const json::Value& value);
Result<std::int64_t> read_integer(const json::Value& value);
Result<double> read_number(const json::Value& value);
// Texts as they are; numbers and booleans by their spelling.
Result<std::string> read_text(const json::Value& value);
// A list of texts, or one text of names separated by commas; empty parts vanish.
Result<std::vector<std::string>> read_text_list(const json::Value& value);
// A mapping, or a text of JSON that holds one.
Result<json::Object> read_object(const json::Value& value);

Status from_value(const json::Value& value, bool& out);
Status from_value(const json::Value& value, std::int64_t& out);
Status from_value(const json::Value& value, double& out);
Status from_value(const json::Value& value, std::string& out);
Status from_value(const json::Value& value, std::vector<std::string>& out);
Status from_value(const json::Value& value, json::Object& out);
Status from_value(const json::Value& value, TrainingStage& out);
Status from_value(const json::Value& value, FinetuningType& out);
Status from_value(const json::Value& value, IntervalStrategy& out);
Status from_value(const json::Value& value, ActivationCheckpointing& out);
Status from_value(const json::Value& value, Precision& out);
Status from_value(const json::Value& value, Deterministic& out);
Status from_value(const json::Value& value, OffloadChoice& out);
Status from_value(const json::Value& value, CheckpointFormat& out);
Status from_value(const json::Value& value, StepRules& out);
Status from_value(const json::Value& value, ResumeFrom& out);
Status from_value(const json::Value& value, std::vector<Fault>& out);

json::Value to_value(bool value);
json::Value to_value(const char*) = delete;  // it would be a bool
json::Value to_value(std::int64_t value);
json::Value to_value(double value);
json::Value to_value(const std::string& value);
json::Value to_value(const std::vector<std::string>& value);
json::Value to_value(const json::Object& value);
json::Value to_value(TrainingStage value);
json::Value to_value(FinetuningType value);
json::Value to_value(IntervalStrategy value);
json::Value to_value(ActivationCheckpointing value);
json::Value to_value(Precision value);
json::Value to_value(Deterministic value);
json::Value to_value(OffloadChoice value);
json::Value to_value(CheckpointFormat value);
json::Value to_value(StepRules value);
json::Value to_value(const ResumeFrom& value);
json::Value to_value(const std::vector<Fault>& value);

template <typename T>
Status from_value(const json::Value& value, std::optional<T>& out) {
  if (value.is_null()) {
    out.reset();
    return {};
  }
  return from_value(value, out.emplace());
}
template <typename T>
json::Value to_value(const std::optional<T>& value) {
  return value ? to_value(*value) : json::Value(nullptr);
}

}  // namespace troupe::train
