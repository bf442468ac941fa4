#pragma once
// Users' code, run so that what it throws becomes an error.

#include <exception>

#include "runtime/base/status.h"

namespace troupe::detail {

// What f() returns (a Status or a Result); kActorError where it throws.
template <typename F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& e) {
    return error(Code::kActorError, "the actor threw: {}", e.what());
  } catch (...) {
    return error(Code::kActorError, "the actor threw: something that is no std::exception");
  }
}

}  // namespace troupe::detail
