// Which nodes have what jobs bring along (scheduler/packages). The head never carries a package,
// and journals nothing of it but its name in the specs.

#include "scheduler/control/nodes.h"

namespace troupe::scheduler {
namespace {

// That are named to one who asks; the others when it asks again.
constexpr std::size_t kSourcesMax = 8;
constexpr std::size_t kNodePackagesMax = 10'000;

}  // namespace

void Nodes::on(PeerId peer, wire::NodePackages& message) {
  const NodeRecord* node = of_peer(peer);
  if (node == nullptr) return;
  message.sha256s.resize(std::min(message.sha256s.size(), kNodePackagesMax));
  edit(*node).packages = {message.sha256s.begin(), message.sha256s.end()};
}

// From the one behind who asks, so that not all nodes ask the same.
void Nodes::on(PeerId peer, wire::FindPackage& message) {
  wire::PackageSources answer{message.request_id, message.package, {}};
  const NodeRecord* asks = of_peer(peer);
  auto at = all().upper_bound(asks == nullptr ? NodeId() : asks->id());
  for (std::size_t i = 0; i < all().size() && answer.nodes.size() < kSourcesMax; ++i, ++at) {
    if (at == all().end()) at = all().begin();
    if (has_package(at->second, message.package)) answer.nodes.push_back(at->second.info.endpoint);
  }
  context_.send(peer, std::move(answer));
}

bool Nodes::has_package(const NodeRecord& node, const wire::Package& package) {
  return node.peer != 0 && node.packages.contains(package.sha256);
}

std::string Nodes::why_package_is_awaited(NodeId id, const wire::Package& package) const {
  const NodeRecord* node = find(id);
  if (package.empty() || node == nullptr || has_package(*node, package)) return {};
  const bool elsewhere = std::any_of(all().begin(), all().end(), [&](const auto& entry) {
    return has_package(entry.second, package);
  });
  return fmt::format("node {} {} {}, which its job was shipped with{}", node->info.name,
                     elsewhere ? "fetches" : "lacks", package.to_string(),
                     elsewhere ? ""
                               : ", and no node that is there has it: 'troupe submit --ship' "
                                 "brings it again");
}

}  // namespace troupe::scheduler
