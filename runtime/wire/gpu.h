#pragma once
// GPUs of a node, as nodes know them and tools show them. Plain values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ids.h"
#include "troupe/detail/wire_fields.h"

namespace troupe::wire {

// What lies between two GPUs of a node, nearest first: NVML's nvmlGpuTopologyLevel_t, with the
// names that `nvidia-smi topo -m` has for them.
enum class GpuPath : std::uint8_t {
  kInternal = 0,    // one board
  kSwitch = 1,      // PIX: one PCIe switch
  kSwitches = 2,    // PXB: several PCIe switches
  kHostBridge = 3,  // PHB: the host bridge
  kNumaNode = 4,    // NODE: host bridges of one NUMA node
  kSystem = 5,      // SYS: between NUMA nodes; or not known
};
constexpr GpuPath last_value(GpuPath) { return GpuPath::kSystem; }
std::string_view gpu_path_name(GpuPath path);

struct GpuLink {
  std::string peer;  // UUID
  GpuPath path = GpuPath::kSystem;
  std::uint32_t nvlinks = 0;  // active ones between the two, through switches, too
  bool peer_access = false;   // each may read and write the other's memory
  TROUPE_WIRE(GpuLink, peer, path, nvlinks, peer_access);
  friend bool operator==(const GpuLink&, const GpuLink&) = default;
};

// A whole GPU, or an instance of one that is divided (MIG).
struct GpuDevice {
  std::uint32_t index = 0;  // of the GPU, in PCI bus order, as nvidia-smi counts; from 0
  std::string uuid;         // "GPU-…", "MIG-…"; empty: an amount that no device stands for
  std::string name;
  std::string pci_bus_id;           // "0000:1b:00.0", as in /sys/bus/pci/devices
  std::int32_t minor_number = -1;   // of /dev/nvidiaN; -1: unknown, as the next three
  std::int32_t numa_node = -1;      // of the bus it is on
  std::int32_t compute_major = -1;  // compute capability
  std::int32_t compute_minor = -1;
  std::uint64_t memory_total_bytes = 0;
  std::string parent_uuid;     // of the divided GPU that it is an instance of; empty: none
  std::vector<GpuLink> links;  // to the others of its node; of an instance: none
  TROUPE_WIRE(GpuDevice, index, uuid, name, pci_bus_id, minor_number, numa_node, compute_major,
              compute_minor, memory_total_bytes, parent_uuid, links);
  friend bool operator==(const GpuDevice&, const GpuDevice&) = default;
  bool is_instance() const { return !parent_uuid.empty(); }
};

enum class GpuState : std::uint8_t {
  kFree = 0,
  kHeld = 1,       // by processes that run
  kReleasing = 2,  // they are gone, and the memory is not free yet
  kStuck = 3,      // … for longer than that may take: nobody gets it until it is
  kLost = 4,       // it fell off the bus, or its hardware failed: nobody gets it any more
};
constexpr GpuState last_value(GpuState) { return GpuState::kLost; }
std::string_view gpu_state_name(GpuState state);

struct GpuHolder {
  ActorId actor_id;
  std::string label;       // the actor's name, or its class
  std::int64_t share = 0;  // of the device, in fixed point (kResourceUnit)
  TROUPE_WIRE(GpuHolder, actor_id, label, share);
  friend bool operator==(const GpuHolder&, const GpuHolder&) = default;
};

// A device as its node sees it.
struct GpuStatus {
  GpuDevice device;
  GpuState state = GpuState::kFree;
  std::uint64_t memory_used_bytes = 0;  // as last read, a few seconds ago at most
  std::string trouble;                  // why it is stuck or lost
  std::vector<GpuHolder> holders;
  TROUPE_WIRE(GpuStatus, device, state, memory_used_bytes, trouble, holders);
  friend bool operator==(const GpuStatus&, const GpuStatus&) = default;
};

}  // namespace troupe::wire
