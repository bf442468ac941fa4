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
