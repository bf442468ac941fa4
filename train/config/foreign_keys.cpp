#include "train/config/foreign_keys.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

// Longer values help nobody in a message.
constexpr std::size_t kShownValueMax = 80;
// Values that ask for nothing wherever they stand: nothing is said of them where they do not count.
constexpr std::string_view kIdleNothing = "false|no|none|0";

// Whether a value is among the words "a|b", numbers and booleans compared as such.
bool is_among(std::string_view words, const json::Value& value) {
  const auto list = split_words(words);
  const auto has = [&](const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (has(lower_case(value_text(value)))) return true;
  if (const auto flag = read_bool(value); flag.ok() && !value.is_number()) {
    return has(*flag ? "true" : "false");
  }
  const auto number = read_number(value);
  return number.ok() && std::any_of(list.begin(), list.end(), [&](const auto& word) {
           const auto other = read_number(to_value(word));
           return other.ok() && *other == *number;
         });
}

// Null, or nothing inside.
bool is_empty(const json::Value& value) {
  return value.is_null() || (value.is_object() && value.get_object().empty()) ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_string() && value.get_string().empty());
}

bool is_switched_off(const json::Value& value) {
  const auto* section = value.if_object();
  const auto* enabled = section ? section->if_contains("enabled") : nullptr;
  return enabled && !read_bool(*enabled).value_or(true);
}

Status check_type(ValueType type, const json::Value& value) {
  switch (type) {
    case ValueType::kBool:
      return read_bool(value).status();
    case ValueType::kInteger:
      return read_integer(value).status();
    case ValueType::kNumber:
      return read_number(value).status();
    case ValueType::kText:
      return read_text(value).status();
    case ValueType::kTextList:
      return read_text_list(value).status();
    case ValueType::kObject:
      return read_object(value).status();
    case ValueType::kAny:
      return {};
  }
  return {};
}

// The value at a dotted path, or nothing. Null counts as nothing.

}  // namespace

void ForeignKeys::add(Kind kind, std::string_view paths, std::string_view nothing,
                      std::string_view note) {
  for (const auto& path : split_words(paths)) {
    rows_[path] = Row{kind, std::string(nothing), std::string(note), {}};
  }
}

ForeignKeys& ForeignKeys::used(std::string_view paths, std::string_view meaning) {
  add(Kind::kUsed, paths, {}, meaning);
  return *this;
}
ForeignKeys& ForeignKeys::inert(std::string_view paths, std::string_view reason) {
  add(Kind::kInert, paths, {}, reason);
  return *this;
}
ForeignKeys& ForeignKeys::refused(std::string_view paths, std::string_view nothing,
                                  std::string_view reason) {
  add(Kind::kRefused, paths, nothing, reason);
  return *this;
}
ForeignKeys& ForeignKeys::section(std::string_view paths) {
  add(Kind::kSection, paths, {}, {});
  return *this;
}
ForeignKeys& ForeignKeys::open(std::string_view paths, std::string_view reason) {
  add(Kind::kOpen, paths, {}, reason);
  return *this;
}
ForeignKeys& ForeignKeys::change(std::string_view paths, const std::function<void(Row&)>& how) {
  for (const auto& path : split_words(paths)) {
    const auto found = rows_.find(path);
    TROUPE_CHECK(found != rows_.end(), "{} has no row", path);
    how(found->second);
  }
  return *this;
}
ForeignKeys& ForeignKeys::one_of(std::string_view path, std::string_view allowed) {
  return change(path, [&](Row& row) { row.allowed = allowed; });
}
ForeignKeys& ForeignKeys::typed(ValueType type, std::string_view paths) {
  return change(paths, [&](Row& row) { row.type = type; });
}
ForeignKeys& ForeignKeys::sections_with_switch(std::string_view paths) {
  return change(paths, [](Row& row) { row.has_switch = true; });
}
ForeignKeys& ForeignKeys::said(std::string_view paths, std::string_view nothing) {
  return change(paths, [&](Row& row) {
    row.said = true;
    row.nothing = nothing;
  });
}
ForeignKeys& ForeignKeys::only_where(std::string_view paths, Condition counts,
                                     std::string_view reason) {
  return change(paths, [&](Row& row) {
    row.counts = counts;
    row.idle_reason = reason;
  });
}
ForeignKeys& ForeignKeys::same(std::string_view paths) {
  same_.push_back(split_words(paths));
  return *this;
}
ForeignKeys& ForeignKeys::word_for_default(std::string_view word) {
  default_word_ = word;
  return *this;
}

