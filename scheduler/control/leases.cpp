// What leases and bundles take of a node, and what placement sees of it.

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/nodes.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

void Nodes::refresh(const NodeRecord& node) {
  const wire::NodeInfo& info = node.info;
  if (node.usable()) {
    view_.put(info.node_id, info.name, info.total, info.available, info.labels);
  } else {
    view_.remove(info.node_id);
  }
}

void Nodes::is_resized(const NodeRecord& node) {
  resized_.insert(node.id());
  refresh(node);
}

bool Nodes::keep_lease(const NodeRecord& record, const LeaseKey& key, const wire::Resources& amount,
                       const BundleKey* bundle) {
  NodeRecord& node = edit(record);
  wire::Resources* from = &node.info.available;
  if (bundle != nullptr) {
    const auto found = node.bundles.find(*bundle);
    if (found == node.bundles.end()) return false;
    from = &found->second.available;
  }
  if (!fits(amount, *from)) return false;
  TROUPE_CHECK(node.leases.emplace(key, amount).second);
  if (bundle != nullptr) node.inside.emplace(key, *bundle);
  subtract(*from, amount);
  return true;
}

void Nodes::take_lease(const NodeRecord& node, const LeaseKey& key, const wire::Resources& amount,
                       const BundleKey* bundle) {
  TROUPE_CHECK(keep_lease(node, key, amount, bundle));
  is_resized(node);
}

namespace {

// What the lease is taken from.
wire::Resources& source_of(NodeRecord& node, const LeaseKey& key) {
  const auto inside = node.inside.find(key);
  return inside == node.inside.end() ? node.info.available
                                     : node.bundles.at(inside->second).available;
}

}  // namespace

bool Nodes::keep_running(const NodeRecord& record, const LeaseKey& key,
                         const wire::Resources& amount) {
  const std::int64_t missing =
      amount_of(amount, kCpu) - std::max<std::int64_t>(amount_of(record.info.available, kCpu), 0);
  wire::Resources rest = amount;
  if (missing > 0) rest[std::string(kCpu)] -= missing;
  if (!keep_lease(record, key, rest, nullptr)) return false;
  if (missing > 0) edit(record).lent_cpus[key] = {missing, true};
  return true;
}

void Nodes::lend_cpus(const NodeRecord& record, const LeaseKey& key) {
  NodeRecord& node = edit(record);
  const auto lease = node.leases.find(key);
  if (lease == node.leases.end()) return;
  NodeRecord::LentCpus& lent = node.lent_cpus[key];
  lent.wanted_back = false;
  const std::int64_t cpus = amount_of(lease->second, kCpu);
  if (cpus > 0) {
    lent.amount += cpus;
    lease->second[std::string(kCpu)] = 0;
    source_of(node, key)[std::string(kCpu)] += cpus;
  }
  give_back_cpus(node);
  shrink(node);
  is_resized(node);
  line_.came_room();
}

void Nodes::take_back_cpus(const NodeRecord& record, const LeaseKey& key) {
  NodeRecord& node = edit(record);
  const auto lent = node.lent_cpus.find(key);
  if (lent == node.lent_cpus.end()) return;
  lent->second.wanted_back = true;
  give_back_cpus(node);
  is_resized(node);
}

// To those that go on: before others that wait for room.
void Nodes::give_back_cpus(NodeRecord& node) {
  const std::string cpu(kCpu);
  for (auto& [key, lent] : node.lent_cpus) {
    if (!lent.wanted_back) continue;
    std::int64_t& free = source_of(node, key)[cpu];
    const std::int64_t cpus = std::clamp<std::int64_t>(free, 0, lent.amount);
    free -= cpus;
    node.leases.at(key)[cpu] += cpus;
    lent.amount -= cpus;
  }
  std::erase_if(node.lent_cpus, [](const auto& entry) {
    return entry.second.wanted_back && entry.second.amount == 0;
  });
}

