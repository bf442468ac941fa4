#include "troupe/supervision.h"

#include <optional>

#include "actors/client.h"
#include "actors/head_answer.h"
#include "troupe/detail/mutex.h"

namespace troupe {
namespace {

Status no_supervisor() { return Status(Code::kFailedPrecondition, "an empty Supervisor"); }

Result<wire::RestartPolicy> policy_of(const SupervisorOptions& options) {
  if (options.max_restarts < -1 || options.window.count() < 0 ||
      options.backoff_initial.count() < 0 || options.backoff_max < options.backoff_initial ||
      options.grace.count() < 0) {
    return error(Code::kInvalidArgument,
                 "SupervisorOptions: max_restarts ({}) is at least -1, window, backoff_initial and "
                 "grace are not negative, and backoff_max is at least backoff_initial",
                 options.max_restarts);
  }
  return wire::RestartPolicy{.max_restarts = options.max_restarts,
                             .window_ms = options.window.count(),
                             .backoff_initial_ms = options.backoff_initial.count(),
                             .backoff_max_ms = options.backoff_max.count()};
}

Status late_error(SupervisorId id, const std::optional<wire::SupervisorInfo>& last) {
  if (!last) {
    return error(Code::kDeadlineExceeded, "a supervisor: the head has not answered in time")
        .with("supervisor", id.brief());
  }
  return error(Code::kDeadlineExceeded,
               "the supervisor has not ended: it is {}, with {} members, which it has restarted {} "
               "times{}",
               wire::supervisor_state_name(last->state), last->members.size(), last->restarts,
               last->why.ok() ? "" : fmt::format("; the last time: {}", last->why.to_string()))
      .with("supervisor", last->name.empty() ? id.brief() : last->name);
}

}  // namespace

Result<Supervisor> Supervisor::create(std::shared_ptr<detail::ActorClient> client,
                                      const SupervisorOptions& options, Deadline deadline) {
  wire::SupervisorSpec spec;
  spec.restart = TROUPE_TRY(policy_of(options));
  spec.name = options.name;
  spec.strategy = options.strategy;
  spec.grace_ms = options.grace.count();
  spec.parent = options.parent;
  spec.detached = options.detached;
  const detail::Ownership owner = client->ownership(options.owner, options.detached);
  spec.job_id = owner.job_id;
  spec.owner = owner.client;
  spec.owner_actor = owner.actor;
  spec.owner_generation = owner.generation;
  spec.supervisor_id = client->new_supervisor_id();
  const SupervisorId id = spec.supervisor_id;
  TROUPE_RETURN_IF_ERROR(
      detail::wait_for_head<void>(deadline, "creating a supervisor", [&](auto done) {
        client->directory().supervise(std::move(spec), std::move(done));
      }).with("supervisor", options.name.empty() ? id.brief() : options.name));
  return Supervisor(std::move(client), id);
}

Result<wire::SupervisorInfo> Supervisor::wait_for(
    Duration timeout, std::function<bool(const wire::SupervisorInfo&)> enough) const {
  if (!client_) return no_supervisor();
  struct Seen {
    Mutex mutex;
    std::optional<wire::SupervisorInfo> last TROUPE_GUARDED_BY(mutex);
  };
  auto seen = std::make_shared<Seen>();
  auto promise = std::make_shared<Promise<wire::SupervisorInfo>>();
  auto future = promise->future();
  const auto watch = client_->directory().watch_supervisor(
      id_, [promise, seen, enough = std::move(enough)](Result<wire::SupervisorInfo> info) {
        if (info.ok()) {
          MutexLock lock(seen->mutex);
          seen->last = *info;
        }
        if (!info.ok() || enough(*info)) promise->set(std::move(info));
      });
  auto info = future.get(timeout);
  client_->directory().unwatch(watch);
  if (info.status().code() != Code::kDeadlineExceeded) return info;
  MutexLock lock(seen->mutex);
  return late_error(id_, seen->last);
}

Result<wire::SupervisorInfo> Supervisor::info(Duration timeout) const {
  return wait_for(timeout, [](const wire::SupervisorInfo&) { return true; });
}

Status Supervisor::wait_for_end(Duration timeout) const {
  auto info = wait_for(timeout, [](const wire::SupervisorInfo& i) {
    return i.state == wire::SupervisorState::kEnded;
  });
  TROUPE_RETURN_IF_ERROR(info.status());
  return info->why;
}

SupervisorWatch Supervisor::watch(
    std::function<void(const wire::SupervisorInfo&)> on_change) const {
  if (!client_) return {};
  return detail::Access::make<SupervisorWatch>(std::make_unique<detail::DirectoryWatching>(
      client_, client_->directory().watch_supervisor(
                   id_, [on_change = std::move(on_change)](const Result<SupervisorInfo>& info) {
                     if (info.ok()) on_change(*info);
                   })));
}

Status Supervisor::end(const std::string& reason, Duration timeout) const {
  if (!client_) return no_supervisor();
  return detail::wait_for_head<void>(
             Deadline::after(timeout), "ending a supervisor",
             [&](auto done) { client_->directory().end_supervisor(id_, reason, std::move(done)); })
      .with("supervisor", id_.brief());
}

}  // namespace troupe
