#include "train/config/foreign_keys.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

// Longer values help nobody in a message.
constexpr std::size_t kShownValueMax = 80;

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

// Null, nothing inside, or a section that is off.
bool is_empty(const json::Value& value) {
  if (const auto* section = value.if_object()) {
    const auto* enabled = section->if_contains("enabled");
    if (enabled && !read_bool(*enabled).value_or(true)) return true;
  }
  return value.is_null() || (value.is_object() && value.get_object().empty()) ||
         (value.is_array() && value.get_array().empty());
}

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
ForeignKeys& ForeignKeys::one_of(std::string_view path, std::string_view allowed) {
  rows_.find(path)->second.allowed = allowed;
  return *this;
}

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
  check_level(values, "", false, shown, wrong);
}

void ForeignKeys::check_level(const json::Object& level, const std::string& prefix, bool open,
                              const ShownName& shown, const WrongKey& wrong) const {
  for (const auto& member : level) {
    const std::string name(member.key());
    const std::string path = prefix + name;
    if (name.starts_with('_')) continue;
    const auto found = rows_.find(path);
    if (found != rows_.end()) {
      check_value(found->second, path, member.value(), shown, wrong);
    } else if (!open) {
      wrong(path, error(Code::kInvalidArgument, "unknown key '{}'{}", shown(path),
                        did_you_mean(name, names_under(prefix))));
    }
  }
}

void ForeignKeys::check_value(const Row& row, const std::string& path, const json::Value& value,
                              const ShownName& shown, const WrongKey& wrong) const {
  const auto text = value_text(value).substr(0, kShownValueMax);
  if (row.kind == Kind::kSection || row.kind == Kind::kOpen) {
    if (value.is_object()) {
      check_level(value.get_object(), path + ".", row.kind == Kind::kOpen, shown, wrong);
    } else if (!value.is_null()) {
      wrong(path, error(Code::kInvalidArgument, "'{}': expected a mapping, found {}", shown(path),
                        json::write(value).substr(0, kShownValueMax)));
    }
    return;
  }
  if (row.kind == Kind::kRefused && !is_empty(value) && !is_among(row.nothing, value)) {
    wrong(path,
          error(Code::kUnsupported, "{}={} is not supported: {}", shown(path), text, row.note));
  }
  if (!row.allowed.empty() && !value.is_null() && !is_among(lower_case(row.allowed), value)) {
    const auto words = split_words(row.allowed);
    wrong(path, error(Code::kInvalidArgument, "{}: '{}' is no valid value; one of {}{}",
                      shown(path), text, join_words(words), did_you_mean(text, words)));
  }
}

std::vector<KeyFact> ForeignKeys::describe(const json::Object& values, const ShownName& shown,
                                           const std::string& origin) const {
  std::vector<KeyFact> out;
  describe_level(values, "", {}, shown, origin, out);
  return out;
}

void ForeignKeys::describe_level(const json::Object& level, const std::string& prefix,
                                 std::string_view reason, const ShownName& shown,
                                 const std::string& origin, std::vector<KeyFact>& out) const {
  for (const auto& member : level) {
    const std::string path = prefix + std::string(member.key());
    if (std::string_view(member.key().data(), member.key().size()).starts_with('_')) continue;
    const auto found = rows_.find(path);
    const bool known = found != rows_.end();
    const auto kind = known ? found->second.kind : Kind::kInert;
    const std::string_view note = known ? std::string_view(found->second.note) : reason;
    if (kind == Kind::kSection || kind == Kind::kOpen) {
      if (member.value().is_object()) {
        describe_level(member.value().get_object(), path + ".", note, shown, origin, out);
      }
      continue;
    }
    KeyFact fact{shown(path), value_text(member.value()), origin, Treatment::kInert,
                 std::string(note)};
    if (kind == Kind::kUsed) fact.treatment = Treatment::kImplemented;
    if (kind == Kind::kRefused) fact.note = kAsksForNothing;
    out.push_back(std::move(fact));
  }
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
          row.note, row.allowed};
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
