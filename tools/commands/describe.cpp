#include "tools/commands/describe.h"

#include "runtime/base/clock.h"
#include "scheduler/client/cluster_record.h"
#include "scheduler/control/event_kinds.h"
#include "scheduler/policy/labels.h"
#include "scheduler/policy/resources.h"

namespace troupe::tools {
namespace {

std::string id_or_empty(const auto& id) { return id.empty() ? std::string() : id.to_string(); }

}  // namespace

json::Object to_json(const wire::Resources& resources) {
  json::Object object;
  for (const auto& [name, amount] : resources) {
    if (amount % wire::kResourceUnit == 0) {
      object[name] = amount / wire::kResourceUnit;
    } else {
      object[name] = static_cast<double>(amount) / static_cast<double>(wire::kResourceUnit);
    }
  }
  return object;
}

json::Object to_json(const wire::NodeInfo& node) {
  json::Object labels;
  for (const auto& [key, value] : node.labels) labels[key] = value;
  return {{"node_id", node.node_id.to_string()},
          {"name", node.name},
          {"state", wire::node_state_name(node.state)},
          {"address", node.endpoint.host},
          {"port", node.endpoint.port},
          {"pid", node.pid},
          {"total", to_json(node.total)},
          {"available", to_json(node.available)},
          {"labels", std::move(labels)},
          {"joined", format_unix_time_us(node.joined_unix_us)}};
}

json::Object to_json(const wire::GpuStatus& gpu) {
  const wire::GpuDevice& device = gpu.device;
  json::Array links, holders;
  for (const wire::GpuLink& link : device.links) {
    links.push_back(json::Object{{"uuid", link.peer},
                                 {"path", wire::gpu_path_name(link.path)},
                                 {"nvlinks", static_cast<std::int64_t>(link.nvlinks)},
                                 {"peer_access", link.peer_access}});
  }
  for (const wire::GpuHolder& holder : gpu.holders) {
    holders.push_back(json::Object{
        {"actor_id", holder.actor_id.to_string()},
        {"name", holder.label},
        {"share", static_cast<double>(holder.share) / static_cast<double>(wire::kResourceUnit)}});
  }
  json::Object object{{"index", static_cast<std::int64_t>(device.index)},
                      {"uuid", device.uuid},
                      {"name", device.name},
                      {"pci_bus_id", device.pci_bus_id},
                      {"state", wire::gpu_state_name(gpu.state)},
                      {"trouble", gpu.trouble},
                      {"memory_used", static_cast<std::int64_t>(gpu.memory_used_bytes)},
                      {"memory_total", static_cast<std::int64_t>(device.memory_total_bytes)},
                      {"numa_node", device.numa_node},
                      {"minor_number", device.minor_number},
                      {"parent_uuid", device.parent_uuid},
                      {"links", std::move(links)},
                      {"held_by", std::move(holders)}};
  if (device.compute_major >= 0) {
    object["compute_capability"] = fmt::format("{}.{}", device.compute_major, device.compute_minor);
  }
  return object;
}

json::Object to_json(const wire::ActorInfo& actor) {
  json::Object object{{"actor_id", actor.actor_id.to_string()},
                      {"name", actor.name},
                      {"type", actor.type},
                      {"state", wire::actor_state_name(actor.state)},
                      {"generation", actor.generation},
                      {"restarts", actor.restarts},
                      {"node_id", id_or_empty(actor.node_id)},
                      {"pid", actor.pid},
                      {"rank", actor.rank},
                      {"job_id", id_or_empty(actor.job_id)},
                      {"resources", to_json(actor.resources)},
                      {"namespace", actor.namespace_name},
                      {"owner", actor.owner_name},
                      {"owner_actor", id_or_empty(actor.owner_actor)},
                      {"detached", actor.detached},
                      {"supervisor", id_or_empty(actor.supervisor)},
                      {"saved_state_node", id_or_empty(actor.saved_state_node)},
                      {"state_lost_generation", actor.state_lost_generation}};
  if (actor.light_count > 0) object["light_count"] = actor.light_count;
  if (!actor.placement_group.empty()) {
    object["placement_group"] = actor.placement_group.to_string();
    object["bundle_index"] = actor.bundle_index;
  }
  if (actor.awaits_nodes) object["awaits_nodes"] = true;
  if (!actor.pending_why.empty()) object["pending_why"] = actor.pending_why;
  if (!actor.death.ok()) {
    object["death"] =
        json::Object{{"code", code_name(actor.death.code())}, {"message", actor.death.to_string()}};
  }
  return object;
}

json::Object to_json(const wire::EventRecord& event) {
  return {{"sequence", event.sequence},
          {"time", format_unix_time_us(event.unix_time_us)},
          {"severity", scheduler::severity_name(scheduler::severity_of(event.kind))},
          {"event", event.kind},
          {"node_id", id_or_empty(event.node_id)},
          {"actor_id", id_or_empty(event.actor_id)},
          {"generation", event.generation},
          {"text", event.text}};
}

json::Object to_json(const wire::PlacementGroupInfo& group) {
  const bool created = group.state == wire::PlacementGroupState::kCreated;
  json::Array bundles;
  for (const wire::BundleInfo& bundle : group.bundles) {
    json::Object one{{"resources", to_json(bundle.resources)},
                     {"node_id", id_or_empty(bundle.node_id)}};
    if (created) one["available"] = to_json(bundle.available);
    if (!bundle.label_selector.empty()) {
      one["label_selector"] = scheduler::format_selector(bundle.label_selector);
    }
    bundles.push_back(std::move(one));
  }
  json::Object object{{"group_id", group.group_id.to_string()},
                      {"name", group.name},
                      {"strategy", wire::placement_strategy_name(group.strategy)},
                      {"state", wire::placement_group_state_name(group.state)},
                      {"generation", group.generation},
                      {"job_id", id_or_empty(group.job_id)},
                      {"priority", group.priority},
                      {"bundles", std::move(bundles)}};
  if (!group.why.empty()) object["why"] = group.why;
  return object;
}

json::Object to_json(const wire::JobInfo& job) {
  json::Object object{{"job_id", job.job_id.to_string()},
                      {"name", job.name},
                      {"state", wire::job_state_name(job.state)},
                      {"command", job.command},
                      {"priority", job.priority},
                      {"node_id", id_or_empty(job.node_id)},
                      {"driver", id_or_empty(job.driver)},
                      {"stopping", job.stopping},
                      {"actors_alive", job.actors_alive}};
  const auto time = [&](const char* key, std::int64_t unix_us) {
    if (unix_us != 0) object[key] = format_unix_time_us(unix_us);
  };
  time("submitted", job.submitted_unix_us);
  time("started", job.started_unix_us);
  time("ended", job.ended_unix_us);
  if (job.exit && job.exit->signal != 0) object["signal"] = job.exit->signal;
  if (job.exit && job.exit->signal == 0) object["exit_code"] = job.exit->exit_code;
  if (!job.why.empty()) object["why"] = job.why;
  return object;
}

json::Object to_json(const wire::SupervisorInfo& supervisor) {
  json::Array members;
  for (const wire::SupervisorMember& member : supervisor.members) {
    members.push_back(member.actor.empty()
                          ? json::Object{{"supervisor_id", member.supervisor.to_string()}}
                          : json::Object{{"actor_id", member.actor.to_string()}});
  }
  json::Object object{{"supervisor_id", supervisor.supervisor_id.to_string()},
                      {"name", supervisor.name},
                      {"strategy", wire::restart_strategy_name(supervisor.strategy)},
                      {"state", wire::supervisor_state_name(supervisor.state)},
                      {"restarts", supervisor.restarts},
                      {"parent", id_or_empty(supervisor.parent)},
                      {"job_id", id_or_empty(supervisor.job_id)},
                      {"owner", supervisor.owner_name},
                      {"members", std::move(members)}};
  if (!supervisor.why.ok()) {
    object["why"] = json::Object{{"code", code_name(supervisor.why.code())},
                                 {"message", supervisor.why.to_string()}};
  }
  return object;
}

std::string namespace_label(const std::string& namespace_name) {
  constexpr std::string_view kOfJob = "job-";
  constexpr std::size_t kDigits = 32;
  constexpr std::size_t kDigitsShown = 8;
  const bool of_job =
      namespace_name.starts_with(kOfJob) && namespace_name.size() == kOfJob.size() + kDigits;
  return of_job ? namespace_name.substr(0, kOfJob.size() + kDigitsShown) : namespace_name;
}

std::string supervisor_name(const wire::ActorInfo& actor,
                            const std::vector<wire::SupervisorInfo>& supervisors) {
  if (actor.supervisor.empty()) return {};
  for (const auto& supervisor : supervisors) {
    if (supervisor.supervisor_id == actor.supervisor && !supervisor.name.empty()) {
      return supervisor.name;
    }
  }
  return actor.supervisor.brief();
}

std::string bundle_name(const wire::ActorInfo& actor,
                        const std::vector<wire::PlacementGroupInfo>& groups) {
  if (actor.placement_group.empty()) return {};
  std::string name = actor.placement_group.brief();
  for (const auto& group : groups) {
    if (group.group_id == actor.placement_group && !group.name.empty()) name = group.name;
  }
  return actor.bundle_index < 0 ? name : fmt::format("{}[{}]", name, actor.bundle_index);
}

wire::Resources in_use(const wire::NodeInfo& node) {
  wire::Resources used = node.total;
  for (auto& [name, amount] : used) amount -= scheduler::amount_of(node.available, name);
  return used;
}

std::string type_name(const wire::ActorInfo& actor) {
  if (actor.light_count == 0 || !actor.type.ends_with("[]")) return actor.type;
  return fmt::format("{}{}]", actor.type.substr(0, actor.type.size() - 1), actor.light_count);
}

bool is_meant(const std::string& word, const std::string& name, const std::string& id,
              std::size_t prefix_min) {
  return word == name || (word.size() >= prefix_min && id.starts_with(word));
}

std::string display_name(const wire::ActorInfo& actor) {
  return actor.name.empty() ? actor.type : actor.name;
}

NodeNames::NodeNames(const std::vector<wire::NodeInfo>& nodes) {
  for (const auto& node : nodes) names_[node.node_id] = node.name;
}

std::string NodeNames::of(const NodeId& id) const {
  if (id.empty()) return {};
  const auto found = names_.find(id);
  return found == names_.end() ? id.brief() : found->second;
}

}  // namespace troupe::tools
