#include "tests/scheduler/node/fake_nvml.h"

#include <chrono>
#include <cstdio>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::scheduler::tests {
namespace {

// In a class: the other sources of this program have names of their own.
struct FakeNvmlFunctions {
  static inline FakeNvml* g_fake = nullptr;

  // Handles are addresses of the descriptions, which stay where they are while a test runs.
  static FakeNvml::Gpu& at(nvml::Device device) {
    return *reinterpret_cast<FakeNvml::Gpu*>(device);
  }
  static nvml::Device handle(FakeNvml::Gpu& gpu) { return reinterpret_cast<nvml::Device>(&gpu); }

  static unsigned number_of(nvml::Device device) {
    for (unsigned i = 0; i < g_fake->gpus.size(); ++i) {
      if (handle(g_fake->gpus[i]) == device) return i;
    }
    return ~0u;
  }

  static nvml::Return put(const std::string& text, char* out, unsigned size) {
    if (text.size() >= size) return nvml::kInsufficientSize;
    std::memcpy(out, text.c_str(), text.size() + 1);
    return nvml::kSuccess;
  }

  static nvml::Return init() {
    std::lock_guard lock(g_fake->mutex);
    if (g_fake->init_answer == nvml::kSuccess) ++g_fake->inits;
    return g_fake->init_answer;
  }
  static nvml::Return shutdown() {
    std::lock_guard lock(g_fake->mutex);
    ++g_fake->shutdowns;
    return nvml::kSuccess;
  }
  static const char* error_string(nvml::Return code) {
    return code == nvml::kVersionMismatch ? "Driver/library version mismatch" : "Some Error";
  }
  static nvml::Return device_count(unsigned* count) {
    std::lock_guard lock(g_fake->mutex);
    *count = static_cast<unsigned>(g_fake->gpus.size());
    return nvml::kSuccess;
  }
  static nvml::Return device_by_index(unsigned index, nvml::Device* device) {
    std::lock_guard lock(g_fake->mutex);
    if (index >= g_fake->gpus.size()) return nvml::kInvalidArgument;
    *device = handle(g_fake->gpus[index]);
    return g_fake->gpus[index].answer;
  }
  static nvml::Return uuid(nvml::Device device, char* out, unsigned size) {
    std::lock_guard lock(g_fake->mutex);
    return put(at(device).uuid, out, size);
  }
  static nvml::Return name(nvml::Device device, char* out, unsigned size) {
    std::lock_guard lock(g_fake->mutex);
    return put(at(device).name, out, size);
  }
  static nvml::PciInfo place(unsigned bus) {
    nvml::PciInfo pci{};
    pci.bus = bus;
    std::snprintf(pci.bus_id, sizeof pci.bus_id, "%08X:%02X:%02X.0", 0u, bus, 0u);
    return pci;
  }
  static nvml::Return pci_info(nvml::Device device, nvml::PciInfo* pci) {
    std::lock_guard lock(g_fake->mutex);
    *pci = place(at(device).bus);
    return nvml::kSuccess;
  }
  static nvml::Return memory_info(nvml::Device device, nvml::Memory* memory) {
    std::lock_guard lock(g_fake->mutex);
    const FakeNvml::Gpu& gpu = at(device);
    *memory = {gpu.total, gpu.total - gpu.used, gpu.used};
    return gpu.answer;
  }
  static nvml::Return minor_number(nvml::Device device, unsigned* number) {
    std::lock_guard lock(g_fake->mutex);
    *number = number_of(device);
    return *number == ~0u ? nvml::kNotSupported : nvml::kSuccess;
  }
  static nvml::Return compute_capability(nvml::Device, int* major, int* minor) {
    *major = 9;
    *minor = 0;
    return nvml::kSuccess;
  }
  static nvml::Return processes(nvml::Device device, unsigned* count, nvml::ProcessInfo* infos) {
    std::lock_guard lock(g_fake->mutex);
    if (g_fake->processes_answer != nvml::kSuccess) return g_fake->processes_answer;
    const auto& all = at(device).processes;
    const unsigned room = *count;
    *count = static_cast<unsigned>(all.size());
    if (room < all.size()) return nvml::kInsufficientSize;
    std::copy(all.begin(), all.end(), infos);
    return nvml::kSuccess;
  }
  static nvml::Return mig_mode(nvml::Device device, unsigned* current, unsigned* pending) {
    std::lock_guard lock(g_fake->mutex);
    *current = *pending = at(device).mig ? 1 : 0;
    return nvml::kSuccess;
  }
  static nvml::Return mig_count_max(nvml::Device, unsigned* count) {
    *count = 7;
    return nvml::kSuccess;
  }
  static nvml::Return mig_by_index(nvml::Device device, unsigned index, nvml::Device* instance) {
    std::lock_guard lock(g_fake->mutex);
    auto& all = at(device).instances;
    if (index >= all.size()) return nvml::kNotFound;
    *instance = handle(all[index]);
    return nvml::kSuccess;
  }
  static nvml::Return gpu_instance(nvml::Device device, unsigned* id) {
    std::lock_guard lock(g_fake->mutex);
    *id = at(device).bus;
    return nvml::kSuccess;
  }
  static nvml::Return common_ancestor(nvml::Device a, nvml::Device b, int* level) {
    std::lock_guard lock(g_fake->mutex);
    const auto found = g_fake->ancestors.find(std::minmax(number_of(a), number_of(b)));
    *level = found == g_fake->ancestors.end() ? 50 : found->second;
    return nvml::kSuccess;
  }
  static nvml::Return p2p_status(nvml::Device, nvml::Device, int capability, int* status) {
    std::lock_guard lock(g_fake->mutex);
    const bool yes = capability == nvml::kP2pNvlink ? g_fake->switched : g_fake->peer_access;
    *status = yes ? nvml::kP2pOk : 5;
    return nvml::kSuccess;
  }
  static nvml::Return nvlink_state(nvml::Device device, unsigned link, unsigned* active) {
    std::lock_guard lock(g_fake->mutex);
    if (link >= at(device).nvlinks.size()) return nvml::kInvalidArgument;
    *active = 1;
    return nvml::kSuccess;
  }
  static nvml::Return nvlink_remote(nvml::Device device, unsigned link, nvml::PciInfo* pci) {
    std::lock_guard lock(g_fake->mutex);
    const int other = at(device).nvlinks[link];
    *pci = place(other < 0 ? 200u : g_fake->gpus[static_cast<std::size_t>(other)].bus);
    return nvml::kSuccess;
  }
  static nvml::Return event_types(nvml::Device, unsigned long long* types) {
    *types = nvml::kEventXid;
    return nvml::kSuccess;
  }
  static nvml::Return event_set_create(nvml::EventSet* set) {
    std::lock_guard lock(g_fake->mutex);
    ++g_fake->event_sets;
    g_fake->listened_to.clear();
    *set = reinterpret_cast<nvml::EventSet>(g_fake);
    return nvml::kSuccess;
  }
  static nvml::Return event_register(nvml::Device device, unsigned long long types,
                                     nvml::EventSet) {
    std::lock_guard lock(g_fake->mutex);
    g_fake->listened_to.push_back(device);
    g_fake->registered.push_back(types);
    return nvml::kSuccess;
  }
  static nvml::Return event_wait(nvml::EventSet, nvml::EventData* data, unsigned timeout_ms) {
    std::unique_lock lock(g_fake->mutex);
    // One that has fallen off the bus fails the wait for all.
    for (const nvml::Device device : g_fake->listened_to) {
      if (at(device).answer == nvml::kGpuIsLost) return nvml::kGpuIsLost;
    }
    if (!g_fake->event_came.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                     [] { return !g_fake->events.empty(); })) {
      return nvml::kTimeout;
    }
    *data = g_fake->events.front();
    g_fake->events.pop_front();
    return nvml::kSuccess;
  }
  static nvml::Return event_set_free(nvml::EventSet) {
    std::lock_guard lock(g_fake->mutex);
    --g_fake->event_sets;
    return nvml::kSuccess;
  }
};

}  // namespace

