// What a call waits for, in words: said when the call's own deadline comes, and when a wait for its
// result ends before it.

#include <fmt/format.h>

#include "actors/actor_channel.h"
#include "scheduler/client/actor_words.h"

namespace troupe::detail {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

std::optional<Status> ActorChannel::late(std::uint64_t sequence, const char* what) const {
  MutexLock lock(mutex_);
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return std::nullopt;
  Status status = error(Code::kDeadlineExceeded, "{}, the call goes on: {}", what,
                        waits_for_locked(it->second));
  add_place_locked(status, it->second.request.method);
  return status;
}

Status ActorChannel::deadline_error_locked(const PendingCall& call) const {
  const char* what = "the actor does not run by the call's deadline";
  if (call.state != SendState::kUnsent) {
    what = "the actor has not answered by the call's deadline";
  } else if (!info_) {
    what = "the actor is not found by the call's deadline";
  } else if (info_->state == wire::ActorState::kAlive) {
    what = "the actor is not reached by the call's deadline";
  }
  return error(Code::kDeadlineExceeded, "{}: {}", what, waits_for_locked(call));
}

void ActorChannel::add_place_locked(Status& status, std::uint32_t method) const {
  status.with("actor", label_locked());
  status.with("method", fmt::format("{}::{}", interface_.type, interface_.methods[method].name));
  if (info_ && !info_->node_id.empty()) status.with("node", info_->node_id.brief());
}

std::string ActorChannel::waits_for_locked(const PendingCall& call) const {
  if (!info_) return "the head has not said where the actor is";
  const TimePoint now = environment_->loop->clock().now();
  const std::string node = info_->node_id.brief();
  if (call.state == SendState::kLost) {
    return "the connection broke while the actor had the call, and the head has not said yet what "
           "became of its process";
  }
  if (call.state == SendState::kSent) {
    std::string text = fmt::format("process {} on node {} has it", info_->pid, node);
    // It was sent when it was made, or when the connection came.
    if (call.request.made != TimePoint{}) {
      text += fmt::format(" for {:.1f} s", seconds(now - std::max(call.request.made, opened_at_)));
    }
    // Whether its method has begun only that process knows.
    if (calls_.size() == 1) {
      return text + ", running or behind calls of others; it is the only one of this process's";
    }
    return text + fmt::format(
                      ", running or in the mailbox; {} calls of this process are on their "
                      "way to it",
                      calls_.size());
  }
  const std::string since = fmt::format("{:.1f} s", seconds(now - info_since_));
  if (info_->state != wire::ActorState::kAlive) {
    return fmt::format("it is {} for {}: {}", wire::actor_state_name(info_->state), since,
                       scheduler::actor_waits_for(*info_, node));
  }
  std::string text =
      fmt::format("process {} on node {} runs it for {}, and there is no connection to it at {}",
                  info_->pid, node, since, address_locked().to_string());
  if (!connect_trouble_.ok()) text += fmt::format(": {}", connect_trouble_.to_string());
  return text;
}

}  // namespace troupe::detail
