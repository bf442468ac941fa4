#include "tools/commands/nodes.h"

#include <algorithm>
#include <future>
#include <map>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/suggest.h"
#include "scheduler/client/ask_node.h"
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

// --- GPUs ----------------------------------------------------------------------------------------

constexpr std::size_t kNodesAskedAtOnce = 16;

using Gpus = Result<std::vector<wire::GpuStatus>>;

Gpus ask_for_gpus(ClusterConnection& cluster, const wire::NodeInfo& node) {
  auto answer = TROUPE_TRY(
      scheduler::ask_node(cluster.thread->loop(), {node.endpoint.host, node.endpoint.port, {}},
                          cluster.place.token.token, wire::ReadGpus{1}, cluster.deadline));
  auto* list = get_if<wire::GpuList>(&answer);
  if (list == nullptr) return error(Code::kProtocol, "the answer is no list of GPUs");
  return std::move(list->gpus);
}

// Of the nodes that offer some, or did: they are asked themselves.
std::map<NodeId, Gpus> gpus_of(ClusterConnection& cluster,
                               const std::vector<wire::NodeInfo>& nodes) {
  std::vector<const wire::NodeInfo*> asked;
  for (const auto& node : nodes) {
    const bool answers = node.state != wire::NodeState::kDead;
    if (answers && node.total.contains(scheduler::kGpu)) asked.push_back(&node);
  }
  std::map<NodeId, Gpus> all;
  for (std::size_t from = 0; from < asked.size(); from += kNodesAskedAtOnce) {
    const std::size_t to = std::min(asked.size(), from + kNodesAskedAtOnce);
    std::vector<std::future<Gpus>> answers;
    for (std::size_t i = from; i < to; ++i) {
      answers.push_back(std::async(std::launch::async, [&cluster, node = asked[i]] {
        return ask_for_gpus(cluster, *node);
      }));
    }
    for (std::size_t i = from; i < to; ++i) {
      all.emplace(asked[i]->node_id, answers[i - from].get());
    }
  }
  return all;
}

std::string holders_of(const wire::GpuStatus& gpu) {
  std::string text;
  for (const wire::GpuHolder& holder : gpu.holders) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", holder.label);
    if (holder.share == wire::kResourceUnit) continue;
    text += fmt::format(" ({})", scheduler::format_amount(scheduler::kGpu, holder.share));
  }
  return text;
}

// The devices, where there are any that are more than amounts.
void print_gpus(CommandContext& context, const std::vector<wire::NodeInfo>& nodes,
                const std::map<NodeId, Gpus>& gpus) {
  Table table({"NODE", "GPU", "DEVICE", "UUID", "NUMA", "MEMORY USED", "STATE", "HELD BY"});
  bool any = false;
  std::string notices;
  for (const auto& node : nodes) {
    const auto found = gpus.find(node.node_id);
    if (found == gpus.end()) continue;
    if (!found->second.ok()) {
      notices += fmt::format("node {} does not tell its GPUs: {}\n", node.name,
                             found->second.status().to_string());
      continue;
    }
    for (const wire::GpuStatus& gpu : *found->second) {
      const wire::GpuDevice& device = gpu.device;
      if (device.uuid.empty() && device.minor_number < 0) continue;
      any = true;
      const auto memory = [](std::uint64_t bytes) {
        return static_cast<std::int64_t>(bytes) * wire::kResourceUnit;
      };
      table.add({node.name, std::to_string(device.index), device.name, device.uuid,
                 device.numa_node < 0 ? "" : std::to_string(device.numa_node),
                 device.memory_total_bytes == 0
                     ? ""
                     : format_use(scheduler::kMemory, memory(gpu.memory_used_bytes),
                                  memory(device.memory_total_bytes)),
                 std::string(wire::gpu_state_name(gpu.state)), holders_of(gpu)});
      if (!gpu.trouble.empty()) {
        notices += fmt::format("GPU {} of node {}: {}\n", device.index, node.name, gpu.trouble);
      }
    }
  }
  if (any) {
    context.out << "\n";
    table.print(context.out);
  }
  context.out << notices;
}

Status list_nodes(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe nodes"));
  const auto nodes = TROUPE_TRY(cluster->head->nodes(cluster->deadline));
  const auto groups = TROUPE_TRY(cluster->head->groups(false, cluster->deadline));
  const auto gpus = gpus_of(*cluster, nodes);
  if (options.json) {
    json::Array list;
    for (const auto& node : nodes) {
      json::Object object = to_json(node);
      json::Array bundles;
      for (const auto& name : bundles_on(node, groups)) bundles.emplace_back(name);
      object["bundles"] = std::move(bundles);
      if (const auto found = gpus.find(node.node_id); found != gpus.end()) {
        json::Array devices;
        if (found->second.ok()) {
          for (const auto& gpu : *found->second) devices.push_back(to_json(gpu));
        } else {
          object["gpus_error"] = found->second.status().to_string();
        }
        object["gpus"] = std::move(devices);
      }
      list.push_back(std::move(object));
    }
    context.out << json::write(json::Object{{"nodes", std::move(list)}}) << "\n";
    return {};
  }
  if (nodes.empty()) {
    const auto& head = cluster->place.address;
    context.out << fmt::format("No nodes. To add one: troupe worker --address {}\n",
                               scheduler::format_address(head.host, head.port));
    return {};
  }
  const std::int64_t now = SystemClock().unix_time_us();
  Table table({"NAME", "ID", "STATE", "ADDRESS", "PID", "CPU USED", "GPU USED", "MEMORY USED",
               "OTHER USED", "GROUPS", "LABELS", "JOINED"});
  for (const auto& node : nodes) {
    table.add({node.name, node.node_id.brief(), std::string(wire::node_state_name(node.state)),
               scheduler::format_address(node.endpoint.host, node.endpoint.port),
               std::to_string(node.pid), use_of(node, scheduler::kCpu),
               use_of(node, scheduler::kGpu), use_of(node, scheduler::kMemory), other_use(node),
               join_words(bundles_on(node, groups)), labels_of(node),
               format_age(now - node.joined_unix_us) + " ago"});
  }
  table.print(context.out);
  print_gpus(context, nodes, gpus);
  return {};
}

}  // namespace

void add_nodes_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "nodes",
                  "Lists the nodes: what each offers, what is in use, and the users of its GPUs.");
  declare_cluster_options(command, *options);
  command.example("troupe nodes")
      .example("troupe nodes --address 10.0.0.2:6379 --json")
      .run([options, &context] { return list_nodes(context, *options); });
}

}  // namespace troupe::tools
