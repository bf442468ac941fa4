#pragma once
// Always-on checks for bugs. A failed check prints file, line, the condition and the values, and
// aborts: never use one on anything that a user, a peer or a disk can cause.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace troupe::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace troupe::detail

// TROUPE_CHECK(condition) or TROUPE_CHECK(condition, "format {}", value)
#define TROUPE_CHECK(condition, ...)                                                \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      ::troupe::detail::check_failed(__FILE__, __LINE__, #condition,                \
                                     ::troupe::detail::check_message(__VA_ARGS__)); \
  } while (false)
