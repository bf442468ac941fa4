#include "actors/future.h"

namespace troupe::detail {

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
