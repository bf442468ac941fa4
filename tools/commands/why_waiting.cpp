#include "tools/commands/why_waiting.h"

#include <algorithm>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "scheduler/client/actor_words.h"
#include "scheduler/client/jobs.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/describe.h"
#include "tools/commands/job_end.h"
#include "tools/commands/table.h"
#include "tools/commands/work_words.h"

namespace troupe::tools {
namespace {

// The head's explanation has its parts behind semicolons: one a line.
std::string as_lines(const std::string& explanation) {
  std::string text;
  std::size_t from = 0;
  while (from < explanation.size()) {
    const std::size_t end = std::min(explanation.find("; ", from), explanation.size());
    text += fmt::format("  {}\n", printable(explanation.substr(from, end - from)));
    from = end + 2;
  }
  return text;
}

// With whom it ends, and who starts it again.
std::string bonds(const wire::ActorInfo& actor,
                  const std::vector<wire::SupervisorInfo>& supervisors) {
  std::string text;
  if (actor.detached) {
    text += "  it is detached: it ends with nobody\n";
  } else if (!actor.owner_name.empty()) {
    text += fmt::format("  it ends with its owner, {}\n", printable(actor.owner_name));
  }
  for (const auto& supervisor : supervisors) {
    if (supervisor.supervisor_id != actor.supervisor) continue;
    text += fmt::format("  supervisor {} ({}, {} restarts so far) starts it again\n",
                        printable(supervisor_name(actor, supervisors)),
                        wire::restart_strategy_name(supervisor.strategy), supervisor.restarts);
  }
  return text;
}

std::string tell(const wire::SupervisorInfo& supervisor,
                 const std::vector<wire::ActorInfo>& actors) {
  std::string text = fmt::format(
      "Supervisor {} ({}), {}, is {}; it has restarted members {} times",
      printable(supervisor.name.empty() ? supervisor.supervisor_id.brief() : supervisor.name),
      supervisor.supervisor_id.brief(), wire::restart_strategy_name(supervisor.strategy),
      wire::supervisor_state_name(supervisor.state), supervisor.restarts);
  if (supervisor.why.ok() && supervisor.members.empty()) return text + ".\n";
  text += ":\n";
  if (!supervisor.why.ok()) {
    const bool ended = supervisor.state == wire::SupervisorState::kEnded;
    text += fmt::format("  {}{}\n",
                        ended ? "" : "the last time: ", printable(supervisor.why.to_string()));
  }
  for (const wire::SupervisorMember& member : supervisor.members) {
    if (member.actor.empty()) {
      text += fmt::format("  supervisor {}\n", member.supervisor.brief());
      continue;
    }
    const auto actor = std::find_if(actors.begin(), actors.end(),
                                    [&](const auto& a) { return a.actor_id == member.actor; });
    if (actor == actors.end()) continue;
    text += fmt::format("  actor {} ({}) is {}\n", printable(display_name(*actor)),
                        actor->actor_id.brief(), wire::actor_state_name(actor->state));
  }
  return text;
}

std::string tell(const wire::ActorInfo& actor, const NodeNames& nodes) {
  std::string text = fmt::format("Actor {} ({}) is {}", printable(display_name(actor)),
                                 actor.actor_id.brief(), wire::actor_state_name(actor.state));
  return text + ":\n" + as_lines(scheduler::actor_waits_for(actor, nodes.of(actor.node_id)));
}

std::string tell(const wire::PlacementGroupInfo& group, const NodeNames& nodes) {
  const std::string name =
      group.name.empty() ? group.group_id.brief()
                         : fmt::format("{} ({})", printable(group.name), group.group_id.brief());
  std::string text = fmt::format("Placement group {}, {}, is {}", name,
                                 wire::placement_strategy_name(group.strategy),
                                 wire::placement_group_state_name(group.state));
  if (group.state != wire::PlacementGroupState::kCreated) {
    return text + (group.why.empty() ? ".\n" : ":\n" + as_lines(group.why));
  }
  text += ":\n";
  for (std::size_t i = 0; i < group.bundles.size(); ++i) {
    const wire::BundleInfo& bundle = group.bundles[i];
    text += fmt::format("  bundle {} on {} has {}, of which {} is free\n", i,
                        nodes.of(bundle.node_id), scheduler::format_resources(bundle.resources),
                        scheduler::format_resources(bundle.available));
  }
  return text;
}

std::string tell(const wire::JobInfo& job, const NodeNames& nodes) {
  std::string text = fmt::format("Job {} ({}) is {}", printable(job.name), job.job_id.brief(),
                                 wire::job_state_name(job.state));
  const std::string actors = count_of(job.actors_alive, "living actor");
  const std::string waits = job.stopping || job.why.empty() ? "" : as_lines(job.why);
  if (job.driver.empty()) {
    return text + fmt::format(": a driver that connected by itself, with {}.\n", actors) + waits;
  }
  if (job.state == wire::JobState::kRunning) {
    text += fmt::format(" on node {}, with {}{}.\n", nodes.of(job.node_id), actors,
                        job.stopping ? "; it was asked to stop" : "");
    return text + fmt::format("  {}\n", printable(job.command)) + waits;
  }
  text += fmt::format(":\n  {}\n", printable(job.command));
  if (job.state == wire::JobState::kPending) {
    return text + (job.why.empty() ? "  its program is being started\n" : as_lines(job.why));
  }
  std::string how = how_it_ended(job);
  while (how.ends_with('\n')) how.pop_back();
  for (std::size_t from = 0; from <= how.size();) {
    const std::size_t end = std::min(how.find('\n', from), how.size());
    text += fmt::format("  {}\n", printable(how.substr(from, end - from)));
    from = end + 1;
  }
  return text;
}

}  // namespace

Result<bool> tell_waiting(CommandContext& context, const ClusterOptions& options,
                          const std::string& target) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe why"));
  const auto actors = TROUPE_TRY(cluster->head->actors(true, cluster->deadline));
  const auto groups = TROUPE_TRY(cluster->head->groups(true, cluster->deadline));
  const auto supervisors = TROUPE_TRY(cluster->head->supervisors(true, cluster->deadline));
  std::vector<const wire::ActorInfo*> found;
  for (const auto& actor : actors) {
    if (is_meant(target, actor.name, actor.actor_id.to_string())) found.push_back(&actor);
  }
  // A living actor goes before dead ones of its name.
  const auto dead = [](const wire::ActorInfo* a) { return a->state == wire::ActorState::kDead; };
  if (found.size() > 1 && !std::all_of(found.begin(), found.end(), dead)) {
    std::erase_if(found, dead);
  }
  std::vector<const wire::PlacementGroupInfo*> found_groups;
  for (const auto& group : groups) {
    if (is_meant(target, group.name, group.group_id.to_string())) found_groups.push_back(&group);
  }
  const auto jobs = TROUPE_TRY(scheduler::list_jobs(*cluster->head, true, cluster->deadline));
  std::vector<const wire::JobInfo*> found_jobs;
  for (const auto& job : jobs) {
    if (is_meant(target, job.name, job.job_id.to_string())) found_jobs.push_back(&job);
  }
  std::vector<const wire::SupervisorInfo*> found_supervisors;
  for (const auto& supervisor : supervisors) {
    if (is_meant(target, supervisor.name, supervisor.supervisor_id.to_string())) {
      found_supervisors.push_back(&supervisor);
    }
  }
  if (found.empty() && found_groups.empty() && found_supervisors.empty() && found_jobs.empty()) {
    return false;
  }
  const auto work = TROUPE_TRY(cluster->head->work(cluster->deadline));
  if (options.json) {
    json::Array actor_list;
    for (const auto* actor : found) actor_list.push_back(to_json(*actor));
    json::Array group_list;
    for (const auto* group : found_groups) group_list.push_back(to_json(*group));
    json::Array job_list;
    for (const auto* job : found_jobs) job_list.push_back(to_json(*job));
    json::Array supervisor_list;
    for (const auto* supervisor : found_supervisors) {
      supervisor_list.push_back(to_json(*supervisor));
    }
    context.out << json::write(json::Object{{"actors", std::move(actor_list)},
                                            {"groups", std::move(group_list)},
                                            {"supervisors", std::move(supervisor_list)},
                                            {"jobs", std::move(job_list)}})
                << "\n";
    return true;
  }
  const NodeNames nodes(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  for (const auto* actor : found) {
    context.out << tell(*actor, nodes);
    if (actor->state != wire::ActorState::kDead) context.out << bonds(*actor, supervisors);
    for (const auto& client : work) {
      if (client.work.actor_id == actor->actor_id) context.out << waits_of_work(client);
    }
  }
  for (const auto* supervisor : found_supervisors) context.out << tell(*supervisor, actors);
  for (const auto* group : found_groups) context.out << tell(*group, nodes);
  for (const auto* job : found_jobs) {
    context.out << tell(*job, nodes);
    // (That of its actors is told by them.)
    for (const auto& client : work) {
      const bool drivers = client.job_id == job->job_id && client.work.actor_id.empty();
      if (drivers) context.out << waits_of_work(client);
    }
  }
  return true;
}

}  // namespace troupe::tools
