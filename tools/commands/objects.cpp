#include "tools/commands/objects.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/objects/object_service.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kStoresAskedAtOnce = 16;

using Totals = Result<wire::StoreTotals>;

std::string bytes_text(std::uint64_t bytes) {
  return scheduler::format_amount(scheduler::kMemory,
                                  static_cast<std::int64_t>(bytes) * wire::kResourceUnit);
}

json::Object store_to_json(const wire::NodeInfo& node, const Totals& totals) {
  json::Object object{{"node", node.name}, {"node_id", node.node_id.to_string()}};
  if (!totals.ok()) {
    object["error"] = totals.status().to_string();
    return object;
  }
  object["objects"] = totals->objects;
  object["memory_bytes"] = totals->memory_bytes;
  object["spare_bytes"] = totals->spare_bytes;
  object["memory_max_bytes"] = totals->memory_max_bytes;
  object["spilled_bytes"] = totals->spilled_bytes;
  object["spilled_bytes_total"] = totals->spilled_bytes_total;
  object["restored_bytes_total"] = totals->restored_bytes_total;
  object["fetched_bytes_total"] = totals->fetched_bytes_total;
  object["waiting"] = totals->waiting;
  return object;
}

Status list_objects(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe objects"));
  auto nodes = TROUPE_TRY(cluster->head->nodes(cluster->deadline));
  std::erase_if(nodes, [](const auto& node) { return node.state == wire::NodeState::kDead; });
  const std::vector<Totals> totals = ask_stores(*cluster, nodes, /*moves=*/false);
  if (options.json) {
    json::Array list;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      list.push_back(store_to_json(nodes[i], totals[i]));
    context.out << json::write(json::Object{{"stores", std::move(list)}}) << "\n";
    return {};
  }
  Table table({"NODE", "OBJECTS", "MEMORY", "SPARE", "ON DISK", "WRITTEN", "READ BACK",
               "FROM OTHERS", "WAITING"});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!totals[i].ok()) {
      context.err << fmt::format("node {} does not tell of its objects: {}\n", nodes[i].name,
                                 totals[i].status().to_string());
      continue;
    }
    const wire::StoreTotals& store = *totals[i];
    table.add({nodes[i].name, std::to_string(store.objects),
               format_use(scheduler::kMemory,
                          static_cast<std::int64_t>(store.memory_bytes) * wire::kResourceUnit,
                          static_cast<std::int64_t>(store.memory_max_bytes) * wire::kResourceUnit),
               bytes_text(store.spare_bytes), bytes_text(store.spilled_bytes),
               bytes_text(store.spilled_bytes_total), bytes_text(store.restored_bytes_total),
               bytes_text(store.fetched_bytes_total), std::to_string(store.waiting)});
  }
  table.print(context.out);
  return {};
}

}  // namespace

std::vector<Totals> ask_stores(ClusterConnection& cluster, const std::vector<wire::NodeInfo>& nodes,
                               bool moves) {
  std::vector<Totals> all;
  for (std::size_t from = 0; from < nodes.size(); from += kStoresAskedAtOnce) {
    const std::size_t to = std::min(nodes.size(), from + kStoresAskedAtOnce);
    std::vector<std::future<Totals>> answers;
    for (std::size_t i = from; i < to; ++i) {
      answers.push_back(std::async(std::launch::async, [&cluster, &node = nodes[i], moves] {
        return scheduler::read_store_totals({node.endpoint.host, node.endpoint.port, {}},
                                            cluster.place.token.token, cluster.deadline, moves);
      }));
    }
    for (auto& answer : answers) all.push_back(answer.get());
  }
  return all;
}

void add_objects_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "objects", "Lists what is in each node's object store.");
  declare_cluster_options(command, *options);
  command.example("troupe objects")
      .example("troupe objects --json")
      .note(
          "MEMORY is what is granted of what there is at most (--object-store-memory), also what "
          "processes keep\nfor their next objects. WRITTEN and READ BACK count what went to disk "
          "and came back since the node\nstarted; WAITING are requests for memory.")
      .run([options, &context] { return list_objects(context, *options); });
}

}  // namespace troupe::tools
