#pragma once
// NVIDIA's management library (NVML), as far as a node uses it: which GPUs there are, how they are
// linked, what is on them, what happens to them.
//
// The library is loaded at run time (libnvidia-ml.so.1 comes with the driver); without it there are
// no GPUs to manage. Prototypes and layouts are those of NVML's API reference; functions that
// changed carry a suffix (`_v2`), and a name always means one layout. Everything may be called from
// any thread, as NVML's functions may.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/wire/gpu.h"

namespace troupe::scheduler {

// NVML's own types and functions, thin: what tests put a fake in the place of.
namespace nvml {

using Return = int;  // nvmlReturn_t
inline constexpr Return kSuccess = 0;
inline constexpr Return kInvalidArgument = 2;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kNotFound = 6;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kTimeout = 10;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;
inline constexpr Return kOperatingSystem = 17;
inline constexpr Return kVersionMismatch = 18;  // of library and driver
inline constexpr Return kUnknown = 999;

struct DeviceTag;
using Device = DeviceTag*;  // nvmlDevice_t: of a GPU, or of a MIG instance
struct EventSetTag;
using EventSet = EventSetTag*;

// nvmlPciInfo_t
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  char bus_id[32];
};
// nvmlMemory_t; bytes
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;  // with what the driver keeps for itself
};
// nvmlProcessInfo_t, from its second version on
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // all ones: not known
  unsigned gpu_instance;          // all ones: none, as the next one
  unsigned compute_instance;
};
// nvmlEventData_t, from its second version on
struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;  // an Xid; 999 is an unknown one
  unsigned gpu_instance;    // all ones: none, as the next one
  unsigned compute_instance;
};
inline constexpr unsigned kNoInstance = 0xFFFFFFFFu;
inline constexpr unsigned long long kNoValue = ~0ULL;
inline constexpr unsigned long long kEventDoubleBitEcc = 0x2;
inline constexpr unsigned long long kEventXid = 0x8;
inline constexpr int kP2pRead = 0;  // nvmlGpuP2PCapsIndex_t
inline constexpr int kP2pNvlink = 2;
inline constexpr int kP2pOk = 0;  // nvmlGpuP2PStatus_t
inline constexpr unsigned kNvlinksMax = 36;

// The functions. Those after `optional` may be missing in older libraries (null).
struct Table {
  Return (*init)() = nullptr;  // nvmlInit_v2
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;             // nvmlDeviceGetCount_v2
  Return (*device_by_index)(unsigned, Device*) = nullptr;  // …HandleByIndex_v2
  Return (*uuid)(Device, char*, unsigned) = nullptr;       // nvmlDeviceGetUUID
  Return (*name)(Device, char*, unsigned) = nullptr;       // nvmlDeviceGetName
  Return (*pci_info)(Device, PciInfo*) = nullptr;          // nvmlDeviceGetPciInfo_v3
  Return (*memory)(Device, Memory*) = nullptr;             // nvmlDeviceGetMemoryInfo
  // optional
  Return (*minor_number)(Device, unsigned*) = nullptr;             // nvmlDeviceGetMinorNumber
  Return (*compute_capability)(Device, int*, int*) = nullptr;      // …GetCudaComputeCapability
  Return (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;  // …ComputeRunningProcesses_v3
  Return (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;      // nvmlDeviceGetMigMode
  Return (*mig_count_max)(Device, unsigned*) = nullptr;            // …GetMaxMigDeviceCount
  Return (*mig_by_index)(Device, unsigned, Device*) = nullptr;     // …MigDeviceHandleByIndex
  Return (*gpu_instance)(Device, unsigned*) = nullptr;             // …GetGpuInstanceId
  Return (*common_ancestor)(Device, Device, int*) = nullptr;       // …TopologyCommonAncestor
  Return (*p2p_status)(Device, Device, int, int*) = nullptr;       // nvmlDeviceGetP2PStatus
  Return (*nvlink_state)(Device, unsigned, unsigned*) = nullptr;   // …GetNvLinkState
  Return (*nvlink_remote)(Device, unsigned, PciInfo*) = nullptr;   // …NvLinkRemotePciInfo_v2
  Return (*event_types)(Device, unsigned long long*) = nullptr;    // …GetSupportedEventTypes
  Return (*event_set_create)(EventSet*) = nullptr;                 // nvmlEventSetCreate
  Return (*event_register)(Device, unsigned long long, EventSet) = nullptr;
  Return (*event_wait)(EventSet, EventData*, unsigned) = nullptr;  // nvmlEventSetWait_v2
  Return (*event_set_free)(EventSet) = nullptr;                    // nvmlEventSetFree
};

}  // namespace nvml

// What is on a device.
struct GpuReading {
  struct Process {
    std::int64_t pid = 0;
    std::optional<std::uint64_t> used_bytes;
    friend bool operator==(const Process&, const Process&) = default;
  };
  std::string uuid;
  // Not ok: it did not answer; the rest is not set.
  Status status;
  bool lost = false;  // … because it fell off the bus
  std::uint64_t used_bytes = 0;
  std::vector<Process> processes;  // with a CUDA context; empty where the driver does not say
};

// Something a driver reported about a device: an Xid, or a double-bit ECC error.
struct GpuFault {
  std::string uuid;                  // of the device that it hit: an instance's where NVML says so
  std::optional<std::uint64_t> xid;  // nothing: ECC
};

// UUIDs of GPUs of one node.
using GpuPairs = std::vector<std::pair<std::string, std::string>>;

// An initialised NVML.
class Nvml {
 public:
  // What was found, and what could not be.
  struct Inventory {
    std::vector<wire::GpuDevice> devices;  // in PCI bus order; of a divided GPU its instances
    // Of whose memory NVML says that the first cannot read the second's; what it does not say of is
    // not among them.
    GpuPairs without_peer_access;
    std::vector<std::string> problems;  // devices that do not answer, in words
  };

