#include "train/cuda/device/device.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

std::string visible_devices(const Environment& environment) {
  const auto visible = environment.get("CUDA_VISIBLE_DEVICES");
  return visible ? fmt::format("CUDA_VISIBLE_DEVICES is '{}'", *visible)
                 : "CUDA_VISIBLE_DEVICES is not set";
}

Result<int> count_devices(const CudaLibrary& library, const Environment& environment) {
  std::int32_t count = 0;
  const Status asked =
      cuda_status(library.table(), library->device_count(&count), "no GPU can be used");
  if (asked.code() == Code::kUnavailable)
    return error(Code::kUnavailable,
                 "{}; `nvidia-smi` says whether the driver is there, "
                 "troupe.device=cpu needs no GPU",
                 asked.message());
  TROUPE_RETURN_IF_ERROR(asked);
  if (count == 0)
    return error(Code::kUnavailable,
                 "no GPU is visible to this process ({}): `nvidia-smi` lists what the driver "
                 "knows; troupe.device=cpu needs none",
                 visible_devices(environment));
  return count;
}

}  // namespace

Result<std::vector<TroupeCudaDevice>> list_devices(const CudaLibrary& library,
                                                   const Environment& environment) {
  const int count = TROUPE_TRY(count_devices(library, environment));
  std::vector<TroupeCudaDevice> devices(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    TROUPE_RETURN_IF_ERROR(
        cuda_status(library.table(), library->device_info(i, &devices[static_cast<std::size_t>(i)]),
                    fmt::format("asking what GPU {} is", i)));
  return devices;
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaLibrary> library,
                                                     int index, const Environment& environment) {
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(library), index));
  TROUPE_RETURN_IF_ERROR(device->attach(environment));
  return device;
}

Status CudaDevice::attach(const Environment& environment) {
  const int count = TROUPE_TRY(count_devices(*library_, environment));
  if (index_ < 0 || index_ >= count)
    return error(Code::kInvalidArgument, "there is no GPU {}: this process sees {} ({})", index_,
                 count, visible_devices(environment));
  const std::string which = fmt::format("GPU {}", index_);
  const TroupeCudaTable& t = table();
  TROUPE_RETURN_IF_ERROR(
      cuda_status(t, t.device_info(index_, &info_), "asking what " + which + " is"));
  TROUPE_RETURN_IF_ERROR(status(t.versions(&versions_), "asking for the libraries' versions"));
  const int opened = t.context_open(index_, &context_);
  if (opened == TROUPE_CUDA_OUT_OF_MEMORY)
    return error(Code::kOutOfMemory,
                 "{}: a context takes some hundred MiB of its memory, and that is not free: other "
                 "processes hold it (`nvidia-smi` lists them) [{}]",
                 name(), t.error_text());
  TROUPE_RETURN_IF_ERROR(status(opened, "opening a context"));
  return status(t.memory_granularity(context_, &granularity_bytes_),
                "asking for the size of memory's granules");
}

CudaDevice::~CudaDevice() {
  if (context_) given_back(table().context_close(context_), "closing its context");
}

void CudaDevice::given_back(int code, std::string_view what) const {
  TROUPE_CHECK(code != TROUPE_CUDA_INVALID, "{}: {}", what, table().error_text());
}

std::string CudaDevice::name() const { return fmt::format("GPU {} ({})", index_, info_.name); }

Status CudaDevice::status(int code, std::string_view what) const {
  if (code == TROUPE_CUDA_OK) return {};
  return cuda_status(table(), code, fmt::format("{}: {}", name(), what));
}

Result<CudaDevice::MemoryUse> CudaDevice::memory_use() const {
  MemoryUse use;
  TROUPE_RETURN_IF_ERROR(
      status(table().memory_free_bytes(context_, &use.free_bytes, &use.total_bytes),
             "asking for its free memory"));
  use.held = ledger_.held();
  return use;
}

}  // namespace troupe::train
