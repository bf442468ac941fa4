// What the journal holds, and what it has no room for.
//
// A head that comes back reads all of it, so it is bounded: what lives counts from its creation on
// and is refused beyond the limit, what has ended is cut down to what people ask about and the
// oldest of it forgotten, texts that others wrote are cut. Nothing that lives is dropped for room.

#include "scheduler/control/journal_room.h"

namespace troupe::scheduler {
namespace {

// What is kept of a living group, supervisor or job besides what created it and its names: where it
// runs, whose it is, and why it was last restarted.
constexpr std::uint64_t kChangesBytes = 1536;
// What an actor that is about to be created gets from the head: its namespace, its owner's name.
constexpr std::uint64_t kNewActorBytes = 2 * kOwnerBytes;
// What it may grow by later: restarts (64), why it was last restarted, where it runs.
static_assert(64 * 10 + kLivingTextBytes * 9 / 8 + 256 <= limits::kActorChangesBytesMax);
// There is room again for more than one.
constexpr double kFullNoMore = 0.9;

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::uint64_t JournalRoom::kept_by(const wire::ActorSpec& spec) {
  wire::ActorInfo info;
  info.type = spec.type;
  info.name = spec.name;
  info.namespace_name = spec.namespace_name;
  info.resources = spec.resources;
  return journal_bytes(spec) + journal_bytes(info) + kNewActorBytes;
}

void JournalRoom::recount(ActorRecord& actor) {
  const std::uint64_t bytes = actor.dead()
                                  ? 0
                                  : journal_bytes(actor.spec) + journal_bytes(actor.info) +
                                        sizeof(std::int64_t) * actor.restarts_unix_us.size();
  kept_bytes_ += bytes;
  give_back(std::exchange(actor.kept_bytes, bytes));
}

std::uint64_t JournalRoom::kept_by(const wire::PlacementGroupSpec& spec) {
  wire::PlacementGroupInfo info;
  info.name = spec.name;
  for (const wire::BundleSpec& bundle : spec.bundles) {
    info.bundles.push_back({bundle.resources, {}, bundle.label_selector, {}});
  }
  return journal_bytes(spec) + journal_bytes(info) + kChangesBytes;
}

std::uint64_t JournalRoom::kept_by(const wire::SupervisorSpec& spec) {
  wire::SupervisorInfo info;
  info.name = spec.name;
  return journal_bytes(spec) + journal_bytes(info) + kChangesBytes;
}

std::uint64_t JournalRoom::kept_by(const wire::JobInfo& job) {
  wire::JobInfo info;
  info.name = job.name;
  info.command = job.command;
  return journal_bytes(info) + kChangesBytes;
}

// Of an actor that is dead: what people see of it, and what others know it by.
wire::ActorSpec JournalRoom::remembered(const wire::ActorSpec& spec) {
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
Status JournalRoom::check_room(std::uint64_t bytes) {
  if (bytes <= context_.config().kept_bytes_max &&
      kept_bytes_ <= context_.config().kept_bytes_max - bytes)
    return {};
  if (!std::exchange(full_, true)) {
    context_.log("journal_full", {},
                 "the head keeps {:.1f} MiB of {} living actors, "
                 "{} placement groups, {} "
                 "supervisors and {} jobs, and its limit is {:.1f} "
                 "MiB: what would be more "
                 "is refused until some have ended",
                 mib(kept_bytes_), living_.actors, living_.groups, living_.supervisors,
                 living_.jobs, mib(context_.config().kept_bytes_max));
  }
  return error(Code::kResourceExhausted,
               "the head keeps {:.1f} MiB of living actors, placement groups, "
               "supervisors and jobs; "
               "its limit is {:.1f} MiB, and this needs {:.1f} MiB: end what "
               "is not needed any more, "
               "or pass what is large in a call instead of to the constructor",
               mib(kept_bytes_), mib(context_.config().kept_bytes_max), mib(bytes));
}

void JournalRoom::give_back(std::uint64_t bytes) {
  kept_bytes_ -= bytes;
  if (static_cast<double>(kept_bytes_) <=
      kFullNoMore * static_cast<double>(context_.config().kept_bytes_max)) {
    full_ = false;
  }
}

}  // namespace troupe::scheduler
