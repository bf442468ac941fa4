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

// The tasks of one driver or actor whose workers hold the same. Workers are counted as the head
// knows them; the rest is what their owner has said of itself.
struct Tasks {
  std::string owner;
  std::size_t workers = 0;
  std::size_t awaited = 0;
  std::set<std::string> nodes;
  std::string why;  // an awaited one waits
  wire::TaskWork told;
};

using Key = std::pair<std::string, std::string>;  // whose, and the resources

std::string key_of_owner(const ActorId& actor, const JobId& job, const std::string& name) {
  return actor.empty() ? job.to_string() + name : actor.to_string();
}

void add(wire::TaskWork& sum, const wire::TaskWork& one) {
  sum.waiting += one.waiting;
  sum.running += one.running;
  sum.done += one.done;
  sum.failed += one.failed;
  sum.again += one.again;
  if (sum.why.empty()) sum.why = one.why;
}

Result<std::map<Key, Tasks>> read_tasks(ClusterConnection& cluster) {
  const auto actors = TROUPE_TRY(cluster.head->actors(false, cluster.deadline));
  const auto clients = TROUPE_TRY(cluster.head->work(cluster.deadline));
  const NodeNames names(TROUPE_TRY(cluster.head->nodes(cluster.deadline)));
  std::map<Key, Tasks> all;
  for (const auto& client : clients) {
    const std::string owner = key_of_owner(client.work.actor_id, client.job_id, client.name);
    for (const wire::TaskWork& told : client.work.tasks) {
      Tasks& tasks = all[{owner, scheduler::format_resources(told.resources)}];
      tasks.owner = client.name;
      add(tasks.told, told);
    }
  }
  for (const auto& actor : actors) {
    if (actor.type != detail::kTaskWorkerType) continue;
    const std::string owner = key_of_owner(actor.owner_actor, actor.job_id, actor.owner_name);
    Tasks& tasks = all[{owner, scheduler::format_resources(actor.resources)}];
    tasks.owner = actor.owner_name;
    if (actor.state == wire::ActorState::kAlive) {
      ++tasks.workers;
      tasks.nodes.insert(names.of(actor.node_id));
    } else {
      ++tasks.awaited;
      if (!actor.pending_why.empty()) tasks.why = actor.pending_why;
    }
  }
  return all;
}

Status list_tasks(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe tasks"));
  const auto all = TROUPE_TRY(read_tasks(*cluster));
  if (options.json) {
    json::Array list;
    for (const auto& [key, tasks] : all) {
      json::Array nodes;
      for (const auto& node : tasks.nodes) nodes.push_back(json::Value(node));
      list.push_back(json::Object{{"owner", tasks.owner},
                                  {"resources", key.second},
                                  {"waiting", tasks.told.waiting},
                                  {"running", tasks.told.running},
                                  {"done", tasks.told.done},
                                  {"failed", tasks.told.failed},
                                  {"run_again", tasks.told.again},
                                  {"workers", tasks.workers},
                                  {"workers_awaited", tasks.awaited},
                                  {"nodes", std::move(nodes)},
                                  {"why", tasks.why.empty() ? tasks.told.why : tasks.why}});
    }
    context.out << json::write(json::Object{{"tasks", std::move(list)}}) << "\n";
    return {};
  }
  if (all.empty()) {
    context.out << "Nobody has submitted tasks.\n";
    return {};
  }
  Table table({"OF", "RESOURCES OF EACH", "WAITING", "RUNNING", "DONE", "FAILED", "RUN AGAIN",
               "WORKERS", "AWAITED", "NODES", "WHY"});
  for (const auto& [key, tasks] : all) {
    std::string nodes;
    for (const auto& node : tasks.nodes) nodes += (nodes.empty() ? "" : ", ") + node;
    table.add({tasks.owner, key.second, std::to_string(tasks.told.waiting),
               std::to_string(tasks.told.running), std::to_string(tasks.told.done),
               std::to_string(tasks.told.failed), std::to_string(tasks.told.again),
               std::to_string(tasks.workers), std::to_string(tasks.awaited), nodes,
               tasks.why.empty() ? tasks.told.why : tasks.why});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_tasks_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "tasks",
                  "Lists tasks by who submitted them, and the workers that run them.");
  declare_cluster_options(command, *options);
  command.example("troupe tasks")
      .example("troupe tasks --json")
      .note(
          "WAITING, RUNNING and what follows is what each driver or actor says of itself, up to a "
          "second late;\nDONE are all that have ended, with those that FAILED or were cancelled, "
          "and RUN AGAIN counts those whose\nworker died. AWAITED are workers that the head has "
          "no room for yet: WHY.")
      .run([options, &context] { return list_tasks(context, *options); });
}

}  // namespace troupe::tools
