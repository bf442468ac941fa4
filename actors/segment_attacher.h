#pragma once
// The host's side of taking over kept segments: questions to the node, and its answers.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/wire/host_messages.h"
#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// Thread-safe.
class SegmentAttacher {
 public:
  using Send = std::function<Status(const wire::HostMessage&)>;
  explicit SegmentAttacher(Send send) : send_(std::move(send)) {}
  // As ActorContext::attach_segment; waits.
  Result<UniqueFd> attach(const std::string& name, Deadline deadline) TROUPE_EXCLUDES(mutex_);
  // The node's answer.
  void answered(const wire::HostAttachReply& reply, UniqueFd segment) TROUPE_EXCLUDES(mutex_);

 private:
  std::optional<Result<UniqueFd>> wait_for_answer(std::uint64_t request_id, Deadline until)
      TROUPE_EXCLUDES(mutex_);

  const Send send_;
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t next_ TROUPE_GUARDED_BY(mutex_) = 1;
  // By the question's number; without a value while it waits.
  std::map<std::uint64_t, std::optional<Result<UniqueFd>>> questions_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::detail
