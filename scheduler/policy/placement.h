#pragma once
// Where bundles go: all of them or none, by a strategy.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/wire/types.h"
#include "scheduler/policy/cluster_view.h"

namespace troupe::scheduler {

// What one actor needs, or one bundle of a placement group. `affinity` and `selector` are hard:
// such a node or nowhere. `preferred` and `preference` are tried first.
struct Bundle {
  wire::Resources need;
  std::optional<NodeId> affinity;
  std::optional<NodeId> preferred;
  wire::LabelSelector selector;
  wire::LabelSelector preference;
  // Of the need, on the preferred node: held there already by what will be inside the bundle.
  wire::Resources held;
};

struct PlacementRequest {
  std::span<const Bundle> bundles;
  wire::PlacementStrategy strategy = wire::PlacementStrategy::kPack;
};

// What is kept free for somebody else, by node.
using KeptFree = std::map<NodeId, wire::Resources>;

// For each bundle its node, or nothing when they do not all fit at once.
//
// PACK: one node if one holds them all (the tightest), else as few as a greedy search finds;
// bundles that follow one another share a node. For equal bundles the search is exact; for unequal
// ones a second try takes the largest first. SPREAD: the node with the fewest of them, then the one
// with the most room; where that fails, as PACK. STRICT_PACK: the tightest node that holds all of
// them. STRICT_SPREAD: a node each, exactly, by augmenting paths. Preferences on labels hold for
// all bundles or are given up for all. Deterministic in its input, ids breaking ties.
std::optional<std::vector<NodeId>> place(const PlacementRequest& request, const ClusterView& view,
                                         const KeptFree* kept_free = nullptr);

// Where they would go if nothing ran on the nodes, on those that are the freest now. Nothing when
// these nodes could never hold them.
std::optional<std::vector<NodeId>> place_on_empty(const PlacementRequest& request,
                                                  const ClusterView& view);

// In words why the bundles are not placed: what they need, and why each node does not do.
std::string explain(const PlacementRequest& request, const ClusterView& view,
                    const KeptFree* kept_free = nullptr);

}  // namespace troupe::scheduler
