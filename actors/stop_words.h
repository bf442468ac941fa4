#pragma once
// The errors with which the process of a stopping actor ends the calls that it does not begin.

#include <string_view>

namespace troupe::detail {

inline constexpr std::string_view kTakesNoNewCalls =
    "the actor is being stopped and takes no new calls: ";
inline constexpr std::string_view kStoppedBeforeThisCall =
    "the actor was stopped before it came to this call";

}  // namespace troupe::detail
