#include "scheduler/node/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace troupe::scheduler {
namespace {

// NVML's layouts on a 64-bit Linux.
static_assert(sizeof(nvml::PciInfo) == 68 && offsetof(nvml::PciInfo, bus_id) == 36);
static_assert(sizeof(nvml::Memory) == 24);
static_assert(sizeof(nvml::ProcessInfo) == 24 && offsetof(nvml::ProcessInfo, gpu_instance) == 16);
static_assert(sizeof(nvml::EventData) == 32 && offsetof(nvml::EventData, gpu_instance) == 24);

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr unsigned kTextBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE, …NAME_V2…
constexpr std::uint64_t kSysBytesMax = 4096;
// Of a device; more than that many are not counted.
constexpr unsigned kProcessesMax = 4096;
constexpr int kProcessTries = 4;

template <typename Function>
void find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

nvml::Table table_of(void* library) {
  nvml::Table t;
  find_symbol(library, "nvmlInit_v2", t.init);
  find_symbol(library, "nvmlShutdown", t.shutdown);
  find_symbol(library, "nvmlErrorString", t.error_string);
  find_symbol(library, "nvmlDeviceGetCount_v2", t.device_count);
  find_symbol(library, "nvmlDeviceGetHandleByIndex_v2", t.device_by_index);
  find_symbol(library, "nvmlDeviceGetUUID", t.uuid);
  find_symbol(library, "nvmlDeviceGetName", t.name);
  find_symbol(library, "nvmlDeviceGetPciInfo_v3", t.pci_info);
  find_symbol(library, "nvmlDeviceGetMemoryInfo", t.memory);
  find_symbol(library, "nvmlDeviceGetMinorNumber", t.minor_number);
  find_symbol(library, "nvmlDeviceGetCudaComputeCapability", t.compute_capability);
  find_symbol(library, "nvmlDeviceGetComputeRunningProcesses_v3", t.processes);
  // Of drivers 470 to 510: the same layout.
  if (t.processes == nullptr) {
    find_symbol(library, "nvmlDeviceGetComputeRunningProcesses_v2", t.processes);
  }
  find_symbol(library, "nvmlDeviceGetMigMode", t.mig_mode);
  find_symbol(library, "nvmlDeviceGetMaxMigDeviceCount", t.mig_count_max);
  find_symbol(library, "nvmlDeviceGetMigDeviceHandleByIndex", t.mig_by_index);
  find_symbol(library, "nvmlDeviceGetGpuInstanceId", t.gpu_instance);
  find_symbol(library, "nvmlDeviceGetTopologyCommonAncestor", t.common_ancestor);
  find_symbol(library, "nvmlDeviceGetP2PStatus", t.p2p_status);
  find_symbol(library, "nvmlDeviceGetNvLinkState", t.nvlink_state);
  find_symbol(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", t.nvlink_remote);
  find_symbol(library, "nvmlDeviceGetSupportedEventTypes", t.event_types);
  find_symbol(library, "nvmlEventSetCreate", t.event_set_create);
  find_symbol(library, "nvmlDeviceRegisterEvents", t.event_register);
  find_symbol(library, "nvmlEventSetWait_v2", t.event_wait);
  find_symbol(library, "nvmlEventSetFree", t.event_set_free);
  return t;
}

// The first function that every version has and this one has not.
const char* missing_in(const nvml::Table& t) {
  if (t.init == nullptr) return "nvmlInit_v2";
  if (t.shutdown == nullptr) return "nvmlShutdown";
  if (t.error_string == nullptr) return "nvmlErrorString";
  if (t.device_count == nullptr) return "nvmlDeviceGetCount_v2";
  if (t.device_by_index == nullptr) return "nvmlDeviceGetHandleByIndex_v2";
  if (t.uuid == nullptr) return "nvmlDeviceGetUUID";
  if (t.name == nullptr) return "nvmlDeviceGetName";
  if (t.pci_info == nullptr) return "nvmlDeviceGetPciInfo_v3";
  if (t.memory == nullptr) return "nvmlDeviceGetMemoryInfo";
  return nullptr;
}

const char* way_out(nvml::Return code) {
  switch (code) {
    case nvml::kDriverNotLoaded:
      return "load the NVIDIA driver ('modprobe nvidia'), or start the node with --num-gpus 0";
    case nvml::kVersionMismatch:
      return "the driver was updated while its older kernel module stayed loaded: reboot, or "
             "unload "
             "and load it again ('rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia', 'modprobe "
             "nvidia')";
    case nvml::kNoPermission:
      return "let this user read and write /dev/nvidiactl and /dev/nvidia*";
    case nvml::kOperatingSystem:
      return "the system keeps this process from the GPUs: grant its container or control group "
             "/dev/nvidiactl and /dev/nvidia*";
    case nvml::kGpuIsLost:
      return "it fell off the bus: look for Xid errors in 'dmesg', reset or replace it";
    case nvml::kResetRequired:
      return "reset it ('nvidia-smi --gpu-reset -i INDEX') or reboot";
    default:
      return "'nvidia-smi' on this machine and 'dmesg | grep -i nvrm' say more";
  }
}

wire::GpuPath path_of(int ancestor) {
  // nvmlGpuTopologyLevel_t counts in tens.
  return ancestor < 0 || ancestor > 50 ? wire::GpuPath::kSystem
                                       : static_cast<wire::GpuPath>(ancestor / 10);
}

bool same_place(const nvml::PciInfo& a, const nvml::PciInfo& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

}  // namespace

Result<std::shared_ptr<Nvml>> Nvml::open() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return error(Code::kNotFound, "there is no {} here: {}", kLibrary, why ? why : "no reason");
  }
  return start(table_of(library), library);
}

