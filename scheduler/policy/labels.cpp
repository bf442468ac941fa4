#include "scheduler/policy/labels.h"

#include <algorithm>
#include <charconv>

namespace troupe::scheduler {
namespace {

constexpr std::size_t kLabelsMax = 256;
constexpr std::size_t kTermsMax = 32;
constexpr std::size_t kValuesMax = 1024;
constexpr std::string_view kFirstFree = "first_free(";
constexpr std::int64_t kNumbersMax = 1 << 16;

Status bad_term(std::string_view key, std::string_view text) {
  return error(Code::kInvalidArgument,
               "'{}' is not a condition on label '{}': write a value, in(a,b) or exists(), each "
               "also with ! before it",
               text, key);
}

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

std::string format_term(const wire::LabelTerm& term) {
  if (term.values.empty()) return (term.negated ? "no label " : "label ") + term.key;
  if (term.values.size() == 1) return term.key + (term.negated ? "!=" : "=") + term.values[0];
  return fmt::format("{}{} in({})", term.key, term.negated ? " not" : "", joined(term.values));
}

}  // namespace

Result<wire::LabelTerm> parse_label_term(std::string_view key, std::string_view text) {
  wire::LabelTerm term{std::string(key), false, {}};
  std::string_view rest = text;
  if (rest.starts_with('!')) {
    term.negated = true;
    rest.remove_prefix(1);
  }
  if (key.empty() || rest.empty()) return bad_term(key, text);
  if (rest == "exists()") return term;
  if (!rest.starts_with("in(")) {
    if (rest.find_first_of("(),!") != std::string_view::npos) return bad_term(key, text);
    term.values.emplace_back(rest);
    return term;
  }
  if (!rest.ends_with(')')) return bad_term(key, text);
  rest = rest.substr(3, rest.size() - 4);
  while (true) {
    const std::size_t comma = rest.find(',');
    std::string_view value = rest.substr(0, comma);
    while (value.starts_with(' ')) value.remove_prefix(1);
    while (value.ends_with(' ')) value.remove_suffix(1);
    if (value.empty() || value.find_first_of("()!") != std::string_view::npos) {
      return bad_term(key, text);
    }
    term.values.emplace_back(value);
    if (comma == std::string_view::npos) return term;
    rest.remove_prefix(comma + 1);
  }
}

Result<wire::LabelSelector> parse_label_selector(const std::map<std::string, std::string>& texts) {
  wire::LabelSelector selector;
  for (const auto& [key, text] : texts) selector.push_back(TROUPE_TRY(parse_label_term(key, text)));
  TROUPE_RETURN_IF_ERROR(validate(selector));
  return selector;
}

Status validate(const wire::LabelSelector& selector) {
  if (selector.size() > kTermsMax) {
    return error(Code::kInvalidArgument, "a label selector has {} conditions; at most {} are taken",
                 selector.size(), kTermsMax);
  }
  for (const wire::LabelTerm& term : selector) {
    if (term.key.empty()) {
      return Status(Code::kInvalidArgument, "a label selector has a condition without a label");
    }
    if (term.values.size() > kValuesMax) {
      return error(Code::kInvalidArgument, "label '{}' has {} values to choose from; at most {}",
                   term.key, term.values.size(), kValuesMax);
    }
  }
  return {};
}

Status check_labels(const Labels& labels) {
  if (labels.size() > kLabelsMax) {
    return error(Code::kInvalidArgument, "a node has {} labels; at most {} are taken",
                 labels.size(), kLabelsMax);
  }
  if (labels.contains("")) return Status(Code::kInvalidArgument, "a label of a node has no name");
  for (const auto& [key, value] : labels) {
    if (!value.starts_with(kFirstFree) || first_free_of(value)) continue;
    return error(Code::kInvalidArgument,
                 "label '{}' of a node is '{}': write first_free(N), N from 1 to {}", key, value,
                 kNumbersMax);
  }
  return {};
}

std::optional<std::int64_t> first_free_of(std::string_view value) {
  if (!value.starts_with(kFirstFree) || !value.ends_with(')')) return std::nullopt;
  value.remove_prefix(kFirstFree.size());
  value.remove_suffix(1);
  std::int64_t count = 0;
  const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (ec != std::errc() || end != value.data() + value.size()) return std::nullopt;
  if (count < 1 || count > kNumbersMax) return std::nullopt;
  return count;
}

bool matches(const wire::LabelTerm& term, const Labels& labels) {
  const auto found = labels.find(term.key);
  const bool holds = found != labels.end() &&
                     (term.values.empty() || std::find(term.values.begin(), term.values.end(),
                                                       found->second) != term.values.end());
  return holds != term.negated;
}

bool matches(const wire::LabelSelector& selector, const Labels& labels) {
  return std::all_of(selector.begin(), selector.end(),
                     [&](const wire::LabelTerm& term) { return matches(term, labels); });
}

std::string format_selector(const wire::LabelSelector& selector) {
  std::string text;
  for (const wire::LabelTerm& term : selector)
    text += (text.empty() ? "" : ", ") + format_term(term);
  return text;
}

}  // namespace troupe::scheduler
