#include "train/config/source.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "train/config/values.h"
#include "train/config/yaml.h"

namespace troupe::train {
namespace {

// Parts of a dotted key; no setting is deeper than four.
constexpr std::ptrdiff_t kPathPartsMax = 16;

// Reports the position of every key of a JSON text that is known to be valid.
class JsonKeyScanner {
 public:
  JsonKeyScanner(std::string_view text, const KeySeen& key_seen)
      : text_(text), key_seen_(key_seen) {}

  void scan() {
    for (offset_ = 0; offset_ < text_.size(); ++offset_) {
      const char c = text_[offset_];
      if (c == '\n') {
        ++line_;
        line_start_ = offset_ + 1;
      } else if (c == '{' || c == '[') {
        open(c == '{');
      } else if (c == '}' || c == ']') {
        levels_.pop_back();
      } else if (c == ',' && !levels_.empty()) {
        levels_.back().expects_key = levels_.back().is_object;
      } else if (c == '"') {
        string();
      }
    }
  }

 private:
  struct Level {
    bool is_object = false;
    bool in_objects = true;
    bool expects_key = false;
    std::string path;
    std::string key;
  };

  static std::string child(const Level& level) {
    return level.path.empty() ? level.key : level.path + "." + level.key;
  }

  void open(bool is_object) {
    Level level{.is_object = is_object, .expects_key = is_object, .path = {}, .key = {}};
    if (!levels_.empty()) {
      level.in_objects = levels_.back().in_objects && levels_.back().is_object;
      level.path = child(levels_.back());
    }
    levels_.push_back(std::move(level));
  }

  void string() {
    const int column = static_cast<int>(offset_ - line_start_) + 1;
    const auto start = offset_;
    for (++offset_; text_[offset_] != '"'; ++offset_) {
      if (text_[offset_] == '\\') ++offset_;
    }
    if (levels_.empty() || !levels_.back().expects_key) return;
    Level& level = levels_.back();
    const auto key = json::parse(text_.substr(start, offset_ + 1 - start), "key");
    if (!key.ok() || !(*key).is_string()) return;
    level.key = std::string((*key).get_string());
    level.expects_key = false;
    if (level.in_objects) key_seen_(child(level), line_, column);
  }

  std::string_view text_;
  const KeySeen& key_seen_;
  std::vector<Level> levels_;
  std::size_t offset_ = 0;
  std::size_t line_start_ = 0;
  int line_ = 1;
};

}  // namespace

std::string Origin::to_string() const {
  switch (kind) {
    case OriginKind::kDefault:
      return name.empty() ? "default" : name + "'s default";
    case OriginKind::kFile:
      return line > 0 ? fmt::format("{}:{}", name, line) : name;
    case OriginKind::kOverride:
      return "command line";
    case OriginKind::kFlag:
      return "flag";
    case OriginKind::kEnvironment:
      return "environment " + name;
  }
  return "default";
}

Origin SourceDocument::origin_of(std::string_view path) const {
  while (true) {
    const auto found = origins.find(path);
    if (found != origins.end()) return found->second;
    const auto dot = path.rfind('.');
    if (dot == std::string_view::npos) return {};
    path = path.substr(0, dot);
  }
}

std::string SourceDocument::shown(std::string_view key) const {
  const auto found = origins.find(key);
  return found == origins.end() || found->second.key.empty() ? std::string(key) : found->second.key;
}

std::string SourceDocument::in_words_of_user(std::string_view message, std::string_view key) const {
  const auto belongs = [](char c) {
    return c == '_' || c == '.' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  std::string out;
  for (std::size_t at = 0; at < message.size();) {
    std::size_t end = at;
    while (end < message.size() && belongs(message[end])) ++end;
    if (end == at) {
      out += message[at++];
      continue;
    }
    // A full stop behind a word ends the sentence.
    auto word = message.substr(at, end - at);
    while (word.ends_with('.')) word.remove_suffix(1);
    const bool distinct = word.find('_') != std::string_view::npos ||
                          word.find('.') != std::string_view::npos || (at == 0 && word == key);
    out += distinct ? shown(word) : std::string(word);
    out += message.substr(at + word.size(), end - at - word.size());
    at = end;
  }
  return out;
}

Result<SourceDocument> parse_document(std::string_view text, std::string_view name) {
  SourceDocument document;
  const KeySeen remember = [&](const std::string& path, int line, int column) {
    document.origins[path] = Origin{OriginKind::kFile, std::string(name), line, column};
  };
  json::Value value;
  if (name.ends_with(".json")) {
    json::ParseOptions options;
    options.reject_duplicate_keys = true;
    value = TROUPE_TRY(json::parse(text, name, options));
    JsonKeyScanner(text, remember).scan();
  } else {
    value = TROUPE_TRY(parse_yaml(text, name, remember));
  }
  if (value.is_null()) return document;
  if (!value.is_object()) {
    return error(Code::kInvalidArgument,
                 "{}:1: the file must hold settings of the form 'key: value', not {}", name,
                 value.is_array() ? "a list" : "one value");
  }
  document.values = std::move(value.get_object());
  return document;
}

Status set_path(SourceDocument& document, std::string_view path, json::Value value, Origin origin) {
  if (std::count(path.begin(), path.end(), '.') >= kPathPartsMax) {
    return error(Code::kInvalidArgument, "'{}…' is no key: more than {} parts", path.substr(0, 40),
                 kPathPartsMax);
  }
  json::Object* object = &document.values;
  std::size_t start = 0;
  while (true) {
    const auto dot = path.find('.', start);
    const auto part = path.substr(start, dot - start);
    if (part.empty()) {
      return error(Code::kInvalidArgument, "'{}' is no key: a part of it is empty", path);
    }
    auto& slot = (*object)[json_view(part)];
    if (dot == std::string_view::npos) {
      slot = std::move(value);
      break;
    }
    if (slot.is_null()) slot = json::Object();
    if (!slot.is_object()) {
      return error(Code::kInvalidArgument, "'{}' cannot be set: '{}' is no mapping ({})", path,
                   path.substr(0, dot), document.origin_of(path.substr(0, dot)).to_string());
    }
    object = &slot.get_object();
    start = dot + 1;
  }
  const std::string below = std::string(path) + ".";
  for (auto it = document.origins.lower_bound(below);
       it != document.origins.end() && it->first.starts_with(below);) {
    it = document.origins.erase(it);
  }
  document.origins[std::string(path)] = std::move(origin);
  return {};
}

}  // namespace troupe::train
