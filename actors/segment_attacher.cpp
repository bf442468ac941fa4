#include "actors/segment_attacher.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::detail {
namespace {

// A node daemon that was killed has forgotten the question: the next one is asked again.
constexpr Duration kAskAgain = std::chrono::seconds(1);
// The node's own word on the deadline arrives within.
constexpr Duration kLastWord = std::chrono::milliseconds(200);

}  // namespace

std::optional<Result<UniqueFd>> SegmentAttacher::wait_for_answer(std::uint64_t request_id,
                                                                 Deadline until) {
  MutexLock lock(mutex_);
  std::optional<Result<UniqueFd>> answer;
  changed_.wait_until(mutex_, until,
                      [&]() TROUPE_NO_ANALYSIS { return questions_.at(request_id).has_value(); });
  answer = std::move(questions_.at(request_id));
  return answer;
}

Result<UniqueFd> SegmentAttacher::attach(const std::string& name, Deadline deadline) {
  std::uint64_t request_id = 0;
  {
    MutexLock lock(mutex_);
    request_id = next_++;
    questions_[request_id];
  }
  const auto give_up = Deadline::at(deadline.time() + kLastWord);
  Result<UniqueFd> result =
      error(Code::kDeadlineExceeded, "the node did not hand out segment '{}' in time", name);
  while (!give_up.passed()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const Status sent = send_(wire::HostAttachSegment{request_id, name, left.count()});
    if (!sent.ok()) {
      result = Status(sent).prefixed("asking the node for segment '" + name + "'");
      break;
    }
    const auto until = std::min(give_up.time(), Deadline::after(kAskAgain).time());
    if (auto answer = wait_for_answer(request_id, Deadline::at(until))) {
      result = std::move(*answer);
      break;
    }
  }
  MutexLock lock(mutex_);
  questions_.erase(request_id);
  return result;
}

void SegmentAttacher::answered(const wire::HostAttachReply& reply, UniqueFd segment) {
  MutexLock lock(mutex_);
  const auto found = questions_.find(reply.request_id);
  if (found == questions_.end() || found->second) return;  // given up, or answered before
  if (reply.status.ok()) {
    found->second.emplace(std::move(segment));
  } else {
    found->second.emplace(reply.status);
  }
  changed_.notify_all();
}

}  // namespace troupe::detail
