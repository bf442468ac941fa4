// What the journal holds, and what it has no room for.
//
// A head that comes back reads all of it, so it is bounded: what lives counts from its creation on
// and is refused beyond the limit, what has ended is cut down to what people ask about and the
// oldest of it forgotten, texts that others wrote are cut. Nothing that lives is dropped for room.

#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

// What is kept of a living thing besides what created it and its names: where it runs, whose it is,
// its restarts (64), and why it was last restarted. kLivingTextBytes and kOwnerBytes are within.
constexpr std::uint64_t kChangesBytes = 1536;
// There is room again for more than one.
constexpr double kFullNoMore = 0.9;

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::uint64_t HeadState::kept_by(const wire::ActorSpec& spec) {
  wire::ActorInfo info;
  info.type = spec.type;
  info.name = spec.name;
  info.namespace_name = spec.namespace_name;
  info.resources = spec.resources;
  return journal_bytes(spec) + journal_bytes(info) + kChangesBytes;
}

std::uint64_t HeadState::kept_by(const wire::PlacementGroupSpec& spec) {
  wire::PlacementGroupInfo info;
  info.name = spec.name;
  for (const wire::BundleSpec& bundle : spec.bundles) {
    info.bundles.push_back({bundle.resources, {}, bundle.label_selector, {}});
  }
  return journal_bytes(spec) + journal_bytes(info) + kChangesBytes;
}

std::uint64_t HeadState::kept_by(const wire::SupervisorSpec& spec) {
  wire::SupervisorInfo info;
  info.name = spec.name;
  return journal_bytes(spec) + journal_bytes(info) + kChangesBytes;
}

std::uint64_t HeadState::kept_by(const wire::JobInfo& job) {
  wire::JobInfo info;
  info.name = job.name;
  info.command = job.command;
  return journal_bytes(info) + kChangesBytes;
}

// Of an actor that is dead: what people see of it, and what others know it by.
wire::ActorSpec HeadState::remembered(const wire::ActorSpec& spec) {
  wire::ActorSpec rest;
  rest.actor_id = spec.actor_id;
  rest.type = spec.type;
  rest.name = spec.name;
  rest.namespace_name = spec.namespace_name;
  rest.rank = spec.rank;
  rest.restart = spec.restart;
  rest.job_id = spec.job_id;
  rest.owner = spec.owner;
  rest.owner_actor = spec.owner_actor;
  rest.owner_generation = spec.owner_generation;
  rest.detached = spec.detached;
  rest.placement_group = spec.placement_group;
  rest.supervisor = spec.supervisor;
  rest.supervisor_order = spec.supervisor_order;
  rest.priority = spec.priority;
  rest.light_count = spec.light_count;
  if (spec.is_program()) rest.program.argv = {spec.program.argv.front()};
  return rest;
}

// Whether so much more can be kept.
Status HeadState::check_room(std::uint64_t bytes) {
  if (bytes <= config_.kept_bytes_max && kept_bytes_ <= config_.kept_bytes_max - bytes) return {};
  if (!std::exchange(full_, true)) {
    log_event(
        "journal_full", {}, {}, 0,
        fmt::format("the head keeps {:.1f} MiB of {} living actors, {} placement groups, {} "
                    "supervisors and {} jobs, and its limit is {:.1f} MiB: what would be more "
                    "is refused until some have ended",
                    mib(kept_bytes_), living_count_, living_groups_, living_supervisors_,
                    jobs_.size() - ended_jobs_.size(), mib(config_.kept_bytes_max)));
  }
  return error(
      Code::kResourceExhausted,
      "the head keeps {:.1f} MiB of living actors, placement groups, supervisors and jobs; "
      "its limit is {:.1f} MiB, and this needs {:.1f} MiB: end what is not needed any more, "
      "or pass what is large in a call instead of to the constructor",
      mib(kept_bytes_), mib(config_.kept_bytes_max), mib(bytes));
}

void HeadState::let_go(std::uint64_t bytes) {
  kept_bytes_ -= bytes;
  if (static_cast<double>(kept_bytes_) <=
      kFullNoMore * static_cast<double>(config_.kept_bytes_max)) {
    full_ = false;
  }
}

void HeadState::remember(const ActorRecord& actor) {
  dead_actors_.add(actor.spec.actor_id, journal_bytes(actor.spec) + journal_bytes(actor.info));
}
void HeadState::remember(const GroupRecord& group) {
  removed_groups_.add(group.spec.group_id, journal_bytes(group.spec) + journal_bytes(group.info));
}
void HeadState::remember(const SupervisorRecord& supervisor) {
  ended_supervisors_.add(supervisor.spec.supervisor_id,
                         journal_bytes(supervisor.spec) + journal_bytes(supervisor.info));
}
void HeadState::remember(const JobRecord& job) {
  ended_jobs_.add(job.info.job_id, journal_bytes(job.info));
}

void HeadState::remember(wire::EventRecord event) {
  event_bytes_ += journal_bytes(event);
  events_.push_back(std::move(event));
  while (events_.size() > config_.events_max || event_bytes_ > config_.event_bytes_max) {
    event_bytes_ -= journal_bytes(events_.front());
    events_.pop_front();
  }
}

std::optional<std::string> HeadState::broken_room() const {
  std::uint64_t kept = 0;
  for (const auto& [id, actor] : actors_) kept += actor.dead() ? 0 : kept_by(actor.spec);
  for (const auto& [id, group] : groups_) kept += group.removed() ? 0 : kept_by(group.spec);
  for (const auto& [id, supervisor] : supervisors_) {
    kept += supervisor.ended() ? 0 : kept_by(supervisor.spec);
  }
  for (const auto& [id, job] : jobs_) kept += job.info.ended() ? 0 : kept_by(job.info);
  if (kept == kept_bytes_) return std::nullopt;
  return fmt::format("what is kept has {} bytes and was counted as {}", kept, kept_bytes_);
}

}  // namespace troupe::scheduler