FakeNvml::FakeNvml() {
  TROUPE_CHECK(FakeNvmlFunctions::g_fake == nullptr);
  FakeNvmlFunctions::g_fake = this;
}
FakeNvml::~FakeNvml() { FakeNvmlFunctions::g_fake = nullptr; }

std::string FakeNvml::uuid(unsigned number) {
  char text[64];
  std::snprintf(text, sizeof text, "GPU-%08x-0000-0000-0000-000000000000", number);
  return text;
}

FakeNvml::Gpu FakeNvml::gpu(unsigned number) {
  Gpu gpu;
  gpu.uuid = uuid(number);
  gpu.bus = number + 1;
  return gpu;
}

void FakeNvml::report(unsigned gpu, unsigned long long type, unsigned long long data,
                      unsigned gpu_instance) {
  std::lock_guard lock(mutex);
  events.push_back(
      {FakeNvmlFunctions::handle(gpus.at(gpu)), type, data, gpu_instance, nvml::kNoInstance});
  event_came.notify_all();
}

nvml::Table FakeNvml::table() const {
  nvml::Table t;
  t.init = FakeNvmlFunctions::init;
  t.shutdown = FakeNvmlFunctions::shutdown;
  t.error_string = FakeNvmlFunctions::error_string;
  t.device_count = FakeNvmlFunctions::device_count;
  t.device_by_index = FakeNvmlFunctions::device_by_index;
  t.uuid = FakeNvmlFunctions::uuid;
  t.name = FakeNvmlFunctions::name;
  t.pci_info = FakeNvmlFunctions::pci_info;
  t.memory = FakeNvmlFunctions::memory_info;
  t.minor_number = FakeNvmlFunctions::minor_number;
  t.compute_capability = FakeNvmlFunctions::compute_capability;
  t.processes = FakeNvmlFunctions::processes;
  t.mig_mode = FakeNvmlFunctions::mig_mode;
  t.mig_count_max = FakeNvmlFunctions::mig_count_max;
  t.mig_by_index = FakeNvmlFunctions::mig_by_index;
  t.gpu_instance = FakeNvmlFunctions::gpu_instance;
  t.common_ancestor = FakeNvmlFunctions::common_ancestor;
  t.p2p_status = FakeNvmlFunctions::p2p_status;
  t.nvlink_state = FakeNvmlFunctions::nvlink_state;
  t.nvlink_remote = FakeNvmlFunctions::nvlink_remote;
  t.event_types = FakeNvmlFunctions::event_types;
  t.event_set_create = FakeNvmlFunctions::event_set_create;
  t.event_register = FakeNvmlFunctions::event_register;
  t.event_wait = FakeNvmlFunctions::event_wait;
  t.event_set_free = FakeNvmlFunctions::event_set_free;
  return t;
}

}  // namespace troupe::scheduler::tests
