#include "actors/session/call_request.h"

#include <fmt/format.h>

namespace troupe::detail {

std::string MethodLabel::to_string() const { return fmt::format("{}::{}", type, method); }

Status TooLarge::error(std::string_view what) const {
  if (bytes <= bytes_max) {
    return troupe::error(Code::kResourceExhausted,
                         "{} of {} bytes: the process had no memory for it", what, bytes);
  }
  return troupe::error(
      Code::kResourceExhausted,
      "{} of {} bytes: a process here takes at most {} at once, half of the memory that it "
      "may use. Pass it in pieces",
      what, bytes, bytes_max);
}

}  // namespace troupe::detail
