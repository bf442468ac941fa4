// FakeNvml as a libnvidia-ml.so.1, for programs that load one: found through LD_LIBRARY_PATH, with
// as many GPUs as TROUPE_FAKE_GPUS says.

#include <cstdlib>
#include <string>

#include "tests/scheduler/node/fake_nvml.h"

namespace {

using troupe::scheduler::tests::FakeNvml;
namespace nvml = troupe::scheduler::nvml;

struct Library {
  Library() {
    const char* count = std::getenv("TROUPE_FAKE_GPUS");
    const int gpus = count ? std::atoi(count) : 0;
    for (int i = 0; i < gpus; ++i) fake.gpus.push_back(FakeNvml::gpu(static_cast<unsigned>(i)));
    table = fake.table();
  }
  FakeNvml fake;
  nvml::Table table;
};

const nvml::Table& library() {
  static Library loaded;
  return loaded.table;
}

}  // namespace

extern "C" {

nvml::Return nvmlInit_v2() { return library().init(); }
nvml::Return nvmlShutdown() { return library().shutdown(); }
const char* nvmlErrorString(nvml::Return code) { return library().error_string(code); }
nvml::Return nvmlDeviceGetCount_v2(unsigned* count) { return library().device_count(count); }
nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  return library().device_by_index(index, device);
}
nvml::Return nvmlDeviceGetUUID(nvml::Device device, char* out, unsigned size) {
  return library().uuid(device, out, size);
}
nvml::Return nvmlDeviceGetName(nvml::Device device, char* out, unsigned size) {
  return library().name(device, out, size);
}
nvml::Return nvmlDeviceGetPciInfo_v3(nvml::Device device, nvml::PciInfo* pci) {
  return library().pci_info(device, pci);
}
nvml::Return nvmlDeviceGetMemoryInfo(nvml::Device device, nvml::Memory* memory) {
  return library().memory(device, memory);
}
nvml::Return nvmlDeviceGetMinorNumber(nvml::Device device, unsigned* number) {
  return library().minor_number(device, number);
}
nvml::Return nvmlDeviceGetCudaComputeCapability(nvml::Device device, int* major, int* minor) {
  return library().compute_capability(device, major, minor);
}
nvml::Return nvmlDeviceGetComputeRunningProcesses_v3(nvml::Device device, unsigned* count,
                                                     nvml::ProcessInfo* infos) {
  return library().processes(device, count, infos);
}
nvml::Return nvmlDeviceGetTopologyCommonAncestor(nvml::Device a, nvml::Device b, int* level) {
  return library().common_ancestor(a, b, level);
}
nvml::Return nvmlDeviceGetP2PStatus(nvml::Device a, nvml::Device b, int capability, int* status) {
  return library().p2p_status(a, b, capability, status);
}

}  // extern "C"