  // This machine's. kNotFound: it has no such library. kFailedPrecondition: what NVML says, and the
  // way out.
  static Result<std::shared_ptr<Nvml>> open();
  // kFailedPrecondition as above; kUnsupported where a function is missing that every version has.
  static Result<std::shared_ptr<Nvml>> open(const nvml::Table& table);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // `files`: where the devices' NUMA nodes are found (/sys/bus/pci).
  Result<Inventory> devices(FileSystem& files);
  // Memory and processes of a device that devices() listed.
  GpuReading read(const std::string& uuid) const;

  // Begins to listen to the devices of devices() that have not fallen off the bus. kUnsupported:
  // none of them reports anything.
  Status listen();
  // After a failure of wait_fault(), which one device that is gone makes fail for all: listens to
  // those that are left. False where none has gone since, or no other reports anything.
  bool listen_to_the_rest();
  // The next fault, waiting for at most `timeout_ms`; nothing: there was none. After listen(), one
  // thread at a time. An error: NVML's.
  Result<std::optional<GpuFault>> wait_fault(unsigned timeout_ms) const;

 private:
  Nvml(const nvml::Table& table, void* library) : table_(table), library_(library) {}
  static Result<std::shared_ptr<Nvml>> start(const nvml::Table& table, void* library);
  Status failure(nvml::Return code, std::string_view what) const;
  Result<std::string> uuid_of(nvml::Device device) const;
  Result<wire::GpuDevice> describe(nvml::Device device, unsigned index, FileSystem& files,
                                   nvml::PciInfo& pci) const;
  Status add_instances(nvml::Device parent, const wire::GpuDevice& description,
                       Inventory& inventory);
  bool divided(nvml::Device device) const;
  wire::GpuLink link(std::size_t from, std::size_t to) const;
  // NVML's nvmlGpuP2PStatus_t; nothing: it does not say.
  std::optional<int> p2p(std::size_t from, std::size_t to, int capability) const;

  // A whole GPU, divided or not.
  struct Board {
    nvml::Device handle = nullptr;
    nvml::PciInfo pci{};
    std::string uuid;
  };
  struct Instance {
    std::string parent_uuid;
    unsigned gpu_instance = nvml::kNoInstance;
  };

  const nvml::Table table_;
  void* library_ = nullptr;  // of dlopen; null: a fake
  bool started_ = false;
  std::vector<Board> boards_;
  std::map<std::string, nvml::Device> handles_;  // of all that devices() listed, by UUID
  std::map<std::string, Instance> instances_;    // by UUID
  nvml::EventSet events_ = nullptr;
  int listened_to_ = 0;  // devices
};

}  // namespace troupe::scheduler
