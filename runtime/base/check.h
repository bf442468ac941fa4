#pragma once
// Always-on checks for bugs. A failed check prints file, line, the condition and the values, and
// aborts: never use one on anything that a user, a peer or a disk can cause.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace troupe::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               fmt::string_view format = {}, fmt::format_args args = {});
// The text is put together elsewhere: a caller has but the call to compile.
template <typename... Args>
[[noreturn]] void check_failed_with(const char* file, int line, const char* condition,
                                    fmt::format_string<Args...> format, Args&&... args) {
  check_failed(file, line, condition, format, fmt::make_format_args(args...));
}
[[noreturn]] inline void check_failed_with(const char* file, int line, const char* condition) {
  check_failed(file, line, condition);
}
}  // namespace troupe::detail

// TROUPE_CHECK(condition) or TROUPE_CHECK(condition, "format {}", value)
#define TROUPE_CHECK(condition, ...)                                              \
  do {                                                                            \
    if (!(condition)) [[unlikely]]                                                \
      ::troupe::detail::check_failed_with(__FILE__, __LINE__,                     \
                                          #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
