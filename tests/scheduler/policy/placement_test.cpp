#include "scheduler/policy/placement.h"

#include <doctest/doctest.h>

#include "scheduler/policy/resources.h"

using namespace troupe;
using namespace troupe::scheduler;

namespace {

NodeCapacity node(std::uint64_t id, std::int64_t cpus, std::int64_t free_cpus) {
  return {NodeId{id, id},
          "n" + std::to_string(id),
          {{"CPU", cpus * 10'000}},
          {{"CPU", free_cpus * 10'000}}};
}
Bundle bundle(std::int64_t cpus) { return {{{"CPU", cpus * 10'000}}, {}, {}}; }
std::vector<Bundle> bundles(std::size_t count, std::int64_t cpus) {
  return std::vector<Bundle>(count, bundle(cpus));
}

}  // namespace

TEST_CASE("a gang goes to one node where one holds it, the tightest") {
  const std::vector nodes = {node(1, 8, 8), node(2, 4, 4), node(3, 8, 2)};
  const auto placed = place(bundles(4, 1), nodes);
  REQUIRE(placed);
  // All three could rank as "one node": the one whose room is smallest relative to its size, among
  // those that hold the gang, is a tie of the empty ones; the first of them is taken.
  CHECK(*placed == std::vector<std::size_t>{0, 0, 0, 0});
  const std::vector busier = {node(1, 8, 8), node(2, 8, 5), node(3, 8, 2)};
  CHECK(*place(bundles(4, 1), busier) == std::vector<std::size_t>{1, 1, 1, 1});
}

TEST_CASE("a gang that spans nodes keeps neighbours together") {
  const std::vector nodes = {node(1, 2, 2), node(2, 4, 4)};
  const auto placed = place(bundles(6, 1), nodes);
  REQUIRE(placed);
  CHECK(*placed == std::vector<std::size_t>{1, 1, 1, 1, 0, 0});
}

TEST_CASE("all or nothing") {
  const std::vector nodes = {node(1, 2, 2), node(2, 4, 4)};
  CHECK_FALSE(place(bundles(7, 1), nodes));
  CHECK_FALSE(feasible(bundles(7, 1), nodes));
  const std::vector busy = {node(1, 2, 0), node(2, 4, 4)};
  CHECK_FALSE(place(bundles(6, 1), busy));
  CHECK(feasible(bundles(6, 1), busy));
}

TEST_CASE("unequal bundles get a second try with the largest first") {
  const std::vector nodes = {node(1, 3, 3), node(2, 2, 2)};
  const std::vector mixed = {bundle(2), bundle(3)};
  const auto placed = place(mixed, nodes);
  REQUIRE(placed);
  CHECK(*placed == std::vector<std::size_t>{1, 0});
}

TEST_CASE("affinity is hard, preference is soft") {
  const std::vector nodes = {node(1, 2, 2), node(2, 2, 1)};
  std::vector one = bundles(1, 2);
  one[0].preferred = NodeId{2, 2};
  CHECK(*place(one, nodes) == std::vector<std::size_t>{0});
  one[0].affinity = NodeId{2, 2};
  CHECK_FALSE(place(one, nodes));
  one[0].affinity = NodeId{9, 9};
  CHECK_FALSE(feasible(one, nodes));
  CHECK(explain(one, nodes).find("not in the cluster") != std::string::npos);
}

TEST_CASE("the explanation says what is needed and who has what") {
  const std::vector nodes = {node(1, 2, 1), node(2, 4, 0)};
  CHECK(explain(bundles(3, 2), nodes) ==
        "needs 3 × (CPU 2) at once; n1 has CPU 1 of 2 free; n2 has CPU 0 of 4 free");
  CHECK(explain(bundles(1, 2), {}) == "needs CPU 2; no node has joined yet");
}
