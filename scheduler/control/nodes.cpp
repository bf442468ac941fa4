#include "scheduler/control/nodes.h"

#include <algorithm>
#include <string_view>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

Nodes::Nodes(Context& context, Connections& connections, WaitingLine& line)
    : Table(context),
      connections_(connections),
      line_(line),
      suspicion_deviations_(deviations_at(context.config().suspicion_phi)) {}

const NodeRecord* Nodes::of_peer(PeerId peer) const {
  const PeerRecord* record = connections_.find(peer);
  if (record == nullptr || record->node_id.empty()) return nullptr;
  const NodeRecord* node = find(record->node_id);
  return node != nullptr && node->peer == peer ? node : nullptr;
}

bool Nodes::awaits_nodes() const {
  return std::any_of(all().begin(), all().end(), [](const auto& entry) {
    const NodeRecord& node = entry.second;
    return node.info.state == wire::NodeState::kAlive && !node.usable();
  });
}

wire::NodeInfo Nodes::visible(const NodeRecord& node) {
  wire::NodeInfo info = node.info;
  if (node.suspected && info.state == wire::NodeState::kAlive) {
    info.state = wire::NodeState::kSuspected;
  }
  return info;
}

std::string Nodes::unique_name(const std::string& wanted, NodeId node_id) const {
  const std::string base = wanted.empty() ? "node" : wanted;
  // A thousand containers may all be called the same.
  std::set<std::string_view> taken;
  for (const auto& [id, node] : all()) {
    if (id != node_id && !node.dead()) taken.insert(node.info.name);
  }
  std::string name = base;
  for (int i = 2; taken.contains(name); ++i) name = fmt::format("{}-{}", base, i);
  return name;
}

const NodeRecord& Nodes::joined(PeerId peer, const wire::NodeInfo& info) {
  const bool known = contains(info.node_id);
  NodeRecord& node = records_[info.node_id];
  if (node.peer != 0 && node.peer != peer) connections_.end(node.peer);
  const bool returned = known && !node.dead();
  const bool draining = returned && node.info.state == wire::NodeState::kDraining;
  const std::int64_t joined = returned ? node.info.joined_unix_us : context_.unix_us();
  const Labels before = returned ? std::move(node.info.labels) : Labels();
  node.info = info;
  number(node, before);
  node.info.name = unique_name(info.name, info.node_id);
  node.info.state = draining ? wire::NodeState::kDraining : wire::NodeState::kAlive;
  node.info.joined_unix_us = joined;
  node.peer = peer;
  node.last_heard = context_.now();
  if (!known) node.beats = PhiAccrual(context_.config().heartbeat_interval);
  node.beats.begin(context_.now());
  node.suspected = false;
  node.shrinks_to.reset();
  node.packages.clear();  // it says them anew
  node.return_by.reset();
  connections_.introduce_node(peer, node.id());
  if (context_.config().heartbeats) {
    look_at(node, context_.now() + node.beats.silence(suspicion_deviations_));
  }
  changed(node);
  return node;
}

void Nodes::disconnected(const NodeRecord& node) {
  edit(node).peer = 0;
  edit(node).suspected = false;  // that it is away says more
  refresh(node);
}

void Nodes::awaits_return(const NodeRecord& node) {
  await(edit(node), context_.now() + context_.config().disconnect_grace);
}

void Nodes::drains(const NodeRecord& node) {
  edit(node).info.state = wire::NodeState::kDraining;
  refresh(node);
  changed(node);
}

void Nodes::died(const NodeRecord& record) {
  NodeRecord& node = edit(record);
  node.info.state = wire::NodeState::kDead;
  node.suspected = false;
  node.return_by.reset();
  if (node.peer != 0) connections_.end(std::exchange(node.peer, 0));
  refresh(node);
  changed(node);
  pass_numbers_on();
}

void Nodes::number(NodeRecord& node, const Labels& before) {
  Labels& labels = node.info.labels;
  node.unnumbered.clear();
  for (const auto& [label, value] : labels) {
    if (const auto bound = first_free_of(value)) node.unnumbered.emplace(label, *bound);
  }
  for (const auto& [label, bound] : node.unnumbered) {
    const auto had = before.find(label);
    if (had == before.end()) {
      labels.erase(label);
    } else {
      labels[label] = had->second;
    }
  }
  std::erase_if(node.unnumbered, [&](const auto& one) { return labels.contains(one.first); });
  give_numbers(node);
}

