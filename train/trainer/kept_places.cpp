#include "train/trainer/kept_places.h"
#include "runtime/wire/types.h"

#include <algorithm>

namespace troupe::train {
namespace {

// Nodes answer at once what they are asked to keep.
constexpr auto kPlacesTimeout = std::chrono::seconds(10);

PlacementStrategy strategy_named(const std::string& name) {
  if (name == "SPREAD") return PlacementStrategy::kSpread;
  if (name == "STRICT_PACK") return PlacementStrategy::kStrictPack;
  if (name == "STRICT_SPREAD") return PlacementStrategy::kStrictSpread;
  return PlacementStrategy::kPack;
}

std::map<std::string, double> bundle_of(const RunSpec& spec) {
  std::map<std::string, double> bundle = spec.resources_per_trainer;
  bundle["CPU"] = spec.cpus_per_trainer;
  if (spec.gpus_per_trainer > 0) bundle["GPU"] = spec.gpus_per_trainer;
  if (spec.memory_per_trainer > 0) bundle["memory"] = spec.memory_per_trainer;
  std::erase_if(bundle, [](const auto& entry) { return entry.second == 0; });
  return bundle;
}

}  // namespace

std::int64_t trainers_per_node(const TrainConfig& config, const TrainingCluster& cluster,
                               int world_size) {
  const bool one_node = config.launch.placement_strategy == "STRICT_PACK";
  const std::int64_t there = cluster.machines > 0 ? cluster.machines : cluster.node_count;
  const std::int64_t nodes = one_node ? 1 : std::max<std::int64_t>(1, there);
  return (world_size + nodes - 1) / nodes;
}

std::vector<std::int32_t> bundles_by_node(const std::vector<NodeId>& nodes) {
  std::vector<std::int32_t> order;
  // Nodes in the order in which they come first, so that rank 0 stays where its bundle is.
  for (std::size_t first = 0; first < nodes.size(); ++first) {
    if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(first),
                  nodes[first]) != nodes.begin() + static_cast<std::ptrdiff_t>(first))
      continue;
    for (std::size_t i = first; i < nodes.size(); ++i)
      if (nodes[i] == nodes[first]) order.push_back(static_cast<std::int32_t>(i));
  }
  return order;
}

Status keep_places(const TrainConfig& config, TrainingCluster& cluster, RunSpec& spec) {
  const std::string& name = config.launch.placement_strategy;
  const PlacementStrategy strategy = strategy_named(name);
  if (strategy == PlacementStrategy::kPack) return {};
  if (strategy == PlacementStrategy::kStrictSpread && spec.world_size > cluster.node_count) {
    return error(Code::kResourceExhausted,
                 "placement_strategy=STRICT_SPREAD wants a node for each of the {} trainers, and "
                 "there {} {}; use SPREAD, or fewer trainers",
                 spec.world_size, cluster.node_count == 1 ? "is" : "are", cluster.node_count);
  }
  if (cluster.machines > 0) {
    if (strategy != PlacementStrategy::kStrictPack) return {};
    return error(Code::kInvalidArgument,
                 "placement_strategy=STRICT_PACK wants all trainers on one node, and NNODES deals "
                 "them out to {}; leave one of them out",
                 cluster.node_count);
  }
  const auto world = static_cast<std::size_t>(spec.world_size);
  PlacementGroupOptions options{.bundles = {world, bundle_of(spec)}, .strategy = strategy};
  const auto group = TROUPE_TRY(cluster.cluster.create_placement_group(options));
  const auto refused = [&](const std::string& why) {
    return error(Code::kResourceExhausted, "placement_strategy={}: no places for {} trainers: {}",
                 name, spec.world_size, why);
  };
  // As a gang, the trainers are placed now or not at all.
  if (const auto first = TROUPE_TRY(group.info());
      first.state == wire::PlacementGroupState::kPending && !first.why.empty())
    return refused(first.why);
  if (const Status ready = group.ready(kPlacesTimeout); !ready.ok())
    return refused(ready.message());
  const auto info = TROUPE_TRY(group.info());
  std::vector<NodeId> nodes;
  for (const auto& bundle : info.bundles) nodes.push_back(bundle.node_id);
  spec.places = group.id();
  spec.bundles = bundles_by_node(nodes);
  return {};
}

}  // namespace troupe::train
