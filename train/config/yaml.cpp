#include "train/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <istream>
#include <limits>
#include <map>
#include <set>
#include <streambuf>
#include <vector>

#include "runtime/base/limits.h"

namespace troupe::train {
namespace {

// Values in one document, aliases expanded. The largest published configuration has 300.
constexpr std::size_t kValuesMax = 50'000;

// Leaves the parser from inside a callback; caught in parse_yaml.
struct Refusal {
  YAML::Mark mark;
  std::string why;
};

std::string at(std::string_view name, const YAML::Mark& mark) {
  return fmt::format("{}:{}:{}", name, mark.line + 1, mark.column + 1);
}

bool one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

std::size_t count_values(const json::Value& value) {
  std::size_t count = 1;
  if (const auto* object = value.if_object()) {
    for (const auto& member : *object) count += count_values(member.value());
  } else if (const auto* array = value.if_array()) {
    for (const auto& item : *array) count += count_values(item);
  }
  return count;
}

std::size_t depth_of(const json::Value& value) {
  std::size_t deepest = 0;
  if (const auto* object = value.if_object()) {
    for (const auto& member : *object) deepest = std::max(deepest, depth_of(member.value()));
  } else if (const auto* array = value.if_array()) {
    for (const auto& item : *array) deepest = std::max(deepest, depth_of(item));
  } else {
    return 0;
  }
  return deepest + 1;
}

// Builds the value from the parser's events. Depth is checked here, which also bounds the parser's
// own recursion: leaving a callback unwinds it.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const KeySeen& key_seen) : key_seen_(key_seen) {}

