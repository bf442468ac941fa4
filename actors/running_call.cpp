#include "troupe/detail/running_call.h"

namespace troupe::detail {

const std::stop_token& RunningCall::stop_token() {
  if (!asked_) {
    token_ = host_.stop_token_of(caller_, sequence_);
    asked_ = true;
  }
  return token_;
}

}  // namespace troupe::detail
