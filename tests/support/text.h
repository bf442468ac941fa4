#pragma once
// What tests ask of texts.

#include <string_view>

namespace troupe::tests {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace troupe::tests
