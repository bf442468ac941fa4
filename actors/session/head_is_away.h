#pragma once

#include "runtime/base/status.h"

namespace troupe::detail {

// Whether a status says that the head could not be asked, rather than what it answered: it is away,
// or another one is there for now. The same question may have an answer later.
inline bool head_is_away(const Status& status) {
  return status.code() == Code::kUnavailable || status.code() == Code::kUnauthenticated;
}

}  // namespace troupe::detail
