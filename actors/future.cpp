#include "actors/future.h"

namespace troupe::detail {

Status empty_future_error() {
  return Status(Code::kFailedPrecondition,
                "an empty Future: it was moved from, or then() or co_await has taken it");
}

Status late_of_several(Status first, std::size_t others) {
  if (others == 0) return first;
  return first.prefixed(fmt::format("{} futures are not ready; the first of them", others + 1));
}

Status status_of_exception(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const StatusError& e) {
    return e.status();
  } catch (const std::exception& e) {
    return error(Code::kInternal, "a continuation threw: {}", e.what());
  } catch (...) {
    return Status(Code::kInternal, "a continuation threw something that is no std::exception");
  }
}

}  // namespace troupe::detail
