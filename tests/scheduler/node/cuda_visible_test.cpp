#include "scheduler/node/cuda_visible.h"

#include <doctest/doctest.h>

namespace troupe::scheduler {
namespace {

// Four GPUs; the third is divided in two.
std::vector<wire::GpuDevice> visible_candidates() {
  std::vector<wire::GpuDevice> devices(5);
  devices[0].uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
  devices[1].uuid = "GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6";
  devices[2].uuid = "MIG-aa11";
  devices[3].uuid = "MIG-aa22";
  devices[4].uuid = "GPU-1111";
  const std::uint32_t indices[] = {0, 1, 2, 2, 3};
  for (std::size_t i = 0; i < devices.size(); ++i) devices[i].index = indices[i];
  devices[2].parent_uuid = devices[3].parent_uuid = "GPU-7777";
  return devices;
}

std::vector<std::string> seen_with(std::string_view value) {
  std::vector<std::string> uuids;
  for (const auto& device : cuda_visible(value, visible_candidates())) {
    uuids.push_back(device.uuid.substr(0, 8));
  }
  return uuids;
}
using Seen = std::vector<std::string>;

TEST_CASE("CUDA_VISIBLE_DEVICES: indices, in its order, up to the first that is none") {
  CHECK(seen_with("") == Seen{});
  CHECK(seen_with("1") == Seen{"GPU-8932"});
  CHECK(seen_with("3,0") == Seen{"GPU-1111", "GPU-8932"});
  CHECK(seen_with(" 3 , 0 ") == Seen{"GPU-1111", "GPU-8932"});
  CHECK(seen_with("0,-1,1") == Seen{"GPU-8932"});
  CHECK(seen_with("0,4,1") == Seen{"GPU-8932"});
  CHECK(seen_with("-1") == Seen{});
  CHECK(seen_with("NoDevFiles") == Seen{});
  CHECK(seen_with("3,,0") == Seen{"GPU-1111"});
  CHECK(seen_with("2") == Seen{"MIG-aa11"});  // a divided one: its first instance
  CHECK(seen_with("0,1,0") == Seen{});        // twice
}

TEST_CASE("CUDA_VISIBLE_DEVICES: UUIDs of GPUs and of instances") {
  CHECK(seen_with("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6") == Seen{"GPU-8932"});
  CHECK(seen_with("GPU-1111,GPU-8932a") == Seen{"GPU-1111", "GPU-8932"});
  CHECK(seen_with("GPU-8932") == Seen{});  // of two
  CHECK(seen_with("GPU-1111,GPU-8932,GPU-8932f") == Seen{"GPU-1111"});
  CHECK(seen_with("MIG-aa22,MIG-aa11") == Seen{"MIG-aa22", "MIG-aa11"});
  CHECK(seen_with("MIG-aa") == Seen{});
  CHECK(seen_with("GPU-7777") == Seen{"MIG-aa11"});
  CHECK(seen_with("GPU-1111,0") == Seen{"GPU-1111"});  // of another kind
  CHECK(seen_with("GPU-1111,GPU-1111") == Seen{});
  CHECK(names_by_index("0,1"));
  CHECK_FALSE(names_by_index("GPU-1"));
  CHECK_FALSE(names_by_index(""));
}

TEST_CASE("what a process is told of its devices") {
  auto devices = visible_candidates();
  using Environment = std::map<std::string, std::string>;
  CHECK(cuda_environment({devices[4], devices[2]}) ==
        Environment{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                    {"CUDA_VISIBLE_DEVICES", "GPU-1111,MIG-aa11"}});
  wire::GpuDevice by_file;
  by_file.index = 3;
  by_file.minor_number = 5;
  CHECK(cuda_environment({by_file}).at("CUDA_VISIBLE_DEVICES") == "3");
  CHECK(cuda_environment({wire::GpuDevice()}).at("CUDA_VISIBLE_DEVICES") == "");
  // What is known of their ways to the others goes with them, whoever of two was asked.
  const auto pair = [&](std::size_t a, std::size_t b) {
    return std::pair(devices[a].uuid, devices[b].uuid);
  };
  const auto told = gpu_facts_environment({devices[0]}, {pair(0, 1), pair(2, 0), pair(1, 2)});
  REQUIRE(told.size() == 1);
  CHECK(told.begin()->first == "TROUPE_GPUS_WITHOUT_PEER_ACCESS");
  CHECK(told.begin()->second == devices[1].uuid + "," + devices[2].uuid);
  CHECK(gpu_facts_environment({devices[0]}, {pair(1, 2)}).empty());
  CHECK(gpu_facts_environment({}, {pair(1, 2)}).empty());
  // … and the NUMA node that is theirs.
  auto near = devices[0], far = devices[1];
  near.numa_node = 0;
  far.numa_node = 1;
  CHECK(gpu_facts_environment({far}, {}).at("TROUPE_GPU_NUMA_NODE") == "1");
  CHECK(gpu_facts_environment({near, near}, {}).at("TROUPE_GPU_NUMA_NODE") == "0");
  CHECK(gpu_facts_environment({near, far}, {}).empty());
}

}  // namespace
}  // namespace troupe::scheduler
