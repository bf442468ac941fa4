// What a call waits for, in words: said when the call's own deadline comes, and when a wait for its
// result ends before it.

#include <fmt/format.h>

#include "actors/session/caller_session.h"
#include "scheduler/client/actor_words.h"

namespace troupe::detail {
namespace {

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string to_string(const wire::Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "", endpoint.port);
}

}  // namespace

std::optional<Status> CallerSession::late(std::uint64_t sequence, const char* what,
                                          TimePoint now) const {
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return std::nullopt;
  Status status =
      error(Code::kDeadlineExceeded, "{}, the call goes on: {}", what, waits_for(it->second, now));
  add_place(status, it->second.request.method);
  return status;
}

Status CallerSession::placed(std::uint64_t sequence, Status why) const {
  const auto it = calls_.find(sequence);
  if (it != calls_.end()) add_place(why, it->second.request.method);
  return why;
}

Status CallerSession::deadline_error(const PendingCall& call, TimePoint now) const {
  const char* what = "the actor does not run by the call's deadline";
  if (call.state != State::kUnsent) {
    what = "the actor has not answered by the call's deadline";
  } else if (!info_) {
    what = "the actor is not found by the call's deadline";
  } else if (info_->state == wire::ActorState::kAlive) {
    what = "the actor is not reached by the call's deadline";
  }
  return error(Code::kDeadlineExceeded, "{}: {}", what, waits_for(call, now));
}

void CallerSession::add_place(Status& status, std::uint32_t method) const {
  const ActorInterface& interface = config_.interface;
  status.with("actor", label());
  status.with("method", fmt::format("{}::{}", interface.type, interface.methods[method].name));
  if (info_ && !info_->node_id.empty()) status.with("node", info_->node_id.brief());
}

std::string CallerSession::label() const {
  if (info_ && !info_->name.empty()) return info_->name;
  return fmt::format("{} {}", config_.interface.type, config_.actor_id.brief());
}

std::string CallerSession::waits_for(const PendingCall& call, TimePoint now) const {
  if (!info_) return "the head has not said where the actor is";
  const std::string node = info_->node_id.brief();
  if (call.state == State::kLost) {
    return "the connection broke while the actor had the call, and the head has not said yet what "
           "became of its process";
  }
  if (call.state == State::kSent) {
    std::string text = fmt::format("process {} on node {} has it", info_->pid, node);
    // It was sent when it was made, or when the connection came.
    if (call.request.made != TimePoint{}) {
      text +=
          fmt::format(" for {:.1f} s", in_seconds(now - std::max(call.request.made, opened_at_)));
    }
    // Whether its method has begun only that process knows.
    if (calls_.size() == 1) {
      return text +
             ", running or behind calls of others; it is the only call that this process waits for";
    }
    return text + fmt::format(
                      ", running or in the mailbox; {} calls of this process are on their "
                      "way to it",
                      calls_.size());
  }
  const std::string since = fmt::format("{:.1f} s", in_seconds(now - info_since_));
  if (info_->state != wire::ActorState::kAlive) {
    return fmt::format("it is {} for {}: {}", wire::actor_state_name(info_->state), since,
                       scheduler::actor_waits_for(*info_, node));
  }
  std::string text =
      fmt::format("process {} on node {} runs it for {}, and there is no connection to it at {}",
                  info_->pid, node, since, to_string(info_->endpoint));
  if (!connect_trouble_.ok()) text += fmt::format(": {}", connect_trouble_.to_string());
  return text;
}

}  // namespace troupe::detail
