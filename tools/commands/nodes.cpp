#include "tools/commands/nodes.h"

#include <memory>

#include "runtime/base/clock.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

std::string use_of(const wire::NodeInfo& node, std::string_view name) {
  const auto total = scheduler::amount_of(node.total, name);
  if (total == 0) return {};
  return format_use(name, total - scheduler::amount_of(node.available, name), total);
}

// "ssd 1/2, licence 0/1": what is neither CPU, GPU nor memory.
std::string other_use(const wire::NodeInfo& node) {
  std::string text;
  for (const auto& [name, amount] : node.total) {
    if (name == scheduler::kCpu || name == scheduler::kGpu || name == scheduler::kMemory) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, use_of(node, name));
  }
  return text;
}

std::string labels_of(const wire::NodeInfo& node) {
  std::string text;
  for (const auto& [key, value] : node.labels) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, value);
  }
  return text;
}

// "train[0], train[1]": the bundles that are reserved on the node, or being so.
std::vector<std::string> bundles_on(const wire::NodeInfo& node,
                                    const std::vector<wire::PlacementGroupInfo>& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    if (group.state != wire::PlacementGroupState::kCreated &&
        group.state != wire::PlacementGroupState::kPreparing) {
      continue;
    }
    for (std::size_t i = 0; i < group.bundles.size(); ++i) {
      if (group.bundles[i].node_id != node.node_id) continue;
      names.push_back(
          fmt::format("{}[{}]", group.name.empty() ? group.group_id.brief() : group.name, i));
    }
  }
  return names;
}

Status list_nodes(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe nodes"));
  const auto nodes = TROUPE_TRY(cluster->head->nodes(cluster->deadline));
  const auto groups = TROUPE_TRY(cluster->head->groups(false, cluster->deadline));
  if (options.json) {
    json::Array list;
    for (const auto& node : nodes) {
      json::Object object = to_json(node);
      json::Array bundles;
      for (const auto& name : bundles_on(node, groups)) bundles.emplace_back(name);
      object["bundles"] = std::move(bundles);
      list.push_back(std::move(object));
    }
    context.out << json::write(json::Object{{"nodes", std::move(list)}}) << "\n";
    return {};
  }
  if (nodes.empty()) {
    const auto& head = cluster->place.address;
    context.out << fmt::format("No nodes. To add one: troupe worker --address {}\n",
                               format_address(head.host, head.port));
    return {};
  }
  const std::int64_t now = SystemClock().unix_time_us();
  Table table({"NAME", "ID", "STATE", "ADDRESS", "PID", "CPU USED", "GPU USED", "MEMORY USED",
               "OTHER USED", "GROUPS", "LABELS", "JOINED"});
  for (const auto& node : nodes) {
    table.add({node.name, node.node_id.brief(), std::string(wire::node_state_name(node.state)),
               format_address(node.endpoint.host, node.endpoint.port), std::to_string(node.pid),
               use_of(node, scheduler::kCpu), use_of(node, scheduler::kGpu),
               use_of(node, scheduler::kMemory), other_use(node),
               fmt::format("{}", fmt::join(bundles_on(node, groups), ", ")), labels_of(node),
               format_age(now - node.joined_unix_us) + " ago"});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_nodes_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "nodes", "Lists the nodes, what they offer and what is in use.");
  declare_cluster_options(command, *options);
  command.example("troupe nodes")
      .example("troupe nodes --address 10.0.0.2:6379 --json")
      .run([options, &context] { return list_nodes(context, *options); });
}

}  // namespace troupe::tools
