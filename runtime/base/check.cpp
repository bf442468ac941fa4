#include "runtime/base/check.h"

#include <cstdio>

namespace troupe::detail {

void check_failed(const char* file, int line, const char* condition, fmt::string_view format,
                  fmt::format_args args) {
  const std::string message = fmt::vformat(format, args);
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe::detail
