#pragma once
// How the parts of this folder give up: the exception never leaves it (template.cpp catches it).

#include <fmt/format.h>

#include <string>
#include <utility>

namespace troupe::train::jinja {

// `type` is the name of the Python exception that jinja2 raises in the same place.
struct Failure {
  const char* type;
  std::string message;
  int line = 0;  // 0: the line that is being rendered
};

template <typename... Args>
[[noreturn]] void fail(const char* type, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{type, fmt::format(format, std::forward<Args>(args)...)};
}

inline constexpr const char* kSyntaxError = "TemplateSyntaxError";
inline constexpr const char* kLimitError = "LimitError";  // jinja2 has no limits but Python's

}  // namespace troupe::train::jinja
