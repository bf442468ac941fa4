#include "tools/commands/groups.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kBundlesShown = 4;

// "0: CPU 2 on n1, 1: CPU 2 on n2, and 6 more"
std::string bundles_of(const wire::PlacementGroupInfo& group, const NodeNames& names) {
  const bool placed = group.state == wire::PlacementGroupState::kCreated ||
                      group.state == wire::PlacementGroupState::kPreparing;
  std::string text;
  for (std::size_t i = 0; i < group.bundles.size() && i < kBundlesShown; ++i) {
    const wire::BundleInfo& bundle = group.bundles[i];
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", i,
                        scheduler::format_resources(bundle.resources));
    if (placed) text += " on " + names.of(bundle.node_id);
  }
  if (group.bundles.size() > kBundlesShown) {
    text += fmt::format(", and {} more", group.bundles.size() - kBundlesShown);
  }
  return text;
}

// A group or pool of actors, as its owner has told of it, with how its members are.
struct Members {
  const wire::ClientWork* owner = nullptr;
  const wire::GroupWork* group = nullptr;
  std::map<wire::ActorState, std::size_t> by_state;
  std::set<std::string> nodes;

  // "7 alive, 1 restarting"
  std::string states() const {
    std::string text;
    for (const auto& [state, count] : by_state) {
      text +=
          fmt::format("{}{} {}", text.empty() ? "" : ", ", count, wire::actor_state_name(state));
    }
    return text;
  }
};

Result<std::vector<Members>> find_members(ClusterConnection& cluster,
                                          const std::vector<wire::ClientWork>& clients,
                                          const NodeNames& names) {
  std::vector<Members> all;
  for (const auto& client : clients) {
    for (const auto& group : client.work.groups) {
      all.push_back({.owner = &client, .group = &group, .by_state = {}, .nodes = {}});
    }
  }
  if (all.empty()) return all;
  const auto list = TROUPE_TRY(cluster.head->actors(true, cluster.deadline));
  std::map<ActorId, const wire::ActorInfo*> actors;
  for (const auto& actor : list) actors.emplace(actor.actor_id, &actor);
  for (Members& members : all) {
    for (const ActorId& id : members.group->actors) {
      const auto found = actors.find(id);
      // The head forgets dead actors after a while.
      const auto state = found == actors.end() ? wire::ActorState::kDead : found->second->state;
      ++members.by_state[state];
      if (state == wire::ActorState::kAlive) {
        members.nodes.insert(names.of(found->second->node_id));
      }
    }
  }
  return all;
}

json::Object members_to_json(const Members& members) {
  json::Object states;
  for (const auto& [state, count] : members.by_state) states[wire::actor_state_name(state)] = count;
  json::Array nodes;
  for (const auto& node : members.nodes) nodes.push_back(json::Value(node));
  const wire::GroupWork& group = *members.group;
  json::Object object{{"owner", members.owner->name},
                      {"kind", group.is_pool ? "pool" : "group"},
                      {"type", group.type},
                      {"members", group.members},
                      {"processes", std::move(states)},
                      {"nodes", std::move(nodes)}};
  if (group.is_pool) {
    object["members_max"] = group.members_max;
    object["calls_waiting"] = group.calls_waiting;
    object["calls_under_way"] = group.calls_under_way;
  } else {
    object["axes"] = group.axes;
  }
  if (!group.why.empty()) object["why"] = group.why;
  return object;
}

void print_members(const std::vector<Members>& all, std::ostream& out) {
  Table table(
      {"OF", "KIND", "CLASS", "MEMBERS", "AXES", "PROCESSES", "CALLS", "WAITING", "NODES", "WHY"});
  for (const Members& members : all) {
    const wire::GroupWork& group = *members.group;
    std::string nodes;
    for (const auto& node : members.nodes) nodes += (nodes.empty() ? "" : ", ") + node;
    table.add({members.owner->name, group.is_pool ? "pool" : "group", group.type,
               group.is_pool ? fmt::format("{}/{}", group.members, group.members_max)
                             : std::to_string(group.members),
               group.axes, members.states(),
               group.is_pool ? std::to_string(group.calls_under_way) : "",
               group.is_pool ? std::to_string(group.calls_waiting) : "", nodes, group.why});
  }
  table.print(out);
}

Status list_groups(CommandContext& context, const ClusterOptions& options, bool all) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe groups"));
  const auto groups = TROUPE_TRY(cluster->head->groups(all, cluster->deadline));
  const auto clients = TROUPE_TRY(cluster->head->work(cluster->deadline));
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  const auto actor_groups = TROUPE_TRY(find_members(*cluster, clients, names));
  if (options.json) {
    json::Array list;
    for (const auto& group : groups) list.push_back(to_json(group));
    json::Array members;
    for (const auto& group : actor_groups) members.push_back(members_to_json(group));
    context.out << json::write(json::Object{{"groups", std::move(list)},
                                            {"actor_groups", std::move(members)}})
                << "\n";
    return {};
  }
  if (groups.empty()) {
    context.out << (all ? "No placement groups.\n"
                        : "No placement groups; --all shows those that were removed, too.\n");
  }
  Table table({"NAME", "ID", "STATE", "STRATEGY", "PRIORITY", "BUNDLES", "WHY"});
  for (const auto& group : groups) {
    table.add({group.name, group.group_id.brief(),
               std::string(wire::placement_group_state_name(group.state)),
               std::string(wire::placement_strategy_name(group.strategy)),
               std::to_string(group.priority), bundles_of(group, names), group.why});
  }
  if (!table.empty()) table.print(context.out);
  if (!actor_groups.empty()) {
    context.out << "\nGroups and pools of actors:\n";
    print_members(actor_groups, context.out);
  }
  return {};
}

}  // namespace

void add_groups_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto all = std::make_shared<bool>(false);
  Command command(app, context, "groups",
                  "Lists placement groups with their bundles, and groups and pools of actors.");
  declare_cluster_options(command, *options);
  command.flag("--all", *all, "list those that were removed, too")
      .example("troupe groups")
      .example("troupe groups --all --json")
      .note(
          "Groups and pools of actors are what drivers and actors say of themselves, up to a "
          "second "
          "late: those that\nthey made and still have. PROCESSES are their members' as the head "
          "knows them; CALLS are under way at a\npool's members, WAITING are calls for which none "
          "is free.")
      .run([options, all, &context] { return list_groups(context, *options, *all); });
}

}  // namespace troupe::tools