Result<std::shared_ptr<Nvml>> Nvml::open(const nvml::Table& table) { return start(table, nullptr); }

Result<std::shared_ptr<Nvml>> Nvml::start(const nvml::Table& table, void* library) {
  const char* missing = missing_in(table);
  Status failed;
  if (missing != nullptr) {
    failed = error(Code::kUnsupported, "{} has no {}: its driver is older than 384, update it",
                   kLibrary, missing);
  } else if (const nvml::Return code = table.init(); code != nvml::kSuccess) {
    failed = Nvml(table, nullptr).failure(code, "NVML does not start");
  }
  if (!failed.ok()) {
    if (library != nullptr) ::dlclose(library);
    return failed;
  }
  auto nvml = std::shared_ptr<Nvml>(new Nvml(table, library));
  nvml->started_ = true;
  return nvml;
}

Nvml::~Nvml() {
  if (events_ != nullptr && table_.event_set_free != nullptr) (void)table_.event_set_free(events_);
  if (started_) (void)table_.shutdown();
  if (library_ != nullptr) ::dlclose(library_);
}

Status Nvml::failure(nvml::Return code, std::string_view what) const {
  const char* said = table_.error_string(code);
  return error(code == nvml::kNotSupported ? Code::kUnsupported : Code::kFailedPrecondition,
               "{}: NVML says '{}' (error {}); {}", what, said ? said : "nothing", code,
               way_out(code));
}

// --- what there is -------------------------------------------------------------------------------

Result<std::string> Nvml::uuid_of(nvml::Device device) const {
  char text[kTextBytes] = {};
  const nvml::Return code = table_.uuid(device, text, kTextBytes);
  if (code != nvml::kSuccess) return failure(code, "a GPU does not tell its UUID");
  text[kTextBytes - 1] = '\0';
  return std::string(text);
}

