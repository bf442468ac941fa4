#include "train/tokenizer/normalizer.h"

#include <map>

namespace troupe::train {
namespace {

constexpr int kNormalizerNestingMax = 8;

const std::map<std::string, NormalizationForm> kForms = {{"NFC", NormalizationForm::kNfc},
                                                         {"NFD", NormalizationForm::kNfd},
                                                         {"NFKC", NormalizationForm::kNfkc},
                                                         {"NFKD", NormalizationForm::kNfkd}};

std::string strip(std::string_view text, bool left, bool right) {
  std::size_t begin = 0, end = text.size();
  while (left && begin < end) {
    std::size_t next = begin;
    if (!is_white_space(next_code_point(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    const std::size_t previous = previous_boundary(text, end);
    std::size_t at = previous;
    if (!is_white_space(next_code_point(text, at))) break;
    end = previous;
  }
  return std::string(text.substr(begin, end - begin));
}

void lower(char32_t c, std::string& out) { append_lower(out, c); }

void drop_marks(char32_t c, std::string& out) {
  if (!is_mark(c)) append_utf8(out, c);
}

void drop_nonspacing_marks(char32_t c, std::string& out) {
  if (!is_nonspacing_mark(c)) append_utf8(out, c);
}

void clean_for_bert(char32_t c, std::string& out) {
  const bool is_line_space = c == '\t' || c == '\n' || c == '\r';
  if (c == 0 || c == 0xfffd || (!is_line_space && is_other(c))) return;
  append_utf8(out, is_white_space(c) ? U' ' : c);
}

// Chinese characters become words of their own. (That 2B820 to 2B91F are none is BERT's.)
void space_chinese(char32_t c, std::string& out) {
  const bool chinese = (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
                       (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
                       (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
                       (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
  if (chinese) out.push_back(' ');
  append_utf8(out, c);
  if (chinese) out.push_back(' ');
}

void nmt(char32_t c, std::string& out) {
  const bool dropped = (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
                       c == 0x8f || c == 0x9f;
  if (dropped) return;
  const bool space = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                     (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xfeff || c == 0xfffd;
  append_utf8(out, space ? U' ' : c);
}

Result<std::string> replace_matches(std::string_view text, const Regex& regex,
                                    std::string_view content, RegexScratch& scratch) {
  std::string out;
  std::size_t at = 0, from = 0;
  while (from <= text.size()) {
    const auto match = TROUPE_TRY(regex.find(text, from, scratch));
    if (!match) break;
    out.append(text.substr(at, match->first - at));
    out.append(content);
    at = match->second;
    from = at;
    if (match->first == match->second) {  // an empty match: step over one character
      if (from >= text.size()) break;
      next_code_point(text, from);
    }
  }
  out.append(text.substr(at));
  return out;
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t at = 0;
  for (;;) {
    const auto found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out.append(text.substr(at, found - at));
    out.append(to);
    at = found + from.size();
  }
  out.append(text.substr(at));
  return out;
}

Result<Normalizer> Normalizer::from_json(const json::Value* value) {
  Normalizer out;
  if (value && !value->is_null()) TROUPE_RETURN_IF_ERROR(out.add(*value, "normalizer", 0));
  return out;
}

Status Normalizer::add(const json::Value& value, const std::string& key, int depth) {
  const auto type = json::find_string(value, "type");
  if (!type) return error(Code::kInvalidArgument, "{}.type is missing or no string", key);
  if (*type == "Sequence") {
    const auto* list = json::find(value, "normalizers");
    if (!list || !list->is_array() || depth >= kNormalizerNestingMax) {
      return error(Code::kInvalidArgument, "{}.normalizers must be an array, at most {} deep", key,
                   kNormalizerNestingMax);
    }
    for (const auto& step : list->get_array()) {
      TROUPE_RETURN_IF_ERROR(add(step, key + ".normalizers", depth + 1));
    }
    return {};
  }
  const std::pair<const char*, Change> changes[] = {
      {"Lowercase", lower}, {"StripAccents", drop_marks}, {"Nmt", nmt}};
  for (const auto& [name, change] : changes) {
    if (*type != name) continue;
    add_change(change);
    return {};
  }
  Step step{};
  if (const auto form = kForms.find(*type); form != kForms.end()) {
    add_form(form->second);
    return {};
  }
  if (*type == "BertNormalizer") {
    add_bert(value);
    return {};
  }
  if (*type == "Precompiled") {
    const auto bytes = from_base64(json::find_string(value, "precompiled_charsmap").value_or(""));
    if (!bytes) return error(Code::kInvalidArgument, "{}.precompiled_charsmap must be Base64", key);
    auto charsmap = Charsmap::make(*bytes);
    if (!charsmap) return charsmap.status().prefixed(key + ".precompiled_charsmap");
    step.kind = Kind::kCharsmap;
    step.charsmap.push_back(std::move(*charsmap));
  } else if (*type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = json::find_string(value, "prepend").value_or("");
  } else if (*type == "Strip") {
    step.kind = Kind::kStrip;
    step.strip_left = json::find_bool(value, "strip_left").value_or(true);
    step.strip_right = json::find_bool(value, "strip_right").value_or(true);
  } else if (*type == "Replace") {
    return add_replace(value, key);
  } else {
    return error(Code::kUnsupported,
                 "{}.type={} is not supported: use a tokenizer whose normalizer is NFC, NFD, NFKC, "
                 "NFKD, Prepend, Replace, Strip, Lowercase, StripAccents, BertNormalizer, Nmt, "
                 "Precompiled or a Sequence of these",
                 key, *type);
  }
  steps_.push_back(std::move(step));
  return {};
}

void Normalizer::add_change(Change change) {
  Step step{};
  step.kind = Kind::kCharacters;
  step.change = change;
  steps_.push_back(std::move(step));
}

void Normalizer::add_form(NormalizationForm form) {
  Step step{};
  step.kind = Kind::kForm;
  step.form = form;
  steps_.push_back(std::move(step));
}

void Normalizer::add_bert(const json::Value& value) {
  const auto flag = [&](const char* key, bool otherwise) {
    return json::find_bool(value, key).value_or(otherwise);
  };
  const bool lowercase = flag("lowercase", true);
  if (flag("clean_text", true)) add_change(clean_for_bert);
  if (flag("handle_chinese_chars", true)) add_change(space_chinese);
  if (flag("strip_accents", lowercase)) {
    add_form(NormalizationForm::kNfd);
    add_change(drop_nonspacing_marks);
  }
  if (lowercase) add_change(lower);
}

Status Normalizer::add_replace(const json::Value& value, const std::string& key) {
  const auto* pattern = json::find(value, "pattern");
  Step step{};
  step.content = json::find_string(value, "content").value_or("");
  if (pattern) {
    if (auto text = json::find_string(*pattern, "String")) {
      step.kind = Kind::kReplaceText;
      step.pattern = *text;
    } else if (auto expression = json::find_string(*pattern, "Regex")) {
      step.kind = Kind::kReplaceRegex;
      step.pattern = *expression;
      auto regex = Regex::compile(*expression);
      if (!regex) return regex.status().prefixed(key + ".pattern");
      step.regex.push_back(std::move(*regex));
    }
  }
  if (step.pattern.empty()) {
    return error(Code::kInvalidArgument, "{}.pattern must be {{\"String\": …}} or {{\"Regex\": …}}",
                 key);
  }
  steps_.push_back(std::move(step));
  return {};
}

Result<std::string> Normalizer::apply(std::string_view text, RegexScratch& scratch,
                                      bool* front_dropped) const {
  std::string out(text);
  bool dropped = false;
  for (const auto& step : steps_) {
    switch (step.kind) {
      case Kind::kForm:
        out = TROUPE_TRY(normalize(out, step.form));
        break;
      case Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::kReplaceText:
        dropped = dropped || (step.content.empty() && out.starts_with(step.pattern));
        out = replace_all(out, step.pattern, step.content);
        break;
      case Kind::kReplaceRegex:
        if (step.content.empty()) {
          const auto match = TROUPE_TRY(step.regex.front().find(out, 0, scratch));
          dropped = dropped || (match && match->first == 0 && match->second > 0);
        }
        out = TROUPE_TRY(replace_matches(out, step.regex.front(), step.content, scratch));
        break;
      case Kind::kCharacters: {
        std::string changed;
        changed.reserve(out.size());
        for (std::size_t at = 0; at < out.size();) {
          step.change(next_code_point(out, at), changed);
          dropped = dropped || changed.empty();
        }
        out = std::move(changed);
        break;
      }
      case Kind::kCharsmap:
        dropped = dropped ||
                  (!out.empty() && step.charsmap.front()
                                       .apply(std::string_view(out).substr(0, grapheme_end(out, 0)))
                                       .empty());
        out = step.charsmap.front().apply(out);
        break;
      case Kind::kStrip:
        dropped = dropped || strip(out, step.strip_left, false).size() < out.size();
        out = strip(out, step.strip_left, step.strip_right);
        break;
    }
  }
  if (front_dropped) *front_dropped = dropped;
  return out;
}

}  // namespace troupe::train
