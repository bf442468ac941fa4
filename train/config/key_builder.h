#pragma once
// How rows of the key table are written. Only for the keys_*.cpp files.
//
//   table.integer("seed", 42).implemented("seed of …", FIELD(training.seed));

#include <utility>

#include "train/config/keys.h"
#include "train/config/values.h"

namespace troupe::train {

// What to do about a key that asks for nothing we have.
inline constexpr const char* kLeaveOut = "leave the key out";

// A row under construction.
class KeyRow {
 public:
  explicit KeyRow(KeySpec& spec) : spec_(spec) {}

  // `field` maps a (const) TrainConfig to a reference to the member.
  template <typename Field>
  KeyRow& implemented(std::string meaning, Field field) {
    spec_.treatment = Treatment::kImplemented;
    spec_.meaning = std::move(meaning);
    spec_.store = [field](TrainConfig& config, const json::Value& value) {
      return from_value(value, field(config));
    };
    spec_.fetch = [field](const TrainConfig& config) { return to_value(field(config)); };
    return *this;
  }
  // A value that is no member of its own: `store` puts it in, `fetch` takes it out.
  KeyRow& implemented(std::string meaning,
                      std::function<Status(TrainConfig&, const json::Value&)> store,
                      std::function<json::Value(const TrainConfig&)> fetch) {
    spec_.treatment = Treatment::kImplemented;
    spec_.meaning = std::move(meaning);
    spec_.store = std::move(store);
    spec_.fetch = std::move(fetch);
    return *this;
  }
  KeyRow& inert(std::string meaning, std::string reason) {
    spec_.treatment = Treatment::kInert;
    spec_.meaning = std::move(meaning);
    spec_.reason = std::move(reason);
    return *this;
  }
  // Of an inert one: the start of a run says so where it is given.
  KeyRow& said() {
    spec_.said = true;
    return *this;
  }
  KeyRow& refused(std::string meaning, std::string reason, std::string instead) {
    spec_.treatment = Treatment::kRefused;
    spec_.meaning = std::move(meaning);
    spec_.reason = std::move(reason);
    spec_.instead = std::move(instead);
    return *this;
  }
  // Values that ask for nothing of a key that is refused or said, "a|b".
  KeyRow& accepts(std::string_view values) {
    spec_.accepts = split_words(values);
    return *this;
  }
  // Values of an inert or implemented key that are refused, "a|b", and why.
  KeyRow& refuses(std::string_view values, std::string reason, std::string instead) {
    spec_.refuses = split_words(values);
    spec_.reason = std::move(reason);
    spec_.instead = std::move(instead);
    return *this;
  }
  // The words that a list may have, "a|b".
  KeyRow& words(std::string_view allowed) {
    spec_.allowed = split_words(allowed);
    return *this;
  }
  // Of an implemented key that counts only where `counts` holds of the configuration; elsewhere it
  // is accepted without effect, for `reason`.
  KeyRow& only_where(std::function<bool(const TrainConfig&)> counts, std::string reason) {
    spec_.counts = std::move(counts);
    spec_.idle_reason = std::move(reason);
    return *this;
  }
  KeyRow& at_least(double value) {
    spec_.least = value;
    return *this;
  }
  KeyRow& above(double value) {
    spec_.least = value;
    spec_.above_least = true;
    return *this;
  }
  KeyRow& at_most(double value) {
    spec_.most = value;
    return *this;
  }
  KeyRow& nullable() {
    spec_.nullable = true;
    return *this;
  }
  KeyRow& secret() {
    spec_.secret = true;
    return *this;
  }

 private:
  KeySpec& spec_;
};

// The rows of the table in order.
class KeyTable {
 public:
  KeyRow boolean(std::string name, bool value) {
    return add(std::move(name), ValueType::kBool, value);
  }
  KeyRow integer(std::string name, std::int64_t value) {
    return add(std::move(name), ValueType::kInteger, value);
  }
  KeyRow number(std::string name, double value) {
    return add(std::move(name), ValueType::kNumber, value);
  }
  KeyRow text(std::string name, std::string_view value) {
    return add(std::move(name), ValueType::kText, boost::json::string(value));
  }
  // One of "a|b|c".
  KeyRow choice(std::string name, std::string_view value, std::string_view allowed) {
    auto row = text(std::move(name), value);
    rows_.back().allowed = split_words(allowed);
    return row;
  }
  // One of "a|b|c", null until given.
  KeyRow optional_choice(std::string name, std::string_view allowed) {
    auto row = optional(std::move(name), ValueType::kText);
    rows_.back().allowed = split_words(allowed);
    return row;
  }
  // Without a default: null until given.
  KeyRow optional(std::string name, ValueType type) {
    return add(std::move(name), type, nullptr).nullable();
  }
  KeyRow list(std::string name) {
    return add(std::move(name), ValueType::kTextList, json::Array()).nullable();
  }
  // With a default.
  KeyRow list(std::string name, std::string_view value) {
    return add(std::move(name), ValueType::kTextList, json::Array({boost::json::string(value)}))
        .nullable();
  }
  KeyRow object(std::string name) {
    return add(std::move(name), ValueType::kObject, json::Object()).nullable();
  }

  std::vector<KeySpec> take() { return std::move(rows_); }

 private:
  KeyRow add(std::string name, ValueType type, json::Value value) {
    // Rows are finished before the next one begins, so that growth invalidates nothing in use.
    KeySpec spec;
    spec.name = std::move(name);
    spec.type = type;
    spec.nullable = value.is_null();
    spec.default_value = std::move(value);
    rows_.push_back(std::move(spec));
    return KeyRow(rows_.back());
  }
  std::vector<KeySpec> rows_;
};

void add_model_keys(KeyTable& table);
void add_method_keys(KeyTable& table);
void add_finetuning_keys(KeyTable& table);
void add_export_keys(KeyTable& table);
void add_optimizer_method_keys(KeyTable& table);
void add_data_keys(KeyTable& table);
void add_evaluation_keys(KeyTable& table);
void add_training_keys(KeyTable& table);
void add_trainer_detail_keys(KeyTable& table);
void add_launch_keys(KeyTable& table);
void add_troupe_keys(KeyTable& table);
void add_sharding_keys(KeyTable& table);
void add_row_keys(KeyTable& table);

// A member of TrainConfig, for KeyRow::implemented.
#define TROUPE_FIELD(member) \
  [](auto& config) -> auto& { return config.member; }

}  // namespace troupe::train