bool Nodes::give_numbers(NodeRecord& node) {
  const auto given = std::erase_if(node.unnumbered, [&](const auto& one) {
    const auto& [label, bound] = one;
    std::set<std::string_view> taken;
    for (const auto& [id, other] : all()) {
      const auto value = other.info.labels.find(label);
      if (!other.dead() && value != other.info.labels.end()) taken.insert(value->second);
    }
    for (std::int64_t number = 0; number < bound; ++number) {
      std::string text = std::to_string(number);
      if (taken.contains(text)) continue;
      node.info.labels[label] = std::move(text);
      return true;
    }
    return false;
  });
  return given > 0;
}

void Nodes::pass_numbers_on() {
  std::vector<std::pair<std::int64_t, NodeId>> waiting;
  for (const auto& [id, node] : all()) {
    if (node.usable() && !node.unnumbered.empty())
      waiting.emplace_back(node.info.joined_unix_us, id);
  }
  std::sort(waiting.begin(), waiting.end());
  for (const auto& [joined, id] : waiting) {
    NodeRecord& node = records_[id];
    const Labels before = node.info.labels;
    if (!give_numbers(node)) continue;
    std::string got;
    for (const auto& [label, value] : node.info.labels) {
      if (!before.contains(label))
        got += fmt::format("{}{}={}", got.empty() ? "" : ", ", label, value);
    }
    context_.log("node_numbered", {id}, "node {} is {} from now on", node.info.name, got);
    refresh(node);
    changed(node);
    line_.came_room();
  }
}

void Nodes::forget_old() {
  std::vector<std::pair<std::int64_t, NodeId>> dead;
  for (const auto& [id, node] : all()) {
    if (node.dead()) dead.emplace_back(node.info.joined_unix_us, id);
  }
  const std::size_t kept = context_.config().dead_nodes_max;
  if (dead.size() <= kept) return;
  std::sort(dead.begin(), dead.end());
  for (std::size_t i = 0; i + kept < dead.size(); ++i) {
    records_.erase(dead[i].second);
    context_.record(NodeForgotten{dead[i].second});
  }
}

void Nodes::resume() {
  for (auto& [id, node] : records_) {
    node.info.available = node.info.total;
    if (node.dead()) continue;
    await(node, context_.now() + context_.config().rejoin_grace);
  }
}

void Nodes::restore_bundle(const NodeRecord& node, const BundleKey& key,
                           const wire::Resources& amount) {
  edit(node).bundles.emplace(key, BundleLease{amount, amount});
  subtract(edit(node).info.available, amount);
}

std::optional<std::string> Nodes::broken_invariant() const {
  for (const auto& [id, node] : all()) {
    if (!node.usable() && view_.row_of(id) != ClusterView::kNoRow) {
      return fmt::format("placement sees node {}, which takes nothing", node.info.name);
    }
    if (node.dead() && (!node.leases.empty() || !node.bundles.empty())) {
      return fmt::format("dead node {} has leases", node.info.name);
    }
    if (auto broken = broken_leases(node)) return broken;
    if (auto broken = broken_bundles(node)) return broken;
  }
  return std::nullopt;
}

std::optional<std::string> Nodes::broken_leases(const NodeRecord& node) const {
  wire::Resources free = node.info.total;
  for (const auto& [key, bundle] : node.bundles) subtract(free, bundle.total);
  for (const auto& [key, amount] : node.leases) {
    if (!node.inside.contains(key)) subtract(free, amount);
  }
  for (const auto& [name, amount] : free) {
    if (amount < 0) return fmt::format("leases overlap on node {}: {}", node.info.name, name);
    if (amount_of(node.info.available, name) != amount) {
      return fmt::format("node {}: what is free of {} is not total minus leases", node.info.name,
                         name);
    }
    const auto* column = view_.column(name);
    const std::size_t row = view_.row_of(node.id());
    if (node.usable() &&
        (column == nullptr || row == ClusterView::kNoRow || column->available[row] != amount)) {
      return fmt::format("node {}: placement sees another amount of {} than is free",
                         node.info.name, name);
    }
  }
  return std::nullopt;
}

// What is taken from the bundles on a node.
std::optional<std::string> Nodes::broken_bundles(const NodeRecord& node) {
  std::map<BundleKey, wire::Resources> used;
  for (const auto& [lease, bundle] : node.inside) {
    if (!node.leases.contains(lease) || !node.bundles.contains(bundle)) {
      return fmt::format("node {}: a lease is inside of nothing", node.info.name);
    }
    add(used[bundle], node.leases.at(lease));
  }
  for (const auto& [key, bundle] : node.bundles) {
    wire::Resources left = bundle.total;
    subtract(left, used[key]);
    for (const auto& [name, amount] : left) {
      if (amount < 0 || amount_of(bundle.available, name) != amount) {
        return fmt::format("node {}: leases overlap in bundle {} of {}", node.info.name, key.second,
                           key.first.brief());
      }
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler
