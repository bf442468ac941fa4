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
}  // namespace detail

// The integer that is the whole text, in decimal digits, with a '-' at most before them. Nothing:
// it is none, or one that `Number` does not hold.
template <std::integral Number>
std::optional<Number> parse_integer(std::string_view text) {
  const auto number = detail::int64_from(text);
  if (!number || !std::in_range<Number>(*number)) return std::nullopt;
  return static_cast<Number>(*number);
}

// ASCII's letters in one case; all other bytes stay as they are.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

}  // namespace troupe
