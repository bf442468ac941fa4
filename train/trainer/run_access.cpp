#include "train/trainer/run_access.h"

#include <algorithm>
#include <cstring>

#include "actors/client.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_transfer.h"
#include "runtime/net/socket.h"
#include "troupe/detail/access.h"
#include "troupe/raw_connection.h"

namespace troupe::train {

std::optional<NodeId> node_of(const std::vector<NodeInfo>& nodes,
                              const std::vector<net::InterfaceAddress>& own) {
  // A loopback address is of this machine where the cluster is nowhere else.
  const auto is_loopback = [](const std::string& host) {
    const auto address = net::numeric_address(host, 0);
    return address.ok() && net::is_loopback(*address);
  };
  const bool all_here = std::ranges::all_of(
      nodes, [&](const NodeInfo& node) { return is_loopback(node.endpoint.host); });
  for (const auto& node : nodes) {
    const std::string& host = node.endpoint.host;
    const bool is_own = std::ranges::any_of(own, [&](const auto& a) { return a.address == host; });
    if (node.state == NodeState::kAlive && is_own && (all_here || !is_loopback(host)))
      return node.node_id;
  }
  return std::nullopt;
}

namespace {

constexpr auto kNodesTimeout = std::chrono::seconds(5);

// Without an answer of the head or of the kernel any node will do.
std::optional<NodeId> node_of_this_machine(Cluster& cluster) {
  if (!cluster.node_id().empty()) return cluster.node_id();
  PosixFileSystem files;
  const auto network = net::SystemNetwork(files).read();
  const auto nodes = cluster.nodes(kNodesTimeout);
  if (!network.ok() || !nodes.ok()) return std::nullopt;
  return node_of(*nodes, network->addresses);
}

}  // namespace

Result<ActorHandle<TrainController>> spawn_controller(Cluster& cluster, const RunSpec& spec) {
  // Started again, it takes its trainers over. A controller that dies on and on is no use. It runs
  // on while the head is silent (OnHeadLoss::kKeep). Where its node was lost and lives, there are
  // two: the newer one asks every trainer how it is before it decides anything, and a trainer that
  // it has asked refuses the older one, which ends by that.
  ActorOptions options{.name = kControllerPrefix + spec.run,
                       .num_cpus = 0,
                       .max_restarts = 100,
                       .backoff_initial = std::chrono::milliseconds(0),
                       .backoff_max = std::chrono::milliseconds(200),
                       .run = spec.run};
  if (spec.machines > 0) {
    options.label_selector[kNodeRankLabel] = "0";
  } else {
    // It gives the tokenised data, which lie on the driver's machine, to the nodes that lack them.
    options.node_affinity = node_of_this_machine(cluster);
    options.node_affinity_soft = options.node_affinity.has_value();
  }
  return cluster.spawn<TrainController>(options, spec);
}

ControllerWatch::ControllerWatch(Cluster& cluster, const ActorHandle<TrainController>& controller)
    : process_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      watch_(cluster.watch(controller, [process = process_](const ActorInfo& info) {
        process->store(info.generation);
      })) {}

namespace {

Result<RawConnection> open_purpose(const ActorHandle<TrainController>& controller,
                                   const char* purpose, Deadline deadline) {
  return troupe::detail::Access::client(controller)->connect_to(controller.id(), purpose, deadline);
}

}  // namespace

Result<ByteStream> open_progress(const ActorHandle<TrainController>& controller,
                                 Deadline deadline) {
  return std::move(TROUPE_TRY(open_purpose(controller, kProgressPurpose, deadline)).stream);
}

Status hand_over(const ActorHandle<TrainController>& controller, const RunBundle& bundle) {
  const auto bytes = encode_bundle(bundle);
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-bundle", bytes.size()));
  std::memcpy(segment.data(), bytes.data(), bytes.size());
  auto connection =
      TROUPE_TRY(open_purpose(controller, kBundlePurpose, Deadline::after(kControllerTimeout)));
  return memory::send_segment(connection.stream, connection.same_node, segment,
                              Deadline::after(kBundleTimeout));
}

}  // namespace troupe::train
