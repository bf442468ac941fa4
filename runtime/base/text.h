#pragma once
// Numbers in texts, and letters of one case.

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

namespace detail {
std::optional<std::int64_t> int64_from(std::string_view text);
std::string int64_of(std::int64_t count, std::string_view noun);
}  // namespace detail

// The integer that is the whole text, in decimal digits, with a '-' at most before them. Nothing:
// it is none, or one that `Number` does not hold.
template <std::integral Number>
std::optional<Number> parse_integer(std::string_view text) {
  const auto number = detail::int64_from(text);
  if (!number || !std::in_range<Number>(*number)) return std::nullopt;
  return static_cast<Number>(*number);
}

// "1 file", "3 files", "2 processes": the noun in singular, of those that form a plural so.
template <std::integral Number>
std::string count_of(Number count, std::string_view noun) {
  return detail::int64_of(static_cast<std::int64_t>(count), noun);
}

// ASCII's letters in one case; all other bytes stay as they are.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

}  // namespace troupe
