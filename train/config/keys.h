#pragma once
// The table of every configuration key: name, type, default, treatment, meaning.
//
// One row says everything about a key; loading, `--explain`, errors and the run's record all read
// this table. Names, types and defaults: LLaMA-Factory's hparams and Hugging Face's
// TrainingArguments. Keys of ours carry their path, "troupe.workers".

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/config/train_config.h"

namespace troupe::train {

enum class ValueType {
  kBool,
  kInteger,
  kNumber,
  kText,
  kTextList,  // a YAML list, or one text of names separated by commas
  kObject,    // a YAML mapping, or a text of JSON
  kAny,       // bool, text, list or mapping: the row's own check decides
};

enum class Treatment {
  kImplemented,  // the run obeys it
  kInert,        // accepted, without effect on the results
  kRefused,  // an error, unless the value asks for nothing (default, null, or listed in `accepts`)
};
std::string_view treatment_name(Treatment treatment);

struct KeySpec {
  std::string name;
  ValueType type = ValueType::kText;
  json::Value default_value;  // canonical
  bool nullable = false;
  Treatment treatment = Treatment::kInert;
  std::string meaning;  // one line
  std::string reason;   // why inert, or why refused
  std::string instead;  // what to use where it is refused

  std::vector<std::string> allowed;  // all values, or words of a list; empty: any
  std::vector<std::string> accepts;  // of a refused or said key: values that ask for nothing
  std::vector<std::string> refuses;  // of another key: values that are refused nevertheless
  std::optional<double> least;       // numbers, inclusive
  std::optional<double> most;
  bool above_least = false;  // the least value itself is not allowed
  bool said = false;         // an inert one whose reason is said when a run starts
  bool secret = false;       // a credential: never shown, never stored

  // Of an implemented one: whether it has an effect in a configuration, and why not where it has
  // none. Without it, always.
  std::function<bool(const TrainConfig&)> counts;
  std::string idle_reason;

  // Puts a canonical value into the configuration, and takes it out. Without them the value is kept
  // in TrainConfig::other.
  std::function<Status(TrainConfig&, const json::Value&)> store;
  std::function<json::Value(const TrainConfig&)> fetch;
};

// All keys, in the order of the manual: model, method, data, training, launch, troupe.
const std::vector<KeySpec>& key_table();
// The row of a key (dotted under troupe), or nothing.
const KeySpec* find_key(std::string_view name);
// Today's name of a key that was renamed (evaluation_strategy → eval_strategy), or `name`.
std::string_view canonical_key(std::string_view name);
// The names of all rows.
const std::vector<std::string>& key_names();

// The value in the row's type, numbers given as text converted ("8", "1e-4", 5e8). Errors say what
// was expected and, for enumerations, what is allowed; they do not name the key.
Result<json::Value> canonical_value(const KeySpec& key, const json::Value& value);

// Whether a canonical value asks for nothing: null, empty, the default, or one of `accepts`.
bool asks_for_nothing(const KeySpec& key, const json::Value& value);

// What happens to a canonical value, with the sentence for `--explain`. kRefused carries the reason
// and the alternative.
struct Verdict {
  Treatment treatment = Treatment::kImplemented;
  std::string note;
};
Verdict verdict_of(const KeySpec& key, const json::Value& value);

// "value" as people write it: text without quotes, anything else as JSON.
std::string value_text(const json::Value& value);

}  // namespace troupe::train
