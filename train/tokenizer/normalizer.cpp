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
  Step step{};
  if (const auto form = kForms.find(*type); form != kForms.end()) {
    step.kind = Kind::kForm;
    step.form = form->second;
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
                 "NFKD, Prepend, Replace, Strip or a Sequence of these",
                 key, *type);
  }
  steps_.push_back(std::move(step));
  return {};
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

Result<std::string> Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  for (const auto& step : steps_) {
    switch (step.kind) {
      case Kind::kForm:
        out = TROUPE_TRY(normalize(out, step.form));
        break;
      case Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::kReplaceText:
        out = replace_all(out, step.pattern, step.content);
        break;
      case Kind::kReplaceRegex:
        out = TROUPE_TRY(replace_matches(out, step.regex.front(), step.content, scratch));
        break;
      case Kind::kStrip:
        out = strip(out, step.strip_left, step.strip_right);
        break;
    }
  }
  return out;
}

}  // namespace troupe::train
