#include "train/config/arguments.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/suggest.h"
#include "train/config/keys.h"
#include "train/config/yaml.h"

namespace troupe::train {
namespace {

json::Value as_text(const std::string& text) { return json::Value(boost::json::string(text)); }

bool is_flag(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--");
}

std::optional<ValueType> our_type(const std::string& name) {
  const auto* key = find_key(canonical_key(name));
  return key ? std::optional(key->type) : std::nullopt;
}

class Arguments {
 public:
  Arguments(SourceDocument& document, std::span<const std::string> arguments, const KeyTypes& types)
      : document_(document), arguments_(arguments), types_(types) {}

  Status apply() {
    std::string wrong;
    for (index_ = 0; index_ < arguments_.size(); ++index_) {
      const Status applied =
          is_flag(arguments_[index_]) ? apply_flag() : apply_override(arguments_[index_]);
      if (!applied.ok()) wrong += (wrong.empty() ? "" : "\n") + applied.message();
    }
    return wrong.empty() ? Status() : Status(Code::kInvalidArgument, std::move(wrong));
  }

 private:
  std::optional<ValueType> type_of(const std::string& name) const {
    if (types_) {
      if (const auto type = types_(name)) return type;
    }
    return our_type(name);
  }

  // The value of an argument: YAML, except that what cannot be YAML ("@x", "a: b: c") is an error
  // that shows the argument.
  Result<json::Value> argument_value(const std::string& name, const std::string& text,
                                     const std::string& argument) const {
    if (trim(text).empty()) return json::Value(nullptr);
    // Only collections need the parser; words with ':' or '#' stay what they are.
    const char first = trim(text).front();
    if (first != '[' && first != '{' && first != '"' && first != '\'') {
      const std::string word(trim(text));
      auto value = resolve_yaml_scalar(word);
      // A name stays as it was written: 007 is no number there, and no is no boolean.
      const auto type = type_of(name);
      const bool is_text = type == ValueType::kText || type == ValueType::kTextList;
      return is_text && !value.is_null() ? as_text(word) : value;
    }
    auto value = parse_yaml(text, "argument '" + argument.substr(0, 80) + "'");
    if (!value.ok()) return value.status();
    return std::move(*value);
  }

  // "seed=3" after a flag is the next setting, not the flag's value.
  bool is_override(const std::string& argument) const {
    const auto equals = argument.find('=');
    return equals != std::string::npos && type_of(argument.substr(0, equals)).has_value();
  }

  // The key of "--no_x" where x is a boolean key and no_x is none.
  std::optional<std::string> negated_key(const std::string& name) const {
    if (!name.starts_with("no_") || type_of(name)) return std::nullopt;
    const auto type = type_of(name.substr(3));
    const bool theirs = types_ && type == ValueType::kAny;
    if (type != ValueType::kBool && !theirs) return std::nullopt;
    return name.substr(3);
  }

  Status apply_flag() {
    const std::string& argument = arguments_[index_];
    const auto equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (!type_of(name) && find_key("troupe." + name)) name = "troupe." + name;
    const Origin origin{.kind = OriginKind::kFlag};
    if (equals != std::string::npos) {
      auto value = TROUPE_TRY(argument_value(name, argument.substr(equals + 1), argument));
      return set_path(document_, name, std::move(value), origin);
    }
    std::vector<std::string> values;
    while (index_ + 1 < arguments_.size() && !is_flag(arguments_[index_ + 1]) &&
           !is_override(arguments_[index_ + 1])) {
      values.push_back(arguments_[++index_]);
    }
    const auto type = type_of(name);
    if (values.empty()) {
      if (const auto negated = negated_key(name)) {
        return set_path(document_, *negated, false, origin);
      }
      const auto* key = find_key(canonical_key(name));
      if (type && type != ValueType::kBool && type != ValueType::kAny &&
          (!key || key->allowed.empty())) {
        return error(Code::kInvalidArgument, "--{} needs a value", name);
      }
      return set_path(document_, name, true, origin);
    }
    if (values.size() == 1) {
      auto value =
          TROUPE_TRY(argument_value(name, values.front(), argument + " " + values.front()));
      return set_path(document_, name, std::move(value), origin);
    }
    if (type && type != ValueType::kTextList) {
      return error(Code::kInvalidArgument, "--{} takes one value; '{}' is too much", name,
                   values[1]);
    }
    json::Array list;
    for (const auto& value : values) list.push_back(as_text(value));
    return set_path(document_, name, std::move(list), origin);
  }

  // "key=value".
  Status apply_override(const std::string& argument) {
    const auto equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      std::error_code failed;
      const bool is_folder = std::filesystem::is_directory(argument, failed);
      return error(Code::kInvalidArgument,
                   "the argument '{}' is no setting; write key=value or --key value, and name a "
                   "file of settings first, as FILE.yaml or FILE.json ({})",
                   argument, is_folder ? "that is a folder" : "nothing of that name is here");
    }
    std::string key(trim(std::string_view(argument).substr(0, equals)));
    if (!type_of(key) && find_key("troupe." + key)) key.insert(0, "troupe.");
    auto value = TROUPE_TRY(argument_value(key, argument.substr(equals + 1), argument));
    return set_path(document_, key, std::move(value), Origin{.kind = OriginKind::kOverride});
  }

  SourceDocument& document_;
  std::span<const std::string> arguments_;
  const KeyTypes& types_;
  std::size_t index_ = 0;
};

}  // namespace

Status apply_arguments(SourceDocument& document, std::span<const std::string> arguments,
                       const KeyTypes& types) {
  return Arguments(document, arguments, types).apply();
}

}  // namespace troupe::train
