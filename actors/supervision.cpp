#include "actors/supervision.h"

#include <optional>

#include "actors/head_answer.h"

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
  TROUPE_RETURN_IF_ERROR(detail::wait_for_head<void>(
      deadline, "creating a supervisor",
      [&](auto done) { client->directory().supervise(std::move(spec), std::move(done)); }));
  return Supervisor(std::move(client), id);
}

Result<wire::SupervisorInfo> Supervisor::wait_for(
    Duration timeout, std::function<bool(const wire::SupervisorInfo&)> enough) const {
  if (!client_) return no_supervisor();
  auto promise = std::make_shared<Promise<wire::SupervisorInfo>>();
  auto future = promise->future();
  const auto watch = client_->directory().watch_supervisor(
      id_, [promise, enough = std::move(enough)](Result<wire::SupervisorInfo> info) {
        if (!info.ok() || enough(*info)) promise->set(std::move(info));
      });
  auto info = future.get(timeout);
  client_->directory().unwatch(watch);
  return info;
}

Result<wire::SupervisorInfo> Supervisor::info(Duration timeout) const {
  auto info = wait_for(timeout, [](const wire::SupervisorInfo&) { return true; });
  if (info.status().code() == Code::kDeadlineExceeded) {
    return Status(Code::kDeadlineExceeded, "a supervisor: the head has not answered in time");
  }
  return info;
}

Status Supervisor::wait_for_end(Duration timeout) const {
  auto info = wait_for(timeout, [](const wire::SupervisorInfo& i) {
    return i.state == wire::SupervisorState::kEnded;
  });
  if (info.status().code() == Code::kDeadlineExceeded) {
    return Status(Code::kDeadlineExceeded, "the supervisor has not ended");
  }
  TROUPE_RETURN_IF_ERROR(info.status());
  return info->why;
}

SupervisorWatch Supervisor::watch(
    std::function<void(const wire::SupervisorInfo&)> on_change) const {
  if (!client_) return {};
  return {client_,
          client_->directory().watch_supervisor(
              id_, [on_change = std::move(on_change)](const Result<wire::SupervisorInfo>& info) {
                if (info.ok()) on_change(*info);
              })};
}

Status Supervisor::end(const std::string& reason, Duration timeout) const {
  if (!client_) return no_supervisor();
  return detail::wait_for_head<void>(
      Deadline::after(timeout), "ending a supervisor",
      [&](auto done) { client_->directory().end_supervisor(id_, reason, std::move(done)); });
}

}  // namespace troupe
