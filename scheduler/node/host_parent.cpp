#include "scheduler/node/host_parent.h"

#include <signal.h>

#include <utility>

namespace troupe::scheduler {

// --- our own -------------------------------------------------------------------------------------

Result<pid_t> OwnChildren::spawn(HostId host, process::SpawnOptions options, const HostEnds&,
                                 OnExit on_exit) {
  options.parent_death_signal = SIGKILL;
  auto child = TROUPE_TRY(process::spawn(options));
  const pid_t pid = child.pid;
  children_[host] = std::move(child);
  process::watch_exit(loop_, children_.at(host), std::move(on_exit));
  return pid;
}

bool OwnChildren::wait_exit(HostId host, Deadline deadline) {
  const auto child = children_.find(host);
  if (child == children_.end()) return true;
  process::stop_watching(loop_, child->second);
  return process::wait(child->second, deadline).ok();
}

// --- the keeper's --------------------------------------------------------------------------------

std::string channel_key(HostId host) { return "channel/" + std::to_string(host); }
std::string out_key(HostId host) { return "out/" + std::to_string(host); }
std::string err_key(HostId host) { return "err/" + std::to_string(host); }

KeeperChildren::KeeperChildren(net::EventLoop& loop, process::KeeperClient& keeper)
    : loop_(loop), keeper_(&keeper) {
  for (const wire::KeeperChild& child : keeper.contents().children) {
    if (child.ended) ended_before_[child.child_id] = child.exit;
  }
}

Result<pid_t> KeeperChildren::spawn(HostId host, process::SpawnOptions options,
                                    const HostEnds& ends, OnExit on_exit) {
  if (keeper_ == nullptr) return error(Code::kUnavailable, "the node's keeper has ended");
  // Before the process: whoever finds that finds these.
  TROUPE_RETURN_IF_ERROR(keeper_->put(channel_key(host), {}, ends.channel.get()));
  TROUPE_RETURN_IF_ERROR(keeper_->put(out_key(host), {}, ends.out.get()));
  TROUPE_RETURN_IF_ERROR(keeper_->put(err_key(host), {}, ends.err.get()));
  auto pid = keeper_->spawn(host, options);
  if (pid.ok()) {
    waiting_[host] = std::move(on_exit);
  } else {
    release(host);
  }
  return pid;
}

void KeeperChildren::adopt(HostId host, OnExit on_exit) {
  waiting_[host] = std::move(on_exit);
  const auto before = ended_before_.find(host);
  if (before == ended_before_.end()) return;
  loop_.post([this, host, exit = before->second, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) ended(host, exit);
  });
}

bool KeeperChildren::wait_exit(HostId host, Deadline deadline) {
  if (waiting_.erase(host) == 0 || ended_before_.contains(host)) return true;
  return keeper_ == nullptr || keeper_->wait_exit(host, deadline);
}

void KeeperChildren::release(HostId host) {
  waiting_.erase(host);
  ended_before_.erase(host);
  if (keeper_ == nullptr) return;
  (void)keeper_->forget(host);
  for (const auto& key : {channel_key(host), out_key(host), err_key(host)}) {
    (void)keeper_->drop(key);
  }
}

void KeeperChildren::ended(HostId host, wire::ExitStatus exit) {
  const auto found = waiting_.find(host);
  if (found == waiting_.end()) return;
  const OnExit on_exit = std::move(found->second);
  waiting_.erase(found);
  on_exit(exit);
}

void KeeperChildren::end_all() {
  const std::weak_ptr<bool> alive = alive_;
  while (!alive.expired() && !waiting_.empty()) {
    ended(waiting_.begin()->first, process::kUnknownExit);
  }
}

}  // namespace troupe::scheduler