  json::Value take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, anchor, nullptr, "null");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) throw Refusal{mark, "an alias stands inside its own anchor"};
    count(mark, count_values(known->second));
    if (open_.size() + depth_of(known->second) > limits::kConfigDepthMax) refuse_depth(mark);
    add(mark, 0, known->second, {});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (tag == "?") return add(mark, anchor, resolve_yaml_scalar(text), text);
    if (tag == "!" || tag == "tag:yaml.org,2002:str") {
      return add(mark, anchor, json::Value(boost::json::string(text)), text);
    }
    if (one_of(tag, {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool",
                     "tag:yaml.org,2002:null"})) {
      return add(mark, anchor, resolve_yaml_scalar(text), text);
    }
    throw Refusal{mark, fmt::format("the tag '{}' is not understood; write a plain value", tag)};
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, json::Array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, json::Object());
  }
  void OnMapEnd() override { close(); }

 private:
  // A collection under construction.
  struct Level {
    json::Value value;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    std::string path;        // dotted, of this collection
    bool in_objects = true;  // reached through objects only
    bool have_key = false;   // a key waits for its value
    bool key_is_merge = false;
    std::string key;
    std::set<std::string, std::less<>> seen;
    std::vector<json::Value> merges;
  };

  [[noreturn]] static void refuse_depth(const YAML::Mark& mark) {
    throw Refusal{mark, fmt::format("nested deeper than {}", limits::kConfigDepthMax)};
  }

  void count(const YAML::Mark& mark, std::size_t values) {
    values_ += values;
    if (values_ > kValuesMax) {
      throw Refusal{mark,
                    fmt::format("more than {} values (aliases counted each time)", kValuesMax)};
    }
  }

  bool wants_key() const {
    return !open_.empty() && open_.back().value.is_object() && !open_.back().have_key;
  }

  static std::string child_path(const Level& level) {
    return level.path.empty() ? level.key : level.path + "." + level.key;
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, json::Value empty) {
    if (wants_key()) throw Refusal{mark, "a key must be a plain word, not a list or mapping"};
    if (open_.size() >= limits::kConfigDepthMax) refuse_depth(mark);
    count(mark, 1);
    Level level;
    level.value = std::move(empty);
    level.anchor = anchor;
    level.mark = mark;
    if (!open_.empty()) {
      const Level& parent = open_.back();
      level.in_objects = parent.in_objects && parent.value.is_object();
      if (level.in_objects) level.path = child_path(parent);
    }
    open_.push_back(std::move(level));
  }

  void close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    for (const auto& merge : level.merges) merge_into(level, merge);
    if (level.anchor != 0) anchors_[level.anchor] = level.value;
    place(std::move(level.value));
  }

  // Keys written out win over merged ones; earlier merges win over later ones.
  void merge_into(Level& level, const json::Value& merge) {
    if (const auto* object = merge.if_object()) {
      for (const auto& member : *object) {
        if (!level.value.as_object().contains(member.key())) {
          level.value.as_object().insert(member);
          see(level.in_objects, level.path, std::string(member.key()), level.mark);
        }
      }
    } else if (const auto* array = merge.if_array()) {
      for (const auto& item : *array) {
        if (!item.is_object()) throw Refusal{level.mark, "'<<' takes mappings only"};
        merge_into(level, item);
      }
    } else {
      throw Refusal{level.mark, "'<<' takes a mapping or a list of mappings"};
    }
  }

  void see(bool in_objects, const std::string& path, const std::string& key,
           const YAML::Mark& mark) {
    if (key_seen_ && in_objects) {
      key_seen_(path.empty() ? key : path + "." + key, mark.line + 1, mark.column + 1);
    }
  }

  void add(const YAML::Mark& mark, YAML::anchor_t anchor, json::Value value,
           const std::string& text) {
    count(mark, 1);
    if (anchor != 0) anchors_[anchor] = value;
    if (!wants_key()) return place(std::move(value));
    Level& level = open_.back();
    if (value.is_structured()) throw Refusal{mark, "a key must be a plain word"};
    level.key = text.empty() && value.is_string() ? std::string(value.get_string()) : text;
    level.have_key = true;
    level.key_is_merge = level.key == "<<";
    if (!level.seen.insert(level.key).second) {
      throw Refusal{mark, fmt::format("the key '{}' stands twice", level.key)};
    }
    if (!level.key_is_merge) see(level.in_objects, level.path, level.key, mark);
  }

  void place(json::Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = open_.back();
    if (auto* array = level.value.if_array()) {
      array->push_back(std::move(value));
      return;
    }
    level.have_key = false;
    if (level.key_is_merge) {
      level.merges.push_back(std::move(value));
    } else {
      level.value.as_object()[level.key] = std::move(value);
    }
  }

  const KeySeen& key_seen_;
  json::Value root_;
  std::vector<Level> open_;
  std::map<YAML::anchor_t, json::Value> anchors_;
  std::size_t values_ = 0;
};

// The text as a stream without a copy.
class ViewBuffer final : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

// The offset of the first byte that is not part of valid UTF-8 or is a control character that YAML
// does not allow; npos where all is well.
std::size_t first_bad_byte(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f) return i;
      ++i;
      continue;
    }
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    if (byte < 0xc2 || byte > 0xf4 || i + length > text.size()) return i;
    std::uint32_t point = byte & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return i;
      point = point << 6 | (next & 0x3f);
    }
    const std::uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string line_and_column(std::string_view text, std::size_t offset) {
  const auto before = text.substr(0, offset);
  const auto newline = before.rfind('\n');
  return fmt::format("{}:{}", 1 + std::count(before.begin(), before.end(), '\n'),
                     newline == std::string_view::npos ? offset + 1 : offset - newline);
}

// The first line indented by a tab, as "line:column"; empty where there is none. Only asked when
// parsing failed or gave no mapping, so that tabs inside block texts stay allowed.
std::string tab_indentation(std::string_view text) {
  for (std::size_t start = 0; start < text.size();) {
    const auto end = std::min(text.find('\n', start), text.size());
    const auto line = text.substr(start, end - start);
    const auto first = line.find_first_not_of(" \t");
    const auto tab = line.find('\t');
    if (first != std::string_view::npos && tab < first) return line_and_column(text, start + tab);
    start = end + 1;
  }
  return {};
}

