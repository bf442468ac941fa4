#include "train/trainer/run_access.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

NodeInfo node_at(std::uint64_t number, const std::string& host,
                 NodeState state = NodeState::kAlive) {
  NodeInfo node{.node_id = NodeId{1, number}, .state = state};
  node.endpoint.host = host;
  return node;
}

TEST_CASE("a driver's own node is the first living one at an address of its machine") {
  const std::vector<net::InterfaceAddress> own = {
      {.interface = "lo", .address = "127.0.0.1"},
      {.interface = "eth0", .address = "10.0.0.2"},
      {.interface = "eth0", .address = "fe80::1", .v6 = true}};
  const auto far = node_at(1, "10.0.0.1");
  const auto gone = node_at(2, "10.0.0.2", NodeState::kDead);
  const auto here = node_at(3, "10.0.0.2"), also_here = node_at(4, "127.0.0.1");
  CHECK(node_of({far, gone, here, also_here}, own) == here.node_id);
  CHECK_FALSE(node_of({far, gone}, own));
  CHECK_FALSE(node_of({}, own));
  // Any machine's driver has that address.
  CHECK_FALSE(node_of({far, also_here}, own));
  CHECK(node_of({also_here}, own) == also_here.node_id);
}

}  // namespace
}  // namespace troupe::train
