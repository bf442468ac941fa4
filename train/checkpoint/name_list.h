#pragma once
// Names in messages. Private to this folder.

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace troupe::train {

// "a, b, c and 12 more": the first ten.
inline std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kListedMax = 10;
  const auto shown = std::min(names.size(), kListedMax);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace troupe::train
