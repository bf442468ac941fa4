#include "train/config/values.h"

#include <cmath>
#include <utility>

#include "train/config/keys.h"
#include "train/config/yaml.h"

namespace troupe::train {
namespace {

// Whole doubles up to here are exact.
constexpr double kExactMax = 9007199254740992.0;

Status wrong(std::string_view expected, const json::Value& value) {
  auto text = json::write(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return error(Code::kInvalidArgument, "expected {}, found {}", expected, text);
}

std::string text_of(const json::Value& value) {
  return std::string(value.get_string().data(), value.get_string().size());
}

json::Value make_text(std::string_view text) {
  return json::Value(boost::json::string(json_view(text)));
}

}  // namespace

const json::Value* find_path(const json::Object& object, std::string_view path) {
  const auto dot = path.find('.');
  const auto* value = object.if_contains(json_view(path.substr(0, dot)));
  if (!value || value->is_null()) return nullptr;
  if (dot == std::string_view::npos) return value;
  return value->is_object() ? find_path(value->get_object(), path.substr(dot + 1)) : nullptr;
}
json::Value* find_path(json::Object& object, std::string_view path) {
  return const_cast<json::Value*>(find_path(std::as_const(object), path));
}

Result<bool> read_bool(const json::Value& value) {
  if (value.is_bool()) return value.get_bool();
  if (value.is_int64() && (value.get_int64() == 0 || value.get_int64() == 1)) {
    return value.get_int64() == 1;
  }
  if (value.is_string()) {
    const auto text = text_of(value);
    const auto resolved = resolve_yaml_scalar(text);
    if (resolved.is_bool()) return resolved.get_bool();
    for (const auto* yes : {"y", "t", "1", "Y", "T"}) {
      if (text == yes) return true;
    }
    for (const auto* no : {"n", "f", "0", "N", "F"}) {
      if (text == no) return false;
    }
  }
  return wrong("true or false", value);
}

Result<double> read_number(const json::Value& value) {
  const auto number =
      value.is_string() ? resolve_yaml_scalar(std::string(trim(text_of(value)))) : value;
  if (!number.is_number()) return wrong("a number", value);
  const double out = number.to_number<double>();
  if (!std::isfinite(out)) return wrong("a finite number", value);
  return out;
}

Result<std::int64_t> read_integer(const json::Value& value) {
  const auto number =
      value.is_string() ? resolve_yaml_scalar(std::string(trim(text_of(value)))) : value;
  if (number.is_int64()) return number.get_int64();
  if (number.is_double()) {
    const double whole = number.get_double();
    if (std::fabs(whole) <= kExactMax && whole == std::floor(whole)) {
      return static_cast<std::int64_t>(whole);
    }
  }
  return wrong("a whole number", value);
}

Result<std::string> read_text(const json::Value& value) {
  if (value.is_string()) return text_of(value);
  if (value.is_bool() || value.is_number()) return json::write(value);
  return wrong("a text", value);
}

Result<std::vector<std::string>> read_text_list(const json::Value& value) {
  std::vector<std::string> out;
  if (const auto* array = value.if_array()) {
    for (const auto& item : *array) out.push_back(TROUPE_TRY(read_text(item)));
    return out;
  }
  const auto text = TROUPE_TRY(read_text(value));
  for (const auto& part : split_words(text, ',')) {
    if (const auto name = trim(part); !name.empty()) out.emplace_back(name);
  }
  return out;
}

Result<json::Object> read_object(const json::Value& value) {
  if (value.is_object()) return value.get_object();
  if (value.is_string()) {
    const auto text = text_of(value);
    if (trim(text).starts_with('{')) {
      auto parsed = TROUPE_TRY(json::parse(text, "the text"));
      if (parsed.is_object()) return parsed.get_object();
    }
  }
  return wrong("a mapping", value);
}

Status from_value(const json::Value& value, bool& out) {
  out = TROUPE_TRY(read_bool(value));
  return {};
}
Status from_value(const json::Value& value, std::int64_t& out) {
  out = TROUPE_TRY(read_integer(value));
  return {};
}
Status from_value(const json::Value& value, double& out) {
  out = TROUPE_TRY(read_number(value));
  return {};
}
Status from_value(const json::Value& value, std::string& out) {
  out.clear();
  if (value.is_null()) return {};
  out = TROUPE_TRY(read_text(value));
  return {};
}
Status from_value(const json::Value& value, std::vector<std::string>& out) {
  out.clear();
  if (value.is_null()) return {};
  out = TROUPE_TRY(read_text_list(value));
  return {};
}
Status from_value(const json::Value& value, json::Object& out) {
  out.clear();
  if (value.is_null()) return {};
  out = TROUPE_TRY(read_object(value));
  return {};
}
Status from_value(const json::Value& value, ResumeFrom& out) {
  out = {};
  if (value.is_null()) return {};
  const auto flag = value.is_string() ? resolve_yaml_scalar(text_of(value)) : value;
  if (flag.is_bool()) {
    out.mode = flag.get_bool() ? ResumeFrom::Mode::kLatest : ResumeFrom::Mode::kNever;
    return {};
  }
  if (flag.is_null()) return {};
  if (!value.is_string()) return wrong("a folder, true, false or null", value);
  out.mode = ResumeFrom::Mode::kPath;
  out.path = text_of(value);
  return {};
}
Status from_value(const json::Value& value, std::vector<Fault>& out) {
  out.clear();
  if (value.is_null()) return {};
  out = TROUPE_TRY(parse_faults(TROUPE_TRY(read_text(value))));
  return {};
}

json::Value to_value(bool value) { return value; }
json::Value to_value(std::int64_t value) { return value; }
json::Value to_value(double value) { return value; }
json::Value to_value(const std::string& value) { return make_text(value); }
json::Value to_value(const std::vector<std::string>& value) {
  json::Array out;
  for (const auto& text : value) out.push_back(make_text(text));
  return out;
}
json::Value to_value(const json::Object& value) { return value; }
json::Value to_value(const ResumeFrom& value) {
  switch (value.mode) {
    case ResumeFrom::Mode::kAuto:
      return nullptr;
    case ResumeFrom::Mode::kNever:
      return false;
    case ResumeFrom::Mode::kLatest:
      return true;
    case ResumeFrom::Mode::kPath:
      return make_text(value.path);
  }
  return nullptr;
}
json::Value to_value(const std::vector<Fault>& value) { return make_text(faults_text(value)); }

}  // namespace troupe::train
