#include "train/config/keys.h"

#include <algorithm>
#include <array>
#include <map>

#include "train/config/key_builder.h"
#include "train/config/key_groups.h"

namespace troupe::train {
namespace {

bool has_word(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct Group {
  const char* title;
  void (*add)(KeyTable& table);
};
// In the order of the manual. Several of one title follow each other.
constexpr std::array kGroups{
    Group{"Model", add_model_keys},
    Group{"Method", add_method_keys},
    Group{"Method", add_optimizer_method_keys},
    Group{"Data", add_data_keys},
    Group{"Evaluation", add_evaluation_keys},
    Group{"Training", add_training_keys},
    Group{"Training", add_trainer_detail_keys},
    Group{"Launch", add_launch_keys},
    Group{"Troupe's own", add_troupe_keys},
    Group{"Troupe's own", add_sharding_keys},
    Group{"Troupe's own", add_row_keys},
};

std::vector<KeySpec> build_table() {
  KeyTable table;
  for (const Group& group : kGroups) group.add(table);
  return table.take();
}

Result<json::Value> typed_value(const KeySpec& key, const json::Value& value) {
  switch (key.type) {
    case ValueType::kBool:
      return json::Value(TROUPE_TRY(read_bool(value)));
    case ValueType::kInteger:
      return json::Value(TROUPE_TRY(read_integer(value)));
    case ValueType::kNumber:
      return json::Value(TROUPE_TRY(read_number(value)));
    case ValueType::kText: {
      // YAML reads the bare words no, off, on as booleans.
      if (value.is_bool() && !key.allowed.empty() && !has_word(key.allowed, value_text(value))) {
        for (const std::string word :
             {value.get_bool() ? "on" : "no", value.get_bool() ? "yes" : "off"}) {
          if (has_word(key.allowed, word)) return to_value(word);
        }
      }
      return to_value(TROUPE_TRY(read_text(value)));
    }
    case ValueType::kTextList:
      return to_value(TROUPE_TRY(read_text_list(value)));
    case ValueType::kObject:
      return json::Value(TROUPE_TRY(read_object(value)));
    case ValueType::kAny:
      return value;
  }
  return value;
}

Status check_word(const KeySpec& key, const std::string& word) {
  if (key.allowed.empty() || has_word(key.allowed, word)) return {};
  // The nearest word to "gpu" is "cpu".
  if (word == "gpu" && has_word(key.allowed, "cuda"))
    return error(Code::kInvalidArgument, "'gpu' is no valid value; one of {}; GPUs are 'cuda'",
                 join_words(key.allowed));
  std::vector<std::string> here = key.allowed;  // what is refused all the same is no way out
  std::erase_if(here, [&](const std::string& one) { return has_word(key.refuses, one); });
  return error(Code::kInvalidArgument, "'{}' is no valid value; one of {}{}", word,
               join_words(here), did_you_mean(word, here));
}

Status check_range(const KeySpec& key, double number) {
  if (key.least && (number < *key.least || (key.above_least && number == *key.least))) {
    return error(Code::kInvalidArgument, "{} is too small: {} {} is asked for", number,
                 key.above_least ? "more than" : "at least", *key.least);
  }
  if (key.most && number > *key.most) {
    return error(Code::kInvalidArgument, "{} is too large: at most {} is asked for", number,
                 *key.most);
  }
  return {};
}

}  // namespace

std::string_view treatment_name(Treatment treatment) {
  switch (treatment) {
    case Treatment::kImplemented:
      return "implemented";
    case Treatment::kInert:
      return "inert";
    case Treatment::kRefused:
      return "refused";
  }
  return "refused";
}

const std::vector<KeySpec>& key_table() {
  static const std::vector<KeySpec> table = build_table();
  return table;
}

std::vector<KeyGroup> key_groups() {
  std::vector<KeyGroup> groups;
  for (const Group& group : kGroups) {
    KeyTable table;
    group.add(table);
    if (groups.empty() || groups.back().title != group.title) groups.push_back({group.title, {}});
    for (KeySpec& key : table.take()) groups.back().keys.push_back(std::move(key));
  }
  return groups;
}

bool acts_in_training(const KeySpec& key) {
  return key.treatment == Treatment::kImplemented && !key.name.starts_with("export_");
}

const KeySpec* find_key(std::string_view name) {
  static const auto index = [] {
    std::map<std::string, const KeySpec*, std::less<>> out;
    for (const auto& key : key_table()) out.emplace(key.name, &key);
    return out;
  }();
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

std::string_view canonical_key(std::string_view name) {
  // Renamed by Hugging Face and LLaMA-Factory; old files still carry them.
  static const std::map<std::string_view, std::string_view> renamed = {
      {"evaluation_strategy", "eval_strategy"},
      {"no_cuda", "use_cpu"},
      {"per_gpu_train_batch_size", "per_device_train_batch_size"},
      {"per_gpu_eval_batch_size", "per_device_eval_batch_size"},
  };
  const auto found = renamed.find(name);
  return found == renamed.end() ? name : found->second;
}

const std::vector<std::string>& key_names() {
  static const auto names = [] {
    std::vector<std::string> out;
    for (const auto& key : key_table()) out.push_back(key.name);
    return out;
  }();
  return names;
}

Result<json::Value> canonical_value(const KeySpec& key, const json::Value& value) {
  if (value.is_null()) {
    if (key.nullable) return key.type == ValueType::kTextList ? json::Value(json::Array()) : value;
    return error(Code::kInvalidArgument,
                 "null is no value here; leave the key out for its default, {}",
                 value_text(key.default_value));
  }
  auto typed = TROUPE_TRY(typed_value(key, value));
  if (typed.is_number()) TROUPE_RETURN_IF_ERROR(check_range(key, typed.to_number<double>()));
  std::vector<std::string> words;
  if (const auto* list = typed.if_array()) {
    for (const auto& word : *list) words.push_back(value_text(word));
  } else {
    words.push_back(value_text(typed));
  }
  for (const auto& word : words) TROUPE_RETURN_IF_ERROR(check_word(key, word));
  return typed;
}

bool asks_for_nothing(const KeySpec& key, const json::Value& value) {
  if (value.is_null() || value == key.default_value) return true;
  if (value.is_array() && value.get_array().empty()) return true;
  if (value.is_object() && value.get_object().empty()) return true;
  if (value.is_string() && value.get_string().empty()) return true;
  if (const auto* array = value.if_array()) {
    return std::all_of(array->begin(), array->end(), [&](const json::Value& item) {
      return has_word(key.accepts, value_text(item));
    });
  }
  return has_word(key.accepts, value_text(value));
}

Verdict verdict_of(const KeySpec& key, const json::Value& value) {
  const bool refused = key.treatment == Treatment::kRefused
                           ? !asks_for_nothing(key, value)
                           : has_word(key.refuses, value_text(value));
  if (refused) {
    return {Treatment::kRefused,
            fmt::format("{}={} is not supported: {}; {}", key.name,
                        key.secret ? "(hidden)" : value_text(value), key.reason, key.instead)};
  }
  if (key.treatment == Treatment::kRefused) return {Treatment::kInert, "asks for nothing"};
  if (key.treatment == Treatment::kInert) return {Treatment::kInert, key.reason};
  return {Treatment::kImplemented, key.meaning};
}

std::string value_text(const json::Value& value) {
  if (value.is_string()) return std::string(value.get_string().data(), value.get_string().size());
  if (value.is_double()) return json::python_float(value.get_double());
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const auto& item : value.get_array()) parts.push_back(value_text(item));
    return join_words(parts, ",");
  }
  return json::write(value);
}

}  // namespace troupe::train
