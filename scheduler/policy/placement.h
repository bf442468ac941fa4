#pragma once
// Where a gang of bundles goes: packed onto few nodes, all of them or none.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/wire/types.h"

namespace troupe::scheduler {

// A node as placement sees it. `available` is what no lease holds.
struct NodeCapacity {
  NodeId node_id;
  std::string name;
  wire::Resources total;
  wire::Resources available;
};

// What one actor needs. `affinity` is hard: that node or nowhere. `preferred` is tried first.
struct Bundle {
  wire::Resources need;
  std::optional<NodeId> affinity;
  std::optional<NodeId> preferred;
};

// For each bundle the index of its node, or nothing when they do not all fit at once. PACK: one
// node if one holds them all (the one that is left with the least), else as few as a greedy search
// finds; bundles that follow one another share a node. For equal bundles the search is exact; for
// unequal ones a second try takes the largest first. Deterministic in its input.
std::optional<std::vector<std::size_t>> place(std::span<const Bundle> bundles,
                                              std::span<const NodeCapacity> nodes);

// Whether the nodes could hold the bundles if nothing else ran on them.
bool feasible(std::span<const Bundle> bundles, std::span<const NodeCapacity> nodes);

// In words why the bundles are not placed: what they need, and who has what.
std::string explain(std::span<const Bundle> bundles, std::span<const NodeCapacity> nodes);

}  // namespace troupe::scheduler