Result<wire::GpuDevice> Nvml::describe(nvml::Device device, unsigned index, FileSystem& files,
                                       nvml::PciInfo& pci) const {
  const auto failed = [&](nvml::Return code, const char* what) {
    return failure(code, fmt::format("GPU {} does not tell its {}", index, what));
  };
  wire::GpuDevice gpu;
  gpu.index = index;
  gpu.uuid = TROUPE_TRY(uuid_of(device));
  char text[kTextBytes] = {};
  if (const auto code = table_.name(device, text, kTextBytes); code != nvml::kSuccess) {
    return failed(code, "name");
  }
  text[kTextBytes - 1] = '\0';
  gpu.name = text;
  if (const auto code = table_.pci_info(device, &pci); code != nvml::kSuccess) {
    return failed(code, "place on the PCI bus");
  }
  gpu.pci_bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
  nvml::Memory memory{};
  if (const auto code = table_.memory(device, &memory); code != nvml::kSuccess) {
    return failed(code, "memory");
  }
  gpu.memory_total_bytes = memory.total;
  unsigned minor = 0;
  if (table_.minor_number != nullptr && table_.minor_number(device, &minor) == nvml::kSuccess) {
    gpu.minor_number = static_cast<std::int32_t>(minor);
  }
  int major_version = 0, minor_version = 0;
  if (table_.compute_capability != nullptr &&
      table_.compute_capability(device, &major_version, &minor_version) == nvml::kSuccess) {
    gpu.compute_major = major_version;
    gpu.compute_minor = minor_version;
  }
  const auto numa =
      files.read("/sys/bus/pci/devices/" + gpu.pci_bus_id + "/numa_node", kSysBytesMax);
  if (numa.ok()) {
    std::int32_t node = -1;
    const auto parsed = std::from_chars(numa->data(), numa->data() + numa->size(), node);
    if (parsed.ec == std::errc()) gpu.numa_node = std::max(node, -1);
  }
  return gpu;
}

bool Nvml::divided(nvml::Device device) const {
  unsigned current = 0, pending = 0;
  return table_.mig_mode != nullptr && table_.mig_count_max != nullptr &&
         table_.mig_by_index != nullptr &&
         table_.mig_mode(device, &current, &pending) == nvml::kSuccess && current == 1;
}

Status Nvml::add_instances(nvml::Device parent, const wire::GpuDevice& description,
                           Inventory& inventory) {
  unsigned count = 0;
  if (const auto code = table_.mig_count_max(parent, &count); code != nvml::kSuccess) {
    return failure(code, fmt::format("GPU {} does not tell its MIG instances", description.index));
  }
  for (unsigned i = 0; i < count; ++i) {
    nvml::Device handle = nullptr;
    const nvml::Return code = table_.mig_by_index(parent, i, &handle);
    if (code == nvml::kNotFound || code == nvml::kInvalidArgument) continue;  // none of that number
    if (code != nvml::kSuccess) {
      return failure(code, fmt::format("MIG instance {} of GPU {}", i, description.index));
    }
    wire::GpuDevice instance = description;
    instance.parent_uuid = description.uuid;
    instance.uuid = TROUPE_TRY(uuid_of(handle));
    char text[kTextBytes] = {};
    if (table_.name(handle, text, kTextBytes) == nvml::kSuccess) {
      text[kTextBytes - 1] = '\0';
      instance.name = text;
    }
    nvml::Memory memory{};
    if (const auto said = table_.memory(handle, &memory); said != nvml::kSuccess) {
      return failure(said, fmt::format("MIG instance {} of GPU {}", i, description.index));
    }
    instance.memory_total_bytes = memory.total;
    Instance known{description.uuid, nvml::kNoInstance};
    if (table_.gpu_instance != nullptr) (void)table_.gpu_instance(handle, &known.gpu_instance);
    instances_[instance.uuid] = known;
    handles_[instance.uuid] = handle;
    inventory.devices.push_back(std::move(instance));
  }
  return {};
}

std::optional<int> Nvml::p2p(std::size_t from, std::size_t to, int capability) const {
  int status = -1;
  if (table_.p2p_status == nullptr || table_.p2p_status(boards_[from].handle, boards_[to].handle,
                                                        capability, &status) != nvml::kSuccess) {
    return std::nullopt;
  }
  return status;
}

