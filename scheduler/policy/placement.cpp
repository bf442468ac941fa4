#include "scheduler/policy/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Nodes that an explanation names one by one; more are counted.
constexpr std::size_t kNodesExplainedMax = 8;

bool allowed(const Bundle& bundle, const NodeCapacity& node) {
  return !bundle.affinity || *bundle.affinity == node.node_id;
}

// How much of a node would be left, as a sum of fractions of its total: smaller is tighter.
double slack(const NodeCapacity& node, const wire::Resources& available) {
  double sum = 0;
  for (const auto& [name, total] : node.total) {
    if (total > 0) {
      sum += static_cast<double>(amount_of(available, name)) / static_cast<double>(total);
    }
  }
  return sum;
}

class Search {
 public:
  Search(std::span<const Bundle> bundles, std::span<const NodeCapacity> nodes)
      : bundles_(bundles), nodes_(nodes), result_(bundles.size(), kNone) {
    left_.reserve(nodes.size());
    for (const NodeCapacity& node : nodes) left_.push_back(node.available);
  }

  bool run(std::span<const std::size_t> order) {
    if (!take_bound(order)) return false;
    if (take_single_node(order)) return true;
    std::size_t current = kNone;
    for (std::size_t i : order) {
      if (result_[i] != kNone) continue;
      if (current == kNone || !can_take(i, current)) current = best_node(i, order);
      if (current == kNone) return false;
      take(i, current);
    }
    return true;
  }
  std::vector<std::size_t> result() && { return std::move(result_); }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  bool can_take(std::size_t bundle, std::size_t node) const {
    return allowed(bundles_[bundle], nodes_[node]) && fits(bundles_[bundle].need, left_[node]);
  }
  void take(std::size_t bundle, std::size_t node) {
    subtract(left_[node], bundles_[bundle].need);
    result_[bundle] = node;
  }

  // Bundles that have no choice, or whose preferred node has room.
  bool take_bound(std::span<const std::size_t> order) {
    for (std::size_t i : order) {
      const auto& wanted = bundles_[i].affinity;
      if (wanted && !take_at(i, *wanted)) return false;
    }
    for (std::size_t i : order) {
      if (result_[i] == kNone && bundles_[i].preferred) take_at(i, *bundles_[i].preferred);
    }
    return true;
  }
  bool take_at(std::size_t bundle, NodeId node_id) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].node_id == node_id && can_take(bundle, n)) {
        take(bundle, n);
        return true;
      }
    }
    return false;
  }

  bool take_single_node(std::span<const std::size_t> order) {
    wire::Resources sum;
    for (std::size_t i : order) {
      if (result_[i] == kNone) add(sum, bundles_[i].need);
    }
    std::size_t best = kNone;
    double best_slack = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!fits(sum, left_[n])) continue;
      const double s = slack(nodes_[n], left_[n]);
      if (best == kNone || s < best_slack) {
        best = n;
        best_slack = s;
      }
    }
    if (best == kNone) return false;
    for (std::size_t i : order) {
      if (result_[i] == kNone) take(i, best);
    }
    return true;
  }

  // The node that takes the most of what is left to place, from `first` on.
  std::size_t best_node(std::size_t first, std::span<const std::size_t> order) const {
    std::size_t best = kNone;
    std::size_t best_count = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!can_take(first, n)) continue;
      wire::Resources left = left_[n];
      std::size_t count = 0;
      bool reached = false;
      for (std::size_t i : order) {
        reached = reached || i == first;
        if (!reached || result_[i] != kNone) continue;
        if (!allowed(bundles_[i], nodes_[n]) || !fits(bundles_[i].need, left)) break;
        subtract(left, bundles_[i].need);
        ++count;
      }
      if (count > best_count) {
        best = n;
        best_count = count;
      }
    }
    return best;
  }

  std::span<const Bundle> bundles_;
  std::span<const NodeCapacity> nodes_;
  std::vector<wire::Resources> left_;
  std::vector<std::size_t> result_;
};

std::int64_t largest_share(const Bundle& bundle) {
  std::int64_t largest = 0;
  for (const auto& [name, amount] : bundle.need) {
    if (name != kMemory) largest = std::max(largest, amount);
  }
  return largest;
}

std::string describe(std::span<const Bundle> bundles) {
  const Bundle& first = bundles.front();
  if (bundles.size() == 1) return format_resources(first.need);
  const bool equal = std::all_of(bundles.begin(), bundles.end(),
                                 [&](const Bundle& b) { return b.need == first.need; });
  if (equal) {
    return fmt::format("{} × ({}) at once", bundles.size(), format_resources(first.need));
  }
  wire::Resources sum;
  for (const Bundle& bundle : bundles) add(sum, bundle.need);
  return fmt::format("{} bundles at once, together {}", bundles.size(), format_resources(sum));
}

std::string describe(const NodeCapacity& node, const Bundle& bundle) {
  std::string text;
  for (const auto& [name, amount] : bundle.need) {
    text += fmt::format("{}{} {} of {} free", text.empty() ? "" : ", ", name,
                        format_amount(name, amount_of(node.available, name)),
                        format_amount(name, amount_of(node.total, name)));
  }
  return fmt::format("{} has {}", node.name, text.empty() ? "room" : text);
}

}  // namespace

std::optional<std::vector<std::size_t>> place(std::span<const Bundle> bundles,
                                              std::span<const NodeCapacity> nodes) {
  std::vector<std::size_t> order(bundles.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Search in_order(bundles, nodes);
  if (in_order.run(order)) return std::move(in_order).result();
  if (bundles.size() < 2) return std::nullopt;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return largest_share(bundles[a]) > largest_share(bundles[b]);
  });
  Search largest_first(bundles, nodes);
  if (largest_first.run(order)) return std::move(largest_first).result();
  return std::nullopt;
}

bool feasible(std::span<const Bundle> bundles, std::span<const NodeCapacity> nodes) {
  std::vector<NodeCapacity> empty(nodes.begin(), nodes.end());
  for (NodeCapacity& node : empty) node.available = node.total;
  return place(bundles, empty).has_value();
}

std::string explain(std::span<const Bundle> bundles, std::span<const NodeCapacity> nodes) {
  std::string text = fmt::format("needs {}", describe(bundles));
  if (bundles.front().affinity) {
    const auto wanted = std::find_if(nodes.begin(), nodes.end(), [&](const NodeCapacity& node) {
      return node.node_id == *bundles.front().affinity;
    });
    if (wanted == nodes.end()) {
      return text + fmt::format(" on node {}, which is not in the cluster",
                                bundles.front().affinity->brief());
    }
    text += fmt::format(" on node {}", wanted->name);
  }
  if (nodes.empty()) return text + "; no node has joined yet";
  for (std::size_t i = 0; i < nodes.size() && i < kNodesExplainedMax; ++i) {
    text += "; " + describe(nodes[i], bundles.front());
  }
  if (nodes.size() > kNodesExplainedMax) {
    text += fmt::format("; and {} more nodes have no more", nodes.size() - kNodesExplainedMax);
  }
  return text;
}

}  // namespace troupe::scheduler
