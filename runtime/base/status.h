#pragma once
// troupe/status.h, and errors put together from a format string. Bugs are no errors: they hit
// TROUPE_CHECK (check.h) and abort.

#include <fmt/format.h>

#include "troupe/status.h"

namespace troupe {

namespace detail {
Status format_error(Code code, fmt::string_view format, fmt::format_args args);
}  // namespace detail

// error(Code::kNotFound, "no file {}", path)
template <typename... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return detail::format_error(code, format, fmt::make_format_args(args...));
}

}  // namespace troupe