void Nodes::free_lease(const NodeRecord& record, const LeaseKey& key) {
  NodeRecord& node = edit(record);
  const auto lease = node.leases.find(key);
  if (lease == node.leases.end()) return;
  const auto inside = node.inside.find(key);
  if (inside == node.inside.end()) {
    add(node.info.available, lease->second);
  } else {
    add(node.bundles.at(inside->second).available, lease->second);
    node.inside.erase(inside);
  }
  forget_stray(key);
  node.leases.erase(lease);
  node.lent_cpus.erase(key);
  give_back_cpus(node);
  shrink(node);
  is_resized(node);
  line_.came_room();
}

Nodes::Leases Nodes::take_leases(const NodeRecord& record) {
  NodeRecord& node = edit(record);
  for (const auto& [key, amount] : node.leases) forget_stray(key);
  node.lent_cpus.clear();
  node.info.available = node.info.total;
  for (auto& [key, bundle] : node.bundles) {
    bundle.available = bundle.total;
    subtract(node.info.available, bundle.total);
  }
  return {std::exchange(node.leases, {}), std::exchange(node.inside, {})};
}

void Nodes::take_bundle(const NodeRecord& record, const BundleKey& key,
                        const wire::Resources& amount, const std::vector<LeaseKey>& inside) {
  NodeRecord& node = edit(record);
  BundleLease bundle{amount, amount};
  for (const LeaseKey& lease : inside) {
    const auto held = node.leases.find(lease);
    if (held == node.leases.end()) continue;
    subtract(bundle.available, held->second);
    add(node.info.available, held->second);
    node.inside.emplace(lease, key);
  }
  TROUPE_CHECK(fits(amount, node.info.available));
  subtract(node.info.available, amount);
  TROUPE_CHECK(node.bundles.emplace(key, std::move(bundle)).second);
  is_resized(node);
}

void Nodes::free_bundle(const NodeRecord& record, const BundleKey& key) {
  NodeRecord& node = edit(record);
  const auto bundle = node.bundles.find(key);
  TROUPE_CHECK(bundle != node.bundles.end());
  add(node.info.available, bundle->second.total);
  node.bundles.erase(bundle);
  std::erase_if(node.inside, [&](const auto& entry) {
    if (entry.second != key) return false;
    subtract(node.info.available, node.leases.at(entry.first));
    return true;
  });
  is_resized(node);
}

Nodes::Resized Nodes::resize(const NodeRecord& record, const wire::Resources& total) {
  NodeRecord& node = edit(record);
  Resized resized;
  node.shrinks_to.reset();
  wire::Resources names = node.info.total;
  for (const auto& [name, amount] : total) names.emplace(name, 0);
  for (const auto& [name, before] : names) {
    const std::int64_t more = amount_of(total, name) - amount_of(node.info.total, name);
    if (more > 0) {
      node.info.total[name] += more;
      node.info.available[name] += more;
      resized.grew = true;
    } else if (more < 0) {
      node.shrinks_to = total;
      resized.lost += fmt::format("{}{} {}", resized.lost.empty() ? "" : ", ", name,
                                  format_amount(name, -more));
    }
  }
  if (!resized.grew && resized.lost.empty()) return resized;
  changed(node);
  shrink(node);
  return resized;
}

// What is free of what the node lost goes.
void Nodes::shrink(const NodeRecord& record) {
  NodeRecord& node = edit(record);
  if (!node.shrinks_to) return;
  bool left = false;
  for (auto& [name, amount] : node.info.total) {
    const std::int64_t surplus = amount - amount_of(*node.shrinks_to, name);
    const std::int64_t cut = std::clamp<std::int64_t>(amount_of(node.info.available, name), 0,
                                                      std::max<std::int64_t>(surplus, 0));
    if (cut > 0) {
      amount -= cut;
      node.info.available[name] -= cut;
      changed(node);
    }
    left |= surplus > cut;
  }
  if (!left) node.shrinks_to.reset();
}

void Nodes::forget_stray(const LeaseKey& key) {
  const auto stray = strays_.find(key.first);
  if (stray != strays_.end() && stray->second == key.second) strays_.erase(stray);
}

std::uint64_t Nodes::stray_generation(ActorId id) const {
  const auto stray = strays_.find(id);
  return stray == strays_.end() ? 0 : stray->second;
}

}  // namespace troupe::scheduler
