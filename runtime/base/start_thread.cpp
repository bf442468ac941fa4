#include "runtime/base/start_thread.h"

namespace troupe {

Status no_thread(std::string_view what, const std::system_error& why) {
  return error(Code::kResourceExhausted,
               "no thread can be started to {}: {}; look at ulimit -u, at pids.max of the control "
               "group, and at free memory",
               what, why.code().message());
}

}  // namespace troupe