wire::GpuLink Nvml::link(std::size_t from, std::size_t to) const {
  const Board& a = boards_[from];
  const Board& b = boards_[to];
  wire::GpuLink link;
  link.peer = b.uuid;
  int ancestor = 50;
  if (table_.common_ancestor != nullptr &&
      table_.common_ancestor(a.handle, b.handle, &ancestor) == nvml::kSuccess) {
    link.path = path_of(ancestor);
  }
  link.peer_access = p2p(from, to, nvml::kP2pRead) == nvml::kP2pOk;
  if (table_.nvlink_state == nullptr) return link;
  // Through a switch the other end of a link is the switch: then all of them lead to the peer.
  std::uint32_t direct = 0, active = 0;
  for (unsigned i = 0; i < nvml::kNvlinksMax; ++i) {
    unsigned on = 0;
    const nvml::Return code = table_.nvlink_state(a.handle, i, &on);
    if (code == nvml::kInvalidArgument || code == nvml::kNotSupported) break;  // no more of them
    if (code != nvml::kSuccess || on != 1) continue;
    ++active;
    nvml::PciInfo remote{};
    if (table_.nvlink_remote != nullptr &&
        table_.nvlink_remote(a.handle, i, &remote) == nvml::kSuccess) {
      direct += same_place(remote, b.pci);
    }
  }
  const bool switched = direct == 0 && p2p(from, to, nvml::kP2pNvlink) == nvml::kP2pOk;
  link.nvlinks = switched ? active : direct;
  return link;
}

Result<Nvml::Inventory> Nvml::devices(FileSystem& files) {
  Inventory inventory;
  boards_.clear();
  handles_.clear();
  instances_.clear();
  unsigned count = 0;
  if (const auto code = table_.device_count(&count); code != nvml::kSuccess) {
    return failure(code, "NVML does not count the GPUs");
  }
  for (unsigned i = 0; i < count; ++i) {
    Board board;
    if (const auto code = table_.device_by_index(i, &board.handle); code != nvml::kSuccess) {
      inventory.problems.push_back(
          failure(code, fmt::format("GPU {} cannot be used", i)).message());
      continue;
    }
    auto gpu = describe(board.handle, i, files, board.pci);
    if (!gpu.ok()) {
      inventory.problems.push_back(gpu.status().message());
      continue;
    }
    board.uuid = gpu->uuid;
    if (divided(board.handle)) {
      const std::size_t before = inventory.devices.size();
      const Status added = add_instances(board.handle, *gpu, inventory);
      if (!added.ok()) inventory.problems.push_back(added.message());
      if (added.ok() && inventory.devices.size() == before) {
        inventory.problems.push_back(
            fmt::format("GPU {} is in MIG mode and has no instances: make some ('nvidia-smi mig "
                        "-cgi PROFILE -C'), or leave the mode ('nvidia-smi -i {} -mig 0')",
                        i, i));
      }
    } else {
      handles_[gpu->uuid] = board.handle;
      inventory.devices.push_back(std::move(*gpu));
    }
    boards_.push_back(std::move(board));
  }
  for (wire::GpuDevice& gpu : inventory.devices) {
    if (gpu.is_instance()) continue;
    const auto place = [&](const std::string& uuid) {
      return static_cast<std::size_t>(
          std::find_if(boards_.begin(), boards_.end(),
                       [&](const Board& board) { return board.uuid == uuid; }) -
          boards_.begin());
    };
    for (const wire::GpuDevice& other : inventory.devices) {
      if (other.is_instance() || other.uuid == gpu.uuid) continue;
      gpu.links.push_back(link(place(gpu.uuid), place(other.uuid)));
      const auto access = p2p(place(gpu.uuid), place(other.uuid), nvml::kP2pRead);
      if (access.value_or(nvml::kP2pOk) != nvml::kP2pOk)
        inventory.without_peer_access.emplace_back(gpu.uuid, other.uuid);
    }
  }
  return inventory;
}

// --- what is on them -----------------------------------------------------------------------------

