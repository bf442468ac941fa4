#include "scheduler/control/supervision.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {

void Supervision::end_all(const std::vector<SupervisorId>& supervisors,
                          const std::vector<ActorId>& actors, const std::vector<GroupId>& groups,
                          const std::string& reason) {
  end_all(supervisors, reason);
  actors_.end_all(actors, reason);
  groups_.remove_all(groups, reason);
}

void Supervision::client_gone(const ClientRecord& client) {
  const auto its_own = [&](const auto& spec) {
    return !spec.detached && spec.owner == client.client_id && spec.owner_actor.empty();
  };
  const auto actors = actors_.ids_where(
      [&](const ActorRecord& actor) { return !actor.dead() && its_own(actor.spec); });
  const auto groups = groups_.ids_where([&](const GroupRecord& group) {
    return !group.removed() && !group.spec.detached && group.spec.owner == client.client_id;
  });
  const auto supervisors = supervisors_.ids_where([&](const SupervisorRecord& supervisor) {
    return !supervisor.ended() && its_own(supervisor.spec);
  });
  if (actors.empty() && groups.empty() && supervisors.empty()) return;
  const std::string who = describe(client);
  context_.log("owner_gone", {}, "{} is gone; its {} actors and {} placement groups end with it",
               who, actors.size(), groups.size());
  const std::string reason = fmt::format("its owner ({}) is gone", who);
  end_all(supervisors, actors, groups, reason);
}

void Supervision::end_job(JobId job_id, const std::string& reason) {
  const auto actors = actors_.ids_where([&](const ActorRecord& actor) {
    return !actor.dead() && actor.spec.job_id == job_id && !actors_.outlives_job(actor);
  });
  const auto groups = groups_.ids_where([&](const GroupRecord& group) {
    return !group.removed() && !group.spec.detached && group.spec.job_id == job_id;
  });
  const auto supervisors = supervisors_.ids_where([&](const SupervisorRecord& supervisor) {
    const wire::SupervisorSpec& spec = supervisor.spec;
    if (supervisor.ended() || spec.detached || spec.job_id != job_id) return false;
    const ActorRecord* owner = actors_.find(spec.owner_actor);
    return owner == nullptr || !actors_.outlives_job(*owner);
  });
  end_all(supervisors, actors, groups, reason);
}

void Supervision::end_owned() {
  while (const auto ended = actors_.take_ended_owner()) {
    const auto [id, generation] = *ended;
    const auto ends = [id = id, generation = generation](const auto& spec) {
      return !spec.detached && spec.owner_actor == id &&
             (generation == 0 || spec.owner_generation == generation);
    };
    std::vector<ActorId> actors;
    for (const ActorId& child : actors_.owned_by(id)) {
      const ActorRecord& actor = actors_.at(child);
      if (ends(actor.spec) && !actor.ending()) actors.push_back(child);
    }
    const auto supervisors = supervisors_.ids_where([&](const SupervisorRecord& supervisor) {
      return ends(supervisor.spec) && !supervisor.ended();
    });
    if (actors.empty() && supervisors.empty()) continue;
    const ActorRecord& owner = actors_.at(id);
    const char* how = generation == 0 ? "is gone" : "has lost its process";
    const std::string reason = fmt::format("its owner ({}) {}", describe(owner), how);
    context_.log("owner_gone", {{}, id, owner.info.generation}, "{} {}; its {} actors end with it",
                 describe(owner), how, actors.size());
    end_all(supervisors, actors, {}, reason);
  }
}

void Supervision::settle() {
  while (const JobRecord* job = jobs_.settle()) {
    end_job(job->id(), fmt::format("its {} has ended ({})", describe(*job),
                                   wire::job_state_name(job->info.state)));
  }
  end_owned();
}

void Supervision::resume() {
  const auto homeless = actors_.ids_where([this](const ActorRecord& actor) {
    const GroupRecord* group = groups_.find(actor.spec.placement_group);
    return !actor.dead() && actor.in_group() && (group == nullptr || group->removed());
  });
  for (const ActorId& id : homeless) {
    const ActorRecord& actor = actors_.at(id);
    if (!groups_.contains(actor.spec.placement_group)) actors_.leave_group(actor);
  }
  resume_supervisors();
  actors_.end_all(homeless, "its placement group was removed");
  resume_jobs();
  const auto orphans = actors_.ids_where([this](const ActorRecord& actor) {
    const wire::ActorSpec& spec = actor.spec;
    return !actor.dead() &&
           actors_.lost_owner(spec.owner_actor, spec.owner_generation, spec.detached);
  });
  actors_.end_all(orphans, "its owner is gone");
}

void Supervision::resume_jobs() {
  for (const auto& [id, job] : jobs_.all()) {
    if (job.ended()) end_job(id, fmt::format("its {} has ended", describe(job)));
  }
  jobs_.resume();
  const auto strays = actors_.ids_where([this](const ActorRecord& actor) {
    if (actor.dead() || !is_job_program(actor.spec)) return false;
    const JobRecord* job = jobs_.find(actor.spec.job_id);
    return job == nullptr || job->ended();
  });
  actors_.end_all(strays, "its job has ended");
}

}  // namespace troupe::scheduler
