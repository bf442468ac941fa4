#include "scheduler/policy/placement.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/base/random.h"
#include "scheduler/policy/resources.h"

using namespace troupe;
using namespace troupe::scheduler;
using Strategy = wire::PlacementStrategy;

namespace {

NodeCapacity node(std::uint64_t id, std::int64_t cpus, std::int64_t free_cpus, Labels labels = {}) {
  return {NodeId{id, id},
          "n" + std::to_string(id),
          {{"CPU", cpus * 10'000}},
          {{"CPU", free_cpus * 10'000}},
          std::move(labels)};
}
Bundle bundle(std::int64_t cpus) {
  Bundle bundle;
  bundle.need = {{"CPU", cpus * 10'000}};
  return bundle;
}
std::vector<Bundle> bundles(std::size_t count, std::int64_t cpus) {
  return std::vector<Bundle>(count, bundle(cpus));
}
ClusterView view_of(const std::vector<NodeCapacity>& nodes) {
  ClusterView view;
  for (const NodeCapacity& node : nodes) view.put(node);
  return view;
}

using Places = std::optional<std::vector<std::uint64_t>>;

// The numbers of the nodes.
Places numbers(const std::optional<std::vector<NodeId>>& nodes) {
  if (!nodes) return std::nullopt;
  std::vector<std::uint64_t> result;
  for (const NodeId& id : *nodes) result.push_back(id.low);
  return result;
}
Places placed(const std::vector<Bundle>& bundles, const std::vector<NodeCapacity>& nodes,
              Strategy strategy = Strategy::kPack) {
  return numbers(place({bundles, strategy}, view_of(nodes)));
}
bool feasible(const std::vector<Bundle>& bundles, const std::vector<NodeCapacity>& nodes,
              Strategy strategy = Strategy::kPack) {
  return place_on_empty({bundles, strategy}, view_of(nodes)).has_value();
}
Places are(std::vector<std::uint64_t> numbers) { return numbers; }

}  // namespace

TEST_CASE("a gang goes to one node where one holds it, the tightest") {
  // All three could rank as "one node": the one whose room is smallest relative to its size, among
  // those that hold the gang, is a tie of the empty ones; the first of them is taken.
  CHECK(placed(bundles(4, 1), {node(1, 8, 8), node(2, 4, 4), node(3, 8, 2)}) == are({1, 1, 1, 1}));
  CHECK(placed(bundles(4, 1), {node(1, 8, 8), node(2, 8, 5), node(3, 8, 2)}) == are({2, 2, 2, 2}));
}

TEST_CASE("a gang that spans nodes keeps neighbours together") {
  CHECK(placed(bundles(6, 1), {node(1, 2, 2), node(2, 4, 4)}) == are({2, 2, 2, 2, 1, 1}));
}

TEST_CASE("all or nothing") {
  const std::vector nodes = {node(1, 2, 2), node(2, 4, 4)};
  CHECK_FALSE(placed(bundles(7, 1), nodes));
  CHECK_FALSE(feasible(bundles(7, 1), nodes));
  const std::vector busy = {node(1, 2, 0), node(2, 4, 4)};
  CHECK_FALSE(placed(bundles(6, 1), busy));
  CHECK(feasible(bundles(6, 1), busy));
}

TEST_CASE("unequal bundles get a second try with the largest first") {
  CHECK(placed({bundle(2), bundle(3)}, {node(1, 3, 3), node(2, 2, 2)}) == are({2, 1}));
}

TEST_CASE("affinity is hard, preference is soft") {
  const std::vector nodes = {node(1, 2, 2), node(2, 2, 1)};
  std::vector one = bundles(1, 2);
  one[0].preferred = NodeId{2, 2};
  CHECK(placed(one, nodes) == are({1}));
  CHECK(placed(bundles(1, 1), nodes) == are({2}));
  one[0].affinity = NodeId{2, 2};
  CHECK_FALSE(placed(one, nodes));
  one[0].affinity = NodeId{9, 9};
  CHECK_FALSE(feasible(one, nodes));
  CHECK(explain({one}, view_of(nodes)).find("not in the cluster") != std::string::npos);
}

TEST_CASE("labels: a selector is hard, a preference is soft") {
  const std::vector nodes = {node(1, 2, 2, {{"zone", "a"}}), node(2, 2, 2, {{"zone", "b"}})};
  std::vector one = bundles(1, 1);
  one[0].selector = {{"zone", false, {"b"}}};
  CHECK(placed(one, nodes) == are({2}));
  one[0].selector = {{"zone", true, {"a", "c"}}};
  CHECK(placed(one, nodes) == are({2}));
  one[0].selector = {{"zone", false, {"c"}}};
  CHECK_FALSE(placed(one, nodes));
  one[0].selector.clear();
  one[0].preference = {{"zone", false, {"b"}}};
  CHECK(placed(one, nodes) == are({2}));
  one[0].preference = {{"zone", false, {"c"}}};
  CHECK(placed(one, nodes) == are({1}));
}

TEST_CASE("STRICT_PACK is one node or none") {
  const std::vector nodes = {node(1, 4, 3), node(2, 4, 4)};
  CHECK(placed(bundles(4, 1), nodes, Strategy::kStrictPack) == are({2, 2, 2, 2}));
  CHECK_FALSE(placed(bundles(5, 1), nodes, Strategy::kStrictPack));
  CHECK(placed(bundles(5, 1), nodes, Strategy::kPack));
  std::vector apart = bundles(2, 1);
  apart[0].affinity = NodeId{1, 1};
  apart[1].affinity = NodeId{2, 2};
  CHECK_FALSE(feasible(apart, nodes, Strategy::kStrictPack));
}

TEST_CASE("SPREAD uses many nodes, and few where it must") {
  const std::vector nodes = {node(1, 4, 4), node(2, 4, 4), node(3, 4, 1)};
  // The roomiest first; then each has one.
  CHECK(placed(bundles(3, 1), nodes, Strategy::kSpread) == are({1, 2, 3}));
  CHECK(placed(bundles(2, 1), nodes, Strategy::kSpread) == are({1, 2}));
  CHECK(placed(bundles(2, 3), {node(1, 8, 8)}, Strategy::kSpread) == are({1, 1}));
  // The small one would take the place of the large one.
  CHECK(placed({bundle(1), bundle(4)}, {node(1, 4, 4), node(2, 1, 1)}, Strategy::kSpread) ==
        are({2, 1}));
}

TEST_CASE("STRICT_SPREAD is a node for each bundle, found whenever there is a way") {
  const std::vector nodes = {node(1, 4, 4), node(2, 2, 2), node(3, 1, 1)};
  CHECK_FALSE(placed(bundles(4, 1), nodes, Strategy::kStrictSpread));
  CHECK(placed({bundle(1), bundle(2), bundle(4)}, nodes, Strategy::kStrictSpread) ==
        are({3, 2, 1}));
  CHECK_FALSE(placed({bundle(1), bundle(3), bundle(3)}, nodes, Strategy::kStrictSpread));
  // Each greedy choice has to be taken back: the first wants what only the last can use.
  std::vector<Bundle> chain;
  std::vector<NodeCapacity> chained;
  for (std::uint64_t i = 1; i <= 6; ++i) {
    Bundle one = bundle(1);
    one.selector = {{"n", false, {std::to_string(i), std::to_string(i + 1)}}};
    chain.push_back(one);
    chained.push_back(node(i, 1, 1, {{"n", std::to_string(i)}}));
  }
  chain.back().selector = {{"n", false, {"1"}}};
  CHECK(placed(chain, chained, Strategy::kStrictSpread) == are({2, 3, 4, 5, 6, 1}));
}

TEST_CASE("STRICT_SPREAD agrees with trying every way") {
  SeededRandom random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<NodeCapacity> nodes;
    std::vector<Bundle> wanted;
    const std::size_t node_count = 2 + random.below(4);
    for (std::size_t i = 0; i < node_count; ++i) {
      nodes.push_back(node(i + 1, 4, static_cast<std::int64_t>(random.below(5))));
    }
    const std::size_t count = 1 + random.below(node_count);
    for (std::size_t i = 0; i < count; ++i) {
      wanted.push_back(bundle(1 + static_cast<std::int64_t>(random.below(4))));
    }
    std::vector<std::size_t> order(node_count);
    for (std::size_t i = 0; i < node_count; ++i) order[i] = i;
    bool possible = false;
    do {
      bool all = true;
      for (std::size_t i = 0; i < count; ++i) {
        all = all && fits(wanted[i].need, nodes[order[i]].available);
      }
      possible = possible || all;
    } while (std::next_permutation(order.begin(), order.end()));
    const auto found = placed(wanted, nodes, Strategy::kStrictSpread);
    REQUIRE(found.has_value() == possible);
    if (!found) continue;
    auto distinct = *found;
    std::sort(distinct.begin(), distinct.end());
    CHECK(std::unique(distinct.begin(), distinct.end()) == distinct.end());
  }
}

TEST_CASE("what a bundle's actors hold on its node counts as its own") {
  std::vector one = bundles(2, 2);
  one[0].preferred = NodeId{1, 1};
  one[0].held = {{"CPU", 10'000}};
  const std::vector nodes = {node(1, 2, 1), node(2, 2, 2)};
  for (const Strategy strategy : {Strategy::kPack, Strategy::kSpread, Strategy::kStrictSpread}) {
    CHECK(placed(one, nodes, strategy) == are({1, 2}));
  }
  one[0].held.clear();
  CHECK_FALSE(placed(one, nodes));
}

TEST_CASE("room that is kept free is nobody's") {
  const std::vector nodes = {node(1, 4, 2), node(2, 4, 4)};
  const KeptFree kept = {{NodeId{1, 1}, {{"CPU", 40'000}}}};
  CHECK(numbers(place({bundles(1, 1)}, view_of(nodes), &kept)) == are({2}));
  CHECK_FALSE(place({bundles(3, 2)}, view_of(nodes), &kept));
  CHECK(place({bundles(1, 0)}, view_of(nodes), &kept).has_value());
}

TEST_CASE("empty nodes: the freest now, whatever runs on them") {
  const std::vector nodes = {node(1, 4, 0), node(2, 4, 3), node(3, 2, 2)};
  CHECK(numbers(place_on_empty({bundles(1, 4)}, view_of(nodes))) == are({2}));
}

TEST_CASE("a node without a GPU is taken first by what needs none") {
  auto with_gpu = node(1, 4, 4);
  with_gpu.total["GPU"] = with_gpu.available["GPU"] = 10'000;
  CHECK(placed(bundles(1, 1), {with_gpu, node(2, 4, 4)}) == are({2}));
  Bundle gpu = bundle(1);
  gpu.need["GPU"] = 2'500;
  CHECK(placed({gpu}, {with_gpu, node(2, 4, 4)}) == are({1}));
  gpu.need["TPU"] = 1;
  CHECK_FALSE(placed({gpu}, {with_gpu, node(2, 4, 4)}));
}

TEST_CASE("a view keeps up with nodes that come, change and go") {
  SeededRandom random(3);
  ClusterView view;
  std::map<std::uint64_t, NodeCapacity> nodes;
  for (int step = 0; step < 2'000; ++step) {
    const std::uint64_t id = 1 + random.below(12);
    if (random.below(3) == 0) {
      view.remove(NodeId{id, id});
      nodes.erase(id);
    } else {
      auto changed = node(id, 8, static_cast<std::int64_t>(random.below(9)));
      if (random.below(2) == 0) changed.labels["zone"] = random.below(2) == 0 ? "a" : "b";
      const std::string extra = "own-" + std::to_string(random.below(4));
      if (random.below(2) == 0) changed.total[extra] = changed.available[extra] = 10'000;
      view.put(changed);
      nodes[id] = changed;
    }
    REQUIRE(view.size() == nodes.size());
    Bundle wanted = bundle(1 + static_cast<std::int64_t>(random.below(8)));
    if (random.below(2) == 0) wanted.need["own-1"] = 10'000;
    if (random.below(2) == 0) wanted.selector = {{"zone", random.below(2) == 0, {"a"}}};
    const bool possible = std::any_of(nodes.begin(), nodes.end(), [&](const auto& entry) {
      return fits(wanted.need, entry.second.available) &&
             matches(wanted.selector, entry.second.labels);
    });
    const std::vector one = {wanted};
    const auto found = place({one}, view);
    REQUIRE(found.has_value() == possible);
    if (found) {
      const auto& chosen = nodes.at((*found)[0].low);
      CHECK(fits(wanted.need, chosen.available));
      CHECK(matches(wanted.selector, chosen.labels));
    }
  }
}

TEST_CASE("the explanation says what is needed and why each node does not do") {
  const std::vector nodes = {node(1, 2, 1), node(2, 4, 0, {{"zone", "a"}})};
  CHECK(explain({bundles(3, 2)}, view_of(nodes)) ==
        "needs 3 × (CPU 2) at once; n1 has CPU 1 of 2 free; n2 has CPU 0 of 4 free");
  CHECK(explain({bundles(1, 2)}, ClusterView()) ==
        "needs CPU 2; no node is there that takes actors (troupe worker starts one)");
  std::vector picky = bundles(1, 1);
  picky[0].selector = {{"zone", false, {"b"}}};
  CHECK(
      explain({picky}, view_of(nodes)) ==
      "needs CPU 1 on a node with zone=b; n1 does not do for zone=b: it has no such label; n2 does "
      "not do for zone=b: it has zone=a");
  CHECK(explain({std::vector{bundle(1), bundle(3)}, Strategy::kStrictSpread}, view_of(nodes)) ==
        "needs 2 bundles at once, each on a node of its own, together CPU 4; one of them needs CPU "
        "3; n1 has CPU 1 of 2 free; n2 has CPU 0 of 4 free");
}

TEST_CASE("in a large cluster the explanation counts") {
  ClusterView view;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    view.put(node(i, 4, i % 2 == 0 ? 0 : 4, {{"zone", i % 10 == 1 ? "a" : "b"}}));
  }
  std::vector picky = bundles(30, 4);
  for (Bundle& one : picky) one.selector = {{"zone", false, {"b"}}};
  const std::string text = explain({picky}, view);
  CHECK(
      text.find("; of 92 more nodes, 9 do not do for zone=b, 46 have too little CPU, 37 have room, "
                "but not for all") != std::string::npos);
}