GpuReading Nvml::read(const std::string& uuid) const {
  GpuReading reading;
  reading.uuid = uuid;
  const auto fail = [&](nvml::Return code, const char* what) {
    reading.status = failure(code, fmt::format("GPU {} does not tell its {}", uuid, what));
    reading.lost = code == nvml::kGpuIsLost;
    return reading;
  };
  const auto handle = handles_.find(uuid);
  if (handle == handles_.end()) {
    reading.status = error(Code::kNotFound, "there is no GPU {} here", uuid);
    return reading;
  }
  nvml::Memory memory{};
  if (const auto code = table_.memory(handle->second, &memory); code != nvml::kSuccess) {
    return fail(code, "memory");
  }
  reading.used_bytes = memory.used;
  if (table_.processes == nullptr) return reading;
  std::vector<nvml::ProcessInfo> found(64);
  for (int i = 0; i < kProcessTries; ++i) {
    auto count = static_cast<unsigned>(found.size());
    const nvml::Return code = table_.processes(handle->second, &count, found.data());
    if (code == nvml::kInsufficientSize) {
      // More may come meanwhile.
      found.resize(
          std::min(2 * std::max<std::size_t>(count, found.size()), std::size_t{kProcessesMax}));
      continue;
    }
    if (code == nvml::kGpuIsLost) return fail(code, "processes");
    // Virtual GPUs and some containers are not told: the memory has to say it all.
    if (code != nvml::kSuccess) return reading;
    for (unsigned k = 0; k < std::min<std::size_t>(count, found.size()); ++k) {
      GpuReading::Process process{found[k].pid, found[k].used_bytes};
      if (found[k].used_bytes == nvml::kNoValue) process.used_bytes.reset();
      reading.processes.push_back(process);
    }
    return reading;
  }
  return reading;
}

// --- what happens to them ------------------------------------------------------------------------

Status Nvml::listen() {
  const Status nothing(Code::kUnsupported, "the driver reports no errors of these GPUs to NVML");
  if (table_.event_set_create == nullptr || table_.event_register == nullptr ||
      table_.event_wait == nullptr || table_.event_set_free == nullptr || boards_.empty()) {
    return nothing;
  }
  if (events_ != nullptr) (void)table_.event_set_free(std::exchange(events_, nullptr));
  if (const auto code = table_.event_set_create(&events_); code != nvml::kSuccess) {
    events_ = nullptr;
    return failure(code, "NVML makes no event set");
  }
  listened_to_ = 0;
  for (const Board& board : boards_) {
    nvml::Memory memory{};
    if (table_.memory(board.handle, &memory) == nvml::kGpuIsLost) continue;
    unsigned long long types = nvml::kEventXid | nvml::kEventDoubleBitEcc;
    unsigned long long supported = types;
    if (table_.event_types != nullptr &&
        table_.event_types(board.handle, &supported) == nvml::kSuccess) {
      types &= supported;
    }
    listened_to_ +=
        types != 0 && table_.event_register(board.handle, types, events_) == nvml::kSuccess;
  }
  return listened_to_ > 0 ? Status() : nothing;
}

bool Nvml::listen_to_the_rest() {
  const int before = listened_to_;
  return listen().ok() && listened_to_ < before;
}

Result<std::optional<GpuFault>> Nvml::wait_fault(unsigned timeout_ms) const {
  if (events_ == nullptr) return Status(Code::kFailedPrecondition, "nobody listens to the GPUs");
  nvml::EventData data{};
  data.gpu_instance = data.compute_instance = nvml::kNoInstance;
  const nvml::Return code = table_.event_wait(events_, &data, timeout_ms);
  if (code == nvml::kTimeout) return std::optional<GpuFault>();
  if (code != nvml::kSuccess) return failure(code, "NVML does not wait for the GPUs' errors");
  GpuFault fault;
  const auto board = std::find_if(boards_.begin(), boards_.end(), [&](const Board& candidate) {
    return candidate.handle == data.device;
  });
  if (board != boards_.end()) {
    fault.uuid = board->uuid;
  } else {
    fault.uuid = TROUPE_TRY(uuid_of(data.device));
  }
  for (const auto& [uuid, instance] : instances_) {
    if (data.gpu_instance != nvml::kNoInstance && instance.parent_uuid == fault.uuid &&
        instance.gpu_instance == data.gpu_instance) {
      fault.uuid = uuid;
      break;
    }
  }
  if (data.type == nvml::kEventXid) fault.xid = data.data;
  return std::optional<GpuFault>(std::move(fault));
}

}  // namespace troupe::scheduler
