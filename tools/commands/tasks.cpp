#include "tools/commands/tasks.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/tasks/task_worker.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

// The workers of one driver or actor that hold the same resources.
struct Workers {
  std::size_t running = 0;
  std::size_t waiting = 0;
  std::set<std::string> nodes;
  std::string why;  // one that waits does
};

Status list_tasks(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe tasks"));
  const auto actors = TROUPE_TRY(cluster->head->actors(false, cluster->deadline));
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  std::map<std::pair<std::string, std::string>, Workers> by_owner;
  for (const auto& actor : actors) {
    if (actor.type != detail::kTaskWorkerType) continue;
    const std::string resources = scheduler::format_resources(actor.resources);
    Workers& workers = by_owner[{actor.owner_name, resources}];
    if (actor.state == wire::ActorState::kAlive) {
      ++workers.running;
      workers.nodes.insert(names.of(actor.node_id));
    } else {
      ++workers.waiting;
      if (!actor.pending_why.empty()) workers.why = actor.pending_why;
    }
  }
  if (options.json) {
    json::Array list;
    for (const auto& [owner, workers] : by_owner) {
      json::Array nodes;
      for (const auto& node : workers.nodes) nodes.push_back(json::Value(node));
      list.push_back(json::Object{{"owner", owner.first},
                                  {"resources", owner.second},
                                  {"workers", workers.running},
                                  {"waiting", workers.waiting},
                                  {"nodes", std::move(nodes)},
                                  {"why", workers.why}});
    }
    context.out << json::write(json::Object{{"tasks", std::move(list)}}) << "\n";
    return {};
  }
  if (by_owner.empty()) {
    context.out << "No workers run tasks now.\n";
    return {};
  }
  Table table({"OF", "RESOURCES OF EACH", "WORKERS", "WAITING", "NODES", "WHY"});
  for (const auto& [owner, workers] : by_owner) {
    std::string nodes;
    for (const auto& node : workers.nodes) nodes += (nodes.empty() ? "" : ", ") + node;
    table.add({owner.first, owner.second, std::to_string(workers.running),
               std::to_string(workers.waiting), nodes, workers.why});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_tasks_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "tasks",
                  "Lists the workers that run tasks, and those that wait for room.");
  declare_cluster_options(command, *options);
  command.example("troupe tasks").example("troupe tasks --json").run([options, &context] {
    return list_tasks(context, *options);
  });
}

}  // namespace troupe::tools
