#pragma once
// A callback's answer, waited for.

#include <memory>
#include <utility>

#include "troupe/future.h"

namespace troupe::detail {

// Calls `ask(done)` and returns what `done` is called with, a ResultOf<T>; kDeadlineExceeded, which
// names `what` was asked for, where it is not called in time. The promise lives as long as the
// callback, so a late answer harms nobody. Not on the thread that answers.
template <typename T, typename Ask>
ResultOf<T> wait_for_head(Deadline deadline, const char* what, Ask ask) {
  auto promise = std::make_shared<Promise<T>>();
  auto future = promise->future();
  ask([promise](ResultOf<T> result) { promise->set(std::move(result)); });
  auto result = future.get(deadline);
  const Status& status = status_of(result);
  if (status.code() == Code::kDeadlineExceeded) {
    return error(Code::kDeadlineExceeded, "{}: the head has not answered in time", what);
  }
  return result;
}

}  // namespace troupe::detail
