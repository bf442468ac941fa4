#pragma once
// Users' code, run so that what it throws becomes an error.

#include <exception>

#include "runtime/base/process_stamp.h"
#include "runtime/base/status.h"

namespace troupe::detail {

// Ends a child that users' code has forked and let return: what comes after it (the answer, the
// saved state, the next call) is the parent's alone.
[[noreturn]] void end_forked_child();

// What f() returns (a Status or a Result); kActorError where it throws.
template <typename F>
auto guarded(F&& f) -> decltype(f()) {
  struct Returns {
    const ProcessStamp process;
    ~Returns() {
      if (process.is_forked()) [[unlikely]]
        end_forked_child();
    }
  } const returns;
  try {
    return f();
  } catch (const std::exception& e) {
    return error(Code::kActorError, "the actor threw: {}", e.what());
  } catch (...) {
    return error(Code::kActorError, "the actor threw: something that is no std::exception");
  }
}

}  // namespace troupe::detail
