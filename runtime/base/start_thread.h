#pragma once
// Threads whose start may fail, as a value: std::thread throws, which ends a process whose code
// expects no exception there.

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/status.h"

namespace troupe {

// The error of a thread that could not be started to do `what` ("read answers").
Status no_thread(std::string_view what, const std::system_error& why);

// kResourceExhausted where the system has no room for another thread. `run` is destroyed then.
template <typename Run>
Result<std::thread> start_thread(std::string_view what, Run run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& why) {
    return no_thread(what, why);
  }
}

}  // namespace troupe
