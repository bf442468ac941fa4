#include "runtime/base/text.h"

#include <charconv>

namespace troupe {

std::optional<std::int64_t> detail::int64_from(std::string_view text) {
  std::int64_t number = 0;
  const auto* end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc() || at != end) return std::nullopt;
  return number;
}

std::string detail::int64_of(std::int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + ' ' + std::string(noun);
  if (count == 1) return text;
  const bool hisses = noun.ends_with('s') || noun.ends_with('x') || noun.ends_with("ch");
  return text + (hisses ? "es" : "s");
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string upper_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return result;
}

}  // namespace troupe
