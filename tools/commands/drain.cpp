#include "tools/commands/drain.h"

#include <memory>
#include <vector>

#include "scheduler/client/cluster_record.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/run_leave.h"
#include "tools/commands/worker.h"

namespace troupe::tools {
namespace {

constexpr Duration kGrace = std::chrono::seconds(30);

struct DrainOptions {
  std::string node;
  std::optional<double> grace_s;
  ClusterOptions cluster;
};

// By name, id, or the first digits of one.
Result<wire::NodeInfo> find_node(const std::vector<wire::NodeInfo>& nodes,
                                 const std::string& target) {
  std::vector<const wire::NodeInfo*> found;
  for (const auto& node : nodes) {
    if (node.state == wire::NodeState::kDead) continue;
    if (is_meant(target, node.name, node.node_id.to_string())) found.push_back(&node);
  }
  if (found.empty()) {
    return error(Code::kNotFound, "there is no node '{}': 'troupe nodes' lists them", target);
  }
  if (found.size() > 1) {
    return error(Code::kInvalidArgument, "'{}' may be {} nodes: say more digits of its id", target,
                 found.size());
  }
  return *found.front();
}

Status drain(CommandContext& context, const DrainOptions& options) {
  const Duration grace = TROUPE_TRY(seconds_option(options.grace_s, kGrace));
  const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
  auto cluster = TROUPE_TRY(connect_cluster(context, options.cluster, "troupe drain"));
  const auto node =
      TROUPE_TRY(find_node(TROUPE_TRY(cluster->head->nodes(cluster->deadline)), options.node));
  // A training that may do without this machine is told first, and hands over.
  const Leaving leaving =
      TROUPE_TRY(leave_run(context, options.cluster, node.node_id, "troupe drain"));
  if (leaving == Leaving::kNeeded) {
    return error(Code::kFailedPrecondition,
                 "the training on node {} cannot do without it (it leads, or no fewer machines are "
                 "allowed, MIN_NNODES): start another one first, or save and end it with 'troupe "
                 "stop'",
                 node.name);
  }
  if (leaving == Leaving::kFixed) {
    return error(
        Code::kFailedPrecondition,
        "the training on node {} cannot do without it: its machines are as many as NNODES "
        "says; save and end it with 'troupe stop' (with MIN_NNODES and MAX_NNODES machines "
        "may leave)",
        node.name);
  }
  // That took a step of the training, however long: what is left to do has a time of its own.
  cluster = TROUPE_TRY(connect_cluster(context, options.cluster, "troupe drain"));
  // The command that joined for the training has nothing left to do there.
  const bool ends = leaving == Leaving::kGone;
  const std::string by = fmt::format("'troupe drain' on {}", scheduler::host_name());
  TROUPE_RETURN_IF_ERROR(cluster->head->drain(node.node_id, grace_ms, ends ? drained_text(by) : by,
                                              ends, cluster->deadline));
  if (options.cluster.json) {
    context.out << json::write(json::Object{{"draining", node.name},
                                            {"node_id", node.node_id.to_string()},
                                            {"grace_s", static_cast<double>(grace_ms) / 1000},
                                            {"node_ends", ends}})
                << "\n";
    return {};
  }
  if (ends) {
    context.out << fmt::format(
        "Node {} has left the training, which goes on without it; its command ends.\n", node.name);
    return {};
  }
  context.out << fmt::format(
      "Node {} takes no new actors. Those on it that may be started again finish what is queued, "
      "within {} s, and go to other nodes; the others run on there ('troupe actors').\n",
      node.name, static_cast<double>(grace_ms) / 1000);
  return {};
}

}  // namespace

void add_drain_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<DrainOptions>();
  Command command(
      app, context, "drain",
      "Drains a node: it gets nothing new, and actors that may run elsewhere go there.");
  command.argument("node", options->node, "the node's name or id, or the first digits of the id")
      .option("--grace", options->grace_s, "SECONDS",
              "how long actors may take to finish what is queued (default 30)");
  declare_cluster_options(command, options->cluster);
  command.example("troupe drain worker-2")
      .example("troupe drain worker-2 --grace 300")
      .note(
          "A worker that is ended by SIGTERM drains itself. A training with MIN_NNODES below "
          "MAX_NNODES hands over what the node has of it first, between two steps; the command "
          "that joined it there ends. One with NNODES keeps its machines: none is drained. A node "
          "stays drained until its worker is started anew.")
      .run([options, &context] { return drain(context, *options); });
}

}  // namespace troupe::tools
