#include "scheduler/policy/gpu_topology.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

namespace troupe::scheduler {
namespace {

std::vector<wire::GpuDevice> some_gpus(std::size_t count) {
  std::vector<wire::GpuDevice> devices(count);
  for (std::size_t i = 0; i < count; ++i) devices[i].uuid = "GPU-" + std::to_string(i);
  return devices;
}

void connect(std::vector<wire::GpuDevice>& devices, std::size_t a, std::size_t b,
             wire::GpuPath path, std::uint32_t nvlinks = 0) {
  devices[a].links.push_back({devices[b].uuid, path, nvlinks, nvlinks > 0});
  devices[b].links.push_back({devices[a].uuid, path, nvlinks, nvlinks > 0});
}

std::vector<std::size_t> first(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}
using Positions = std::vector<std::size_t>;

TEST_CASE("GPUs go by the island of NVLinks, then by the PCI bus") {
  // 0-3 and 4-7 are linked with each other; 2 and 3 share a switch, as 6 and 7 do.
  auto devices = some_gpus(8);
  for (std::size_t a = 0; a < 8; ++a) {
    for (std::size_t b = a + 1; b < 8; ++b) {
      connect(devices, a, b, wire::GpuPath::kSystem, a / 4 == b / 4 ? 2 : 0);
    }
  }
  const GpuTopology topology(devices);
  CHECK(topology.choose(first(8), 4) == Positions{0, 1, 2, 3});
  CHECK(topology.choose({1, 2, 3, 4, 5, 6, 7}, 4) == Positions{4, 5, 6, 7});
  CHECK(topology.choose({0, 3, 5, 6}, 2) == Positions{0, 3});
  // One goes where it breaks the least.
  CHECK(topology.choose({0, 4, 5, 6, 7}, 1) == Positions{0});
  CHECK(topology.choose({0, 1, 4, 5, 6, 7}, 2) == Positions{0, 1});
  CHECK(topology.choose({0, 1}, 3).empty());
  CHECK(topology.choose({}, 1).empty());
}

TEST_CASE("without NVLinks the nearest on the bus, or of one NUMA node") {
  auto devices = some_gpus(4);
  connect(devices, 0, 1, wire::GpuPath::kSystem);
  connect(devices, 0, 2, wire::GpuPath::kNumaNode);
  connect(devices, 0, 3, wire::GpuPath::kSystem);
  connect(devices, 1, 2, wire::GpuPath::kSystem);
  connect(devices, 1, 3, wire::GpuPath::kSwitch);
  connect(devices, 2, 3, wire::GpuPath::kSystem);
  CHECK(GpuTopology(devices).choose(first(4), 2) == Positions{1, 3});
  CHECK(GpuTopology(devices).choose({0, 1, 2}, 2) == Positions{0, 2});
  CHECK(GpuTopology(devices).nearness(3, 1) > GpuTopology(devices).nearness(0, 2));

  auto instances = some_gpus(4);  // no links are known of them
  for (std::size_t i = 0; i < 4; ++i) instances[i].numa_node = static_cast<std::int32_t>(i % 2);
  CHECK(GpuTopology(instances).choose({1, 2, 3}, 2) == Positions{1, 3});
}

TEST_CASE("more links are nearer, and the worst pair decides") {
  auto devices = some_gpus(4);
  connect(devices, 0, 1, wire::GpuPath::kSystem, 1);
  connect(devices, 2, 3, wire::GpuPath::kSystem, 4);
  CHECK(GpuTopology(devices).choose(first(4), 2) == Positions{2, 3});
  // 0-1 and 1-2 are linked, 0-2 is not: three of a whole island are better.
  auto line = some_gpus(6);
  connect(line, 0, 1, wire::GpuPath::kSystem, 9);
  connect(line, 1, 2, wire::GpuPath::kSystem, 9);
  for (std::size_t a = 3; a < 6; ++a) {
    for (std::size_t b = a + 1; b < 6; ++b) connect(line, a, b, wire::GpuPath::kSystem, 1);
  }
  CHECK(GpuTopology(line).choose(first(6), 3) == Positions{3, 4, 5});
}

TEST_CASE("more GPUs than are tried in every combination") {
  auto devices = some_gpus(32);
  for (std::size_t a = 0; a < 32; ++a) {
    for (std::size_t b = a + 1; b < 32; ++b) {
      connect(devices, a, b, wire::GpuPath::kSystem, a % 4 == b % 4 ? 1 : 0);
    }
  }
  const auto chosen = GpuTopology(devices).choose(first(32), 8);
  REQUIRE(chosen.size() == 8);
  CHECK(std::all_of(chosen.begin(), chosen.end(),
                    [&](std::size_t i) { return i % 4 == chosen.front() % 4; }));
}

}  // namespace
}  // namespace troupe::scheduler
