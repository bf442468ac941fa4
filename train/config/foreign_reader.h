#pragma once
// How translations read another tool's keys and write ours. Only for axolotl*.cpp, aitraining*.cpp.

#include <optional>
#include <string>
#include <string_view>

#include "train/config/axolotl.h"
#include "train/config/values.h"

namespace troupe::train {

class ForeignReader {
 public:
  // `keys` is the table of the tool's keys.
  ForeignReader(const ForeignKeys& keys, const SourceDocument& theirs,
                const TranslationContext& context, Problems& problems, Translation& out)
      : keys_(keys), theirs_(theirs), context_(context), problems_(problems), out_(out) {}

  // The value of a key; null where it is not given, null, or does not count in this document.
  const json::Value* get(std::string_view key) const {
    const auto* value = theirs_.values.if_contains(json_view(key));
    return value && !value->is_null() && keys_.counts(key, theirs_.values) ? value : nullptr;
  }
  // Nothing where it is not given, or is of another kind, which becomes a problem.
  std::optional<bool> flag(std::string_view key) { return read<bool>(key, read_bool); }
  std::optional<double> number(std::string_view key) { return read<double>(key, read_number); }
  std::optional<std::int64_t> integer(std::string_view key) {
    return read<std::int64_t>(key, read_integer);
  }
  std::optional<std::string> text(std::string_view key) {
    return read<std::string>(key, read_text);
  }
  bool is_on(std::string_view key) { return flag(key).value_or(false); }

  // Gives one of our keys a value that was made of `key`.
  void give(std::string_view ours, json::Value value, std::string_view key) {
    Origin origin = theirs_.origin_of(key);
    const auto shown = theirs_.shown(key);
    origin.key = ours == shown ? "" : shown;
    put(ours, std::move(value), std::move(origin));
  }
  // The same value, under our name.
  void take(std::string_view ours, std::string_view key) {
    if (const auto* value = get(key)) give(ours, *value, key);
  }
  void take(std::string_view key) { take(key, key); }
  // Sets what the other tool does where no key says anything.
  void by_default(std::string_view ours, json::Value value) {
    put(ours, std::move(value), Origin{.kind = OriginKind::kDefault, .name = context_.tool});
  }

  void refuse(std::string_view key, std::string_view message) {
    problems_.add_named(Code::kUnsupported, key, message);
  }
  // "key=value is not supported: …".
  void refuse_value(std::string_view key, std::string_view why) {
    refuse(key, fmt::format("{}={} is not supported: {}", theirs_.shown(key),
                            value_text(*theirs_.values.if_contains(json_view(key))), why));
  }
  void wrong(std::string_view key, std::string_view message) {
    problems_.add(Code::kInvalidArgument, key, message);
  }
  void wrong(std::string_view key, const Status& status) { problems_.add(key, status); }
  void say(std::string notice) { out_.notices.push_back(std::move(notice)); }

  const SourceDocument& theirs() const { return theirs_; }
  const TranslationContext& context() const { return context_; }

 private:
  template <typename T>
  std::optional<T> read(std::string_view key, Result<T> (*reader)(const json::Value&)) {
    const auto* value = get(key);
    if (!value) return std::nullopt;
    auto out = reader(*value);
    if (out.ok()) return std::move(*out);
    if (!problems_.has(key)) wrong(key, out.status());
    return std::nullopt;
  }
  void put(std::string_view ours, json::Value value, Origin origin) {
    // Every name that is given here is one of our keys.
    if (const Status set = set_path(out_.document, ours, std::move(value), std::move(origin));
        !set.ok())
      wrong(ours, set);
  }

  const ForeignKeys& keys_;
  const SourceDocument& theirs_;
  const TranslationContext& context_;
  Problems& problems_;
  Translation& out_;
};

// datasets, test_datasets, pretraining_dataset and what of them is said for all.
void translate_axolotl_data(ForeignReader& reader);

}  // namespace troupe::train
