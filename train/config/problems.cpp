#include "train/config/problems.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace troupe::train {
namespace {

// More lines help nobody.
constexpr std::size_t kShownMax = 12;

bool begins_with_key(std::string_view message, std::string_view key) {
  if (!message.starts_with(key)) return false;
  const std::string_view rest = message.substr(key.size());
  return rest.starts_with(':') || rest.starts_with('=') || rest.starts_with(' ');
}

}  // namespace

void Problems::insert(Code code, std::string_view key, std::string text) {
  const auto origin = source_.origin_of(key);
  text = source_.in_words_of_user(text, key);
  if (origin.kind != OriginKind::kDefault) text = origin.to_string() + ": " + text;
  list_.push_back({code, std::string(key), std::move(text),
                   origin.kind == OriginKind::kFile ? origin.line : 1 << 30});
}

void Problems::add(Code code, std::string_view key, std::string_view message) {
  insert(
      code, key,
      begins_with_key(message, key) ? std::string(message) : fmt::format("{}: {}", key, message));
}

void Problems::add_named(Code code, std::string_view key, std::string_view message) {
  insert(code, key, std::string(message));
}

void Problems::add(std::string_view key, const Status& status) {
  std::string text = status.message();
  for (const auto& [name, value] : status.context()) {
    if (name != "key") text += fmt::format(" ({}={})", name, value);
  }
  add(status.code(), key, text);
}

void Problems::take(Problems&& others) {
  std::move(others.list_.begin(), others.list_.end(), std::back_inserter(list_));
  others.list_.clear();
}

bool Problems::has(std::string_view key) const {
  return std::any_of(list_.begin(), list_.end(), [&](const auto& p) { return p.key == key; });
}

Status Problems::status() const {
  if (list_.empty()) return {};
  // What is not there yet can be got; a setting that is refused stands in the way of the run
  // itself.
  auto sorted = list_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const bool a_missing = a.code == Code::kNotFound;
    const bool b_missing = b.code == Code::kNotFound;
    return std::tie(a_missing, a.line) < std::tie(b_missing, b.line);
  });
  Code code = sorted.front().code;
  std::string text;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].code != code) code = Code::kInvalidArgument;
    if (i < kShownMax) text += (i > 0 ? "\n" : "") + sorted[i].text;
  }
  if (sorted.size() > kShownMax) {
    text += fmt::format("\n… and {} more", sorted.size() - kShownMax);
  }
  Status status(code, text);
  // Behind the last of several lines it would be taken for that one's.
  if (sorted.size() == 1) status.with("key", source_.shown(sorted.front().key));
  return status;
}

}  // namespace troupe::train