const std::string* ForeignKeys::idle_reason(std::string_view path,
                                            const json::Object& document) const {
  for (std::size_t dot = path.find('.');; dot = path.find('.', dot + 1)) {
    const auto found = rows_.find(path.substr(0, dot));
    if (found != rows_.end() && found->second.counts && !found->second.counts(document))
      return &found->second.idle_reason;
    if (dot == std::string_view::npos) return nullptr;
  }
}

struct ForeignKeys::Walk {
  const json::Object& document;
  const ShownName& shown;
  const WrongKey& wrong;
};

Status ForeignKeys::check(const json::Object& values, const ShownName& shown) const {
  Code code = Code::kUnsupported;
  std::string text;
  check_each(values, shown, [&](const std::string&, const Status& status) {
    if (status.code() != Code::kUnsupported) code = Code::kInvalidArgument;
    text += (text.empty() ? "" : "; also: ") + status.message();
  });
  return text.empty() ? Status() : Status(code, std::move(text));
}

void ForeignKeys::check_each(const json::Object& values, const ShownName& shown,
                             const WrongKey& wrong) const {
  const Walk walk{values, shown, wrong};
  check_level(walk, values, "", false);
  check_same(walk);
}

void ForeignKeys::check_level(const Walk& walk, const json::Object& level,
                              const std::string& prefix, bool open) const {
  for (const auto& member : level) {
    const std::string name(member.key());
    const std::string path = prefix + name;
    if (name.starts_with('_') && !rows_.contains(path)) continue;
    const auto found = rows_.find(path);
    if (found != rows_.end()) {
      check_value(walk, found->second, path, member.value());
    } else if (!open) {
      walk.wrong(path, error(Code::kInvalidArgument, "unknown key '{}'{}", walk.shown(path),
                             did_you_mean(name, names_under(prefix))));
    }
  }
}

void ForeignKeys::check_value(const Walk& walk, const Row& row, const std::string& path,
                              const json::Value& value) const {
  const auto& [document, shown, wrong] = walk;
  const auto text = value_text(value).substr(0, kShownValueMax);
  if (row.kind == Kind::kSection || row.kind == Kind::kOpen) {
    if (value.is_object()) {
      if (counts(path, document))
        check_level(walk, value.get_object(), path + ".", row.kind == Kind::kOpen);
    } else if (!value.is_null()) {
      wrong(path, error(Code::kInvalidArgument, "'{}': expected a mapping, found {}", shown(path),
                        json::write(value).substr(0, kShownValueMax)));
    }
    return;
  }
  if (row.kind == Kind::kRefused) {
    const bool nothing = is_empty(value) || is_among(row.nothing, value) ||
                         (row.has_switch && is_switched_off(value));
    if (!nothing && counts(path, document)) {
      wrong(path,
            error(Code::kUnsupported, "{}={} is not supported: {}", shown(path), text, row.note));
    }
    return;
  }
  if (value.is_null() || (!default_word_.empty() && text == default_word_)) return;
  if (auto typed = check_type(row.type, value); !typed.ok()) {
    wrong(path, typed.prefixed(shown(path)));
  } else if (!row.allowed.empty() && !is_among(lower_case(row.allowed), value)) {
    const auto words = split_words(row.allowed);
    wrong(path, error(Code::kInvalidArgument, "{}: '{}' is no valid value; one of {}{}",
                      shown(path), text, join_words(words), did_you_mean(text, words)));
  }
}

void ForeignKeys::check_same(const Walk& walk) const {
  for (const auto& names : same_) {
    const std::string* first = nullptr;
    for (const auto& path : names) {
      const auto* value = find_path(walk.document, path);
      if (!value) continue;
      const auto* earlier = first ? find_path(walk.document, *first) : nullptr;
      if (earlier && !is_among(lower_case(value_text(*earlier)), *value)) {
        walk.wrong(path, error(Code::kInvalidArgument,
                               "{}={} and {}={} are two names of one setting and disagree; leave "
                               "one of them out",
                               walk.shown(*first), value_text(*earlier).substr(0, kShownValueMax),
                               walk.shown(path), value_text(*value).substr(0, kShownValueMax)));
      }
      if (!first) first = &path;
    }
  }
}