json::Value parse_number(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  const bool negative = digits.starts_with('-');
  const bool sign = negative || digits.starts_with('+');
  const std::string_view body = std::string_view(digits).substr(sign ? 1 : 0);
  // An underscore separates digits; it neither begins nor ends a number.
  if (body.empty() || text.ends_with('_') || text[sign ? 1 : 0] == '_') return nullptr;
  const auto integer = [&](std::string_view part, int base) -> json::Value {
    std::uint64_t value = 0;
    const auto [end, ec] = std::from_chars(part.data(), part.data() + part.size(), value, base);
    if (part.empty() || ec != std::errc() || end != part.data() + part.size()) return nullptr;
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return nullptr;
    const auto whole = static_cast<std::int64_t>(value);
    return negative ? -whole : whole;
  };
  if (body.starts_with("0x")) return integer(body.substr(2), 16);
  if (body.starts_with("0b")) return integer(body.substr(2), 2);
  if (body.starts_with("0o")) return integer(body.substr(2), 8);
  if (body.find_first_not_of("0123456789") == std::string_view::npos) {
    auto whole = integer(body, body.size() > 1 && body.front() == '0' ? 8 : 10);
    if (!whole.is_null()) return whole;
  }
  if (body.find_first_not_of("0123456789.eE+-") != std::string_view::npos ||
      body.find_first_of("0123456789") == std::string_view::npos || body.front() == 'e' ||
      body.front() == 'E' || body.front() == '-' || body.front() == '+') {
    return nullptr;
  }
  double number = 0;
  const auto [end, ec] = std::from_chars(body.data(), body.data() + body.size(), number);
  if (ec != std::errc() || end != body.data() + body.size()) return nullptr;
  return negative ? -number : number;
}

}  // namespace

json::Value resolve_yaml_scalar(const std::string& text) {
  if (one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    return false;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (one_of(text, {".inf", ".Inf", ".INF", "+.inf"})) return kInfinity;
  if (one_of(text, {"-.inf", "-.Inf", "-.INF"})) return -kInfinity;
  if (one_of(text, {".nan", ".NaN", ".NAN"})) return std::numeric_limits<double>::quiet_NaN();
  auto number = parse_number(text);
  if (!number.is_null()) return number;
  return json::Value(boost::json::string(text));
}

Result<json::Value> parse_yaml(std::string_view text, std::string_view name,
                               const KeySeen& key_seen) {
  if (text.size() > limits::kConfigBytesMax) {
    return error(Code::kInvalidArgument, "{}: {} bytes of configuration, the limit is {}", name,
                 text.size(), limits::kConfigBytesMax);
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (const auto bad = first_bad_byte(text); bad != std::string_view::npos) {
    return error(Code::kInvalidArgument, "{}:{}: the byte 0x{:02x} does not belong in a UTF-8 text",
                 name, line_and_column(text, bad), static_cast<unsigned char>(text[bad]));
  }
  Builder builder(key_seen);
  try {
    ViewBuffer buffer(text);
    std::istream stream(&buffer);
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      auto value = builder.take();
      const KeySeen nobody;
      Builder second(nobody);
      if (parser.HandleNextDocument(second)) {
        return error(Code::kInvalidArgument, "{}: more than one document ('---') in the file",
                     name);
      }
      if (!value.is_structured()) {
        if (const auto tab = tab_indentation(text); !tab.empty()) {
          return error(Code::kInvalidArgument, "{}:{}: a tab in the indentation; use spaces", name,
                       tab);
        }
      }
      return value;
    }
    return json::Value(nullptr);
  } catch (const Refusal& refusal) {
    return error(Code::kInvalidArgument, "{}: {}", at(name, refusal.mark), refusal.why);
  } catch (const YAML::Exception& exception) {
    if (const auto tab = tab_indentation(text); !tab.empty()) {
      return error(Code::kInvalidArgument, "{}:{}: a tab in the indentation; use spaces", name,
                   tab);
    }
    return error(Code::kInvalidArgument, "{}: not valid YAML: {}", at(name, exception.mark),
                 exception.msg);
  }
}

}  // namespace troupe::train
