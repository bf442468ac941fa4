#include "train/config/arguments.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "train/config/keys.h"
#include "train/config/yaml.h"

namespace troupe::train {
namespace {

json::Value as_text(const std::string& text) { return json::Value(boost::json::string(text)); }

// The value of an argument: YAML, except that what cannot be YAML ("@x", "a: b: c") is an error
// that shows the argument.
Result<json::Value> argument_value(const std::string& name, const std::string& text,
                                   const std::string& argument) {
  if (trim(text).empty()) return json::Value(nullptr);
  // Only collections need the parser; words with ':' or '#' stay what they are.
  const char first = trim(text).front();
  if (first != '[' && first != '{' && first != '"' && first != '\'') {
    const std::string word(trim(text));
    auto value = resolve_yaml_scalar(word);
    // A name stays as it was written: 007 is no number there, and no is no boolean.
    const auto* key = find_key(canonical_key(name));
    const bool is_text =
        key && (key->type == ValueType::kText || key->type == ValueType::kTextList);
    return is_text && !value.is_null() ? as_text(word) : value;
  }
  auto value = parse_yaml(text, "argument '" + argument.substr(0, 80) + "'");
  if (!value.ok()) return value.status();
  return std::move(*value);
}

bool is_flag(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--");
}

const KeySpec* key_of(const std::string& name) { return find_key(canonical_key(name)); }

// "seed=3" after a flag is the next setting, not the flag's value.
bool is_override(const std::string& argument) {
  const auto equals = argument.find('=');
  return equals != std::string::npos && key_of(argument.substr(0, equals)) != nullptr;
}

// The key of "--no_x" where x is a boolean key and no_x is none.
std::optional<std::string> negated_key(const std::string& name) {
  if (!name.starts_with("no_") || key_of(name)) return std::nullopt;
  const auto* key = key_of(name.substr(3));
  if (!key || key->type != ValueType::kBool) return std::nullopt;
  return name.substr(3);
}

Status apply_flag(SourceDocument& document, std::span<const std::string> arguments,
                  std::size_t& index) {
  const std::string& argument = arguments[index];
  const auto equals = argument.find('=');
  std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  if (!key_of(name) && find_key("troupe." + name)) name = "troupe." + name;
  const Origin origin{.kind = OriginKind::kFlag};
  if (equals != std::string::npos) {
    auto value = TROUPE_TRY(argument_value(name, argument.substr(equals + 1), argument));
    return set_path(document, name, std::move(value), origin);
  }
  std::vector<std::string> values;
  while (index + 1 < arguments.size() && !is_flag(arguments[index + 1]) &&
         !is_override(arguments[index + 1])) {
    values.push_back(arguments[++index]);
  }
  if (values.empty()) {
    if (const auto negated = negated_key(name)) return set_path(document, *negated, false, origin);
    const auto* key = key_of(name);
    if (key && key->type != ValueType::kBool && key->type != ValueType::kAny &&
        key->allowed.empty()) {
      return error(Code::kInvalidArgument, "--{} needs a value", name);
    }
    return set_path(document, name, true, origin);
  }
  if (values.size() == 1) {
    auto value = TROUPE_TRY(argument_value(name, values.front(), argument + " " + values.front()));
    return set_path(document, name, std::move(value), origin);
  }
  const auto* key = key_of(name);
  if (key && key->type != ValueType::kTextList) {
    return error(Code::kInvalidArgument, "--{} takes one value; '{}' is too much", name, values[1]);
  }
  json::Array list;
  for (const auto& value : values) list.push_back(as_text(value));
  return set_path(document, name, std::move(list), origin);
}

// "key=value".
Status apply_override(SourceDocument& document, const std::string& argument) {
  const auto equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return error(Code::kInvalidArgument,
                 "the argument '{}' is no setting; write key=value or --key value", argument);
  }
  const std::string key(trim(std::string_view(argument).substr(0, equals)));
  auto value = TROUPE_TRY(argument_value(key, argument.substr(equals + 1), argument));
  return set_path(document, key, std::move(value), Origin{.kind = OriginKind::kOverride});
}

}  // namespace

Status apply_arguments(SourceDocument& document, std::span<const std::string> arguments) {
  std::string wrong;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Status applied = is_flag(arguments[i]) ? apply_flag(document, arguments, i)
                                                 : apply_override(document, arguments[i]);
    if (!applied.ok()) wrong += (wrong.empty() ? "" : "\n") + applied.message();
  }
  return wrong.empty() ? Status() : Status(Code::kInvalidArgument, std::move(wrong));
}

}  // namespace troupe::train