std::vector<KeyFact> ForeignKeys::describe(const json::Object& values, const ShownName& shown,
                                           const OriginOf& origin) const {
  std::vector<KeyFact> out;
  describe_level(values, values, "", {}, shown, origin, out);
  return out;
}

void ForeignKeys::describe_level(const json::Object& document, const json::Object& level,
                                 const std::string& prefix, std::string_view reason,
                                 const ShownName& shown, const OriginOf& origin,
                                 std::vector<KeyFact>& out) const {
  for (const auto& member : level) {
    const std::string name(member.key());
    const std::string path = prefix + name;
    const auto found = rows_.find(path);
    const bool known = found != rows_.end();
    if (name.starts_with('_') && !known) continue;
    const auto kind = known ? found->second.kind : Kind::kInert;
    const auto* idle = idle_reason(path, document);
    const std::string_view note = idle    ? std::string_view(*idle)
                                  : known ? std::string_view(found->second.note)
                                          : reason;
    if (kind == Kind::kSection || kind == Kind::kOpen) {
      if (member.value().is_object()) {
        describe_level(document, member.value().get_object(), path + ".", note, shown, origin, out);
      }
      continue;
    }
    KeyFact fact{shown(path), value_text(member.value()), origin(path), Treatment::kInert,
                 std::string(note)};
    if (kind == Kind::kUsed && !idle) fact.treatment = Treatment::kImplemented;
    if (kind == Kind::kRefused && !idle) fact.note = kAsksForNothing;
    out.push_back(std::move(fact));
  }
}

std::vector<std::string> ForeignKeys::notices(const json::Object& values,
                                              const ShownName& shown) const {
  std::map<std::string, std::vector<std::string>> reasons;
  collect_notices(values, values, "", shown, reasons);
  std::vector<std::string> out;
  for (const auto& [reason, names] : reasons) out.push_back(without_effect("", names, reason));
  return out;
}

void ForeignKeys::collect_notices(const json::Object& document, const json::Object& level,
                                  const std::string& prefix, const ShownName& shown,
                                  std::map<std::string, std::vector<std::string>>& reasons) const {
  for (const auto& member : level) {
    const std::string path = prefix + std::string(member.key());
    const auto found = rows_.find(path);
    if (found == rows_.end() || is_empty(member.value())) continue;
    const auto& row = found->second;
    if (const auto* idle = idle_reason(path, document)) {
      if (!is_among(kIdleNothing, member.value())) reasons[*idle].push_back(shown(path));
    } else if (row.said && !is_among(row.nothing, member.value())) {
      reasons[row.note].push_back(shown(path));
    } else if (row.kind == Kind::kSection || row.kind == Kind::kOpen) {
      if (const auto* inside = member.value().if_object())
        collect_notices(document, *inside, path + ".", shown, reasons);
    }
  }
}

std::string without_effect(std::string_view whose, const std::vector<std::string>& names,
                           std::string_view reason) {
  if (names.size() == 1) return fmt::format("{}{} has no effect: {}", whose, names[0], reason);
  // Reasons speak of one key.
  constexpr std::string_view kOne = "it belongs";
  const bool of_one = reason.starts_with(kOne);
  return fmt::format("{}{} have no effect: {}{}", whose, join_words(names),
                     of_one ? "they belong" : "", of_one ? reason.substr(kOne.size()) : reason);
}

std::vector<std::string> ForeignKeys::paths() const {
  std::vector<std::string> out;
  for (const auto& [path, row] : rows_) {
    if (row.kind != Kind::kSection && row.kind != Kind::kOpen) out.push_back(path);
  }
  return out;
}

ForeignKeys::Treated ForeignKeys::treated(std::string_view path) const {
  const auto& row = rows_.find(path)->second;
  return {row.kind == Kind::kUsed      ? Treatment::kImplemented
          : row.kind == Kind::kRefused ? Treatment::kRefused
                                       : Treatment::kInert,
          row.note, row.allowed, row.type};
}

std::vector<std::string> ForeignKeys::names_under(const std::string& prefix) const {
  std::vector<std::string> out;
  for (const auto& [path, row] : rows_) {
    if (!path.starts_with(prefix)) continue;
    const auto rest = std::string_view(path).substr(prefix.size());
    if (rest.find('.') == std::string_view::npos) out.emplace_back(rest);
  }
  return out;
}

}  // namespace troupe::train
