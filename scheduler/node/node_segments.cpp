// Memory that outlives processes: kept for a job, owned by one process at a time.

#include <algorithm>
#include <set>

#include "scheduler/node/kept_keys.h"
#include "scheduler/node/node_state.h"

namespace troupe::scheduler {
namespace {

// Nobody waits longer, and time stays representable.
constexpr std::int64_t kAttachMsMax = 24LL * 3600 * 1000;

}  // namespace

std::optional<FdHandle> NodeState::segment(JobId job_id, const std::string& name) const {
  const auto found = segments_.find({job_id, name});
  if (found == segments_.end()) return std::nullopt;
  return found->second.fd;
}

void NodeState::drop_segment(std::map<SegmentKey, KeptSegment>::iterator segment) {
  close(segment->second.fd);
  commands_.push_back(
      node_command::Unkeep{segment_key(segment->first.first, segment->first.second)});
  segments_.erase(segment);
}

void NodeState::keep_segment(const Actor& actor, const wire::HostKeepSegment& keep, FdHandle fd) {
  const SegmentKey key{actor.spec.job_id, keep.name};
  const auto found = segments_.find(key);
  // What another process uses is not taken from under it.
  const bool foreign = found != segments_.end() && found->second.owner != actor.host &&
                       by_host_.contains(found->second.owner);
  if (foreign) {
    commands_.push_back(node_command::Warn{
        fmt::format("segment '{}' of actor {} is not kept: another process that runs owns it",
                    keep.name, actor.spec.actor_id.brief())});
    return close(fd);
  }
  if (found != segments_.end()) drop_segment(found);
  if (keep.drop || fd == kNoFd) return close(fd);
  const auto count = std::count_if(segments_.begin(), segments_.end(), [&](const auto& entry) {
    return entry.first.first == key.first;
  });
  if (static_cast<std::size_t>(count) >= config_.segments_max) {
    commands_.push_back(
        node_command::Warn{fmt::format("segment '{}' of actor {} is not kept: its job has {}",
                                       keep.name, actor.spec.actor_id.brief(), count)});
    return close(fd);
  }
  own_segment(segments_[key] = {fd, actor.host}, key);
}

void NodeState::own_segment(const KeptSegment& segment, const SegmentKey& key) {
  commands_.push_back(node_command::Keep{segment_key(key.first, key.second),
                                         wire::KeptSegment{key.first, key.second, segment.owner},
                                         segment.fd,
                                         {}});
}

void NodeState::attach(const Actor& actor, const wire::HostAttachSegment& request) {
  if (!actor.can_be_told()) return;
  std::erase_if(attaches_, [&](const Attach& waiting) {
    return waiting.host == actor.host && waiting.request_id == request.request_id;
  });
  const std::int64_t timeout_ms = std::clamp<std::int64_t>(request.timeout_ms, 0, kAttachMsMax);
  Attach attach{actor.host,
                request.request_id,
                {actor.spec.job_id, request.name},
                now_ + std::chrono::milliseconds(timeout_ms)};
  if (answer(attach)) return;
  const auto waiting = std::count_if(attaches_.begin(), attaches_.end(),
                                     [&](const Attach& a) { return a.host == actor.host; });
  if (static_cast<std::size_t>(waiting) >= config_.attaches_max) {
    commands_.push_back(node_command::TellHost{
        actor.host,
        wire::HostAttachReply{request.request_id,
                              error(Code::kOverloaded, "{} segments are waited for", waiting)}});
    return;
  }
  attaches_.push_back(std::move(attach));
}

// False: it has to wait.
bool NodeState::answer(const Attach& attach) {
  const auto reply = [&](Status status, FdHandle fd = kNoFd) {
    commands_.push_back(node_command::TellHost{
        attach.host, wire::HostAttachReply{attach.request_id, std::move(status)}, fd});
    return true;
  };
  const auto& [job_id, name] = attach.key;
  const auto found = segments_.find(attach.key);
  if (found == segments_.end()) {
    return reply(error(Code::kNotFound, "node {} keeps no segment '{}' of this job", name_, name));
  }
  const Actor* owner = find(found->second.owner);
  if (owner == nullptr || owner->host == attach.host) {
    if (found->second.owner != attach.host) {
      found->second.owner = attach.host;
      own_segment(found->second, attach.key);
    }
    return reply({}, found->second.fd);
  }
  if (!owner->ending()) {
    return reply(error(Code::kFailedPrecondition,
                       "segment '{}' is in use by actor {} (process {}), which runs", name,
                       owner->spec.actor_id.brief(), owner->pid));
  }
  if (attach.until <= now_) {
    return reply(error(Code::kDeadlineExceeded,
                       "segment '{}' is not free: process group {} of actor {} has not ended yet",
                       name, owner->pid, owner->spec.actor_id.brief()));
  }
  return false;
}

void NodeState::settle_attaches() {
  std::erase_if(attaches_, [this](const Attach& attach) {
    const Actor* actor = find(attach.host);
    return actor == nullptr || !actor->can_be_told() || answer(attach);
  });
}

void NodeState::drop_segments_of_ended_jobs() {
  if (!std::exchange(job_may_have_ended_, false) || segments_.empty()) return;
  std::set<JobId> jobs;
  for (const auto& [id, actor] : actors_) {
    if (actor.has_process() || actor.keep_until) jobs.insert(actor.spec.job_id);
  }
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto segment = it++;
    if (!jobs.contains(segment->first.first)) drop_segment(segment);
  }
}

}  // namespace troupe::scheduler
