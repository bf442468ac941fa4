#include "train/tokenizer/decoder.h"

#include <algorithm>

#include "train/tokenizer/normalizer.h"

namespace troupe::train {
namespace {

constexpr int kNestingMax = 8;

// The byte of "<0x0A>", or -1.
int byte_of_fallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Runs of byte tokens become their characters; a run that is not UTF-8 becomes one U+FFFD a byte.
std::vector<std::string> fold_bytes(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (is_valid_utf8(run)) {
      out.push_back(run);
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) out.emplace_back("\xef\xbf\xbd");
    }
    run.clear();
  };
  for (auto& token : tokens) {
    const int byte = byte_of_fallback(token);
    if (byte >= 0) {
      run.push_back(static_cast<char>(byte));
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  return out;
}

std::string strip(std::string_view token, std::string_view content, std::size_t start,
                  std::size_t stop) {
  for (std::size_t i = 0; i < start && token.starts_with(content); ++i) {
    token.remove_prefix(content.size());
  }
  for (std::size_t i = 0; i < stop && token.ends_with(content); ++i) {
    token.remove_suffix(content.size());
  }
  return std::string(token);
}

// The spaces that WordPiece leaves where English has none.
std::string without_odd_spaces(std::string token) {
  constexpr std::pair<const char*, const char*> kOdd[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [odd, good] : kOdd) token = replace_all(token, odd, good);
  return token;
}

std::string joined(const std::vector<std::string>& tokens, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += separator;
    out += tokens[i];
  }
  return out;
}

}  // namespace

Result<Decoder> Decoder::from_json(const json::Value* value) {
  Decoder out;
  if (value && !value->is_null()) TROUPE_RETURN_IF_ERROR(out.add(*value, "decoder", 0));
  return out;
}

Status Decoder::add(const json::Value& value, const std::string& key, int depth) {
  const auto type = json::find_string(value, "type");
  if (!type) return error(Code::kInvalidArgument, "{}.type is missing or no string", key);
  Step step;
  if (*type == "Sequence") {
    const auto* list = json::find(value, "decoders");
    if (!list || !list->is_array() || depth >= kNestingMax) {
      return error(Code::kInvalidArgument, "{}.decoders must be an array, at most {} deep", key,
                   kNestingMax);
    }
    for (const auto& inner : list->get_array()) {
      TROUPE_RETURN_IF_ERROR(add(inner, key + ".decoders", depth + 1));
    }
    return {};
  }
  if (*type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (*type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (*type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (*type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.pattern = json::find_string(value, "replacement").value_or("\xe2\x96\x81");
    const bool add_prefix = json::find_bool(value, "add_prefix_space").value_or(true);
    const auto scheme =
        json::find_string(value, "prepend_scheme").value_or(add_prefix ? "always" : "never");
    step.strip_first = scheme != "never";
  } else if (*type == "WordPiece") {
    step.kind = Kind::kWordPiece;
    step.pattern = json::find_string(value, "prefix").value_or("##");
    step.cleanup = json::find_bool(value, "cleanup").value_or(true);
  } else if (*type == "Replace") {
    step.kind = Kind::kReplace;
    const auto* pattern = json::find(value, "pattern");
    step.pattern = pattern ? json::find_string(*pattern, "String").value_or("") : "";
    step.content = json::find_string(value, "content").value_or("");
    if (step.pattern.empty()) {
      return error(Code::kUnsupported, "{}.pattern must be {{\"String\": …}}", key);
    }
  } else if (*type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = json::find_string(value, "content").value_or(" ");
    const auto start = json::find_integer(value, "start").value_or(0);
    const auto stop = json::find_integer(value, "stop").value_or(0);
    if (step.content.empty() || start < 0 || stop < 0) {
      return error(Code::kInvalidArgument, "{} needs content, start >= 0 and stop >= 0", key);
    }
    step.start = static_cast<std::size_t>(start);
    step.stop = static_cast<std::size_t>(stop);
  } else {
    return error(Code::kUnsupported,
                 "{}.type={} is not supported: use a tokenizer whose decoder is ByteLevel, "
                 "Metaspace, Replace, ByteFallback, Fuse, Strip, WordPiece or a Sequence of these",
                 key, *type);
  }
  steps_.push_back(std::move(step));
  return {};
}

std::vector<std::string> Decoder::apply(const Step& step, std::vector<std::string> tokens) const {
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string bytes;
      for (const auto& token : tokens) bytes += alphabet_.bytes_of(token).value_or(token);
      return {to_valid_utf8(bytes)};
    }
    case Kind::kMetaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::string_view token = tokens[i];
        if (i == 0 && step.strip_first && token.starts_with(step.pattern)) {
          token.remove_prefix(step.pattern.size());
        }
        tokens[i] = replace_all(token, step.pattern, " ");
      }
      return tokens;
    case Kind::kReplace:
      for (auto& token : tokens) token = replace_all(token, step.pattern, step.content);
      return tokens;
    case Kind::kByteFallback:
      return fold_bytes(std::move(tokens));
    case Kind::kFuse:
      return {joined(tokens, "")};
    case Kind::kWordPiece:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        auto& token = tokens[i];
        if (i > 0 && token.starts_with(step.pattern)) {
          token.erase(0, step.pattern.size());
        } else if (i > 0) {
          token.insert(0, " ");
        }
        if (step.cleanup) token = without_odd_spaces(std::move(token));
      }
      return tokens;
    case Kind::kStrip:
      for (auto& token : tokens) token = strip(token, step.content, step.start, step.stop);
      return tokens;
  }
  return tokens;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) return joined(tokens, " ");
  for (const auto& step : steps_) tokens = apply(step, std::move(tokens));
  return to_valid_utf8(joined(tokens, ""));
}

bool Decoder::is_byte(std::string_view token) const {
  const auto folds = [](const Step& step) { return step.kind == Kind::kByteFallback; };
  return byte_of_fallback(token) >= 0 && std::any_of(steps_.begin(), steps_.end(), folds);
}

std::size_t Decoder::byte_count(std::string_view token) const {
  std::string text(token);
  for (const auto& step : steps_) {
    if (step.kind == Kind::kByteLevel) {
      if (const auto bytes = alphabet_.bytes_of(text)) return bytes->size();
    } else if (step.kind == Kind::kByteFallback) {
      if (byte_of_fallback(text) >= 0) return 1;
    } else if (step.kind == Kind::kMetaspace) {
      text = replace_all(text, step.pattern, " ");
    } else if (step.kind == Kind::kReplace) {
      text = replace_all(text, step.pattern, step.content);
    } else if (step.kind == Kind::kWordPiece && text.starts_with(step.pattern)) {
      text.erase(0, step.pattern.size());
    }
  }
  return text.size();
}

}  // namespace troupe::train
