#pragma once

#include <string>
#include <string_view>

namespace troupe::tools {

// One word for any POSIX shell, whatever it holds.
inline std::string shell_quoted(std::string_view word) {
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

}  // namespace troupe::tools
