// What is there, and how fast copies are.

#include <fmt/format.h>

#include <algorithm>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "train/cuda/device/host_transfer.h"

namespace troupe::tools::gpu {
namespace {

// "13.0"; "none" for 0. CUDA writes 13000, cuBLASLt 130100, cuDNN 91300, NCCL 22805.
std::string version_text(int version, int major_factor, int minor_factor) {
  if (version == 0) return "none";
  return fmt::format("{}.{}", version / major_factor, version % major_factor / minor_factor);
}

Result<Figure> check_device(Bench& bench) {
  const auto devices = TROUPE_TRY(train::list_devices(*bench.library(), SystemEnvironment()));
  TroupeCudaVersions versions{};
  TROUPE_RETURN_IF_ERROR(train::cuda_status(
      bench.library()->table(), (*bench.library())->versions(&versions), "asking for versions"));
  if (bench.options().device >= static_cast<int>(devices.size()))
    return error(Code::kInvalidArgument, "there is no GPU {}: {} are visible",
                 bench.options().device, devices.size());
  const TroupeCudaDevice& d = devices[static_cast<std::size_t>(bench.options().device)];
  return Figure{
      .value = static_cast<double>(devices.size()),
      .unit = "devices",
      .bar = Figure::Bar::kAtLeast,
      .bar_value = 1,
      .text = fmt::format(
          "{} ({}, {}), sm_{}{}, {} multiprocessors, {}, L2 {}, memory {}exportable, bf16 {}; "
          "driver "
          "of CUDA {}, runtime {}, cublasLt {}, cuDNN {}, NCCL {}",
          d.name, d.uuid, d.pci_bus, d.compute_major, d.compute_minor, d.multiprocessors,
          train::memory_size_text(d.memory_bytes), train::memory_size_text(d.l2_cache_bytes),
          d.can_export_memory ? "" : "not ", d.has_bf16 ? "yes" : "no",
          version_text(d.driver_version, 1000, 10), version_text(versions.runtime, 1000, 10),
          version_text(versions.cublaslt, 10000, 100), version_text(versions.cudnn, 10000, 100),
          version_text(versions.nccl, 10000, 100))};
}

Result<Figure> check_copy(Bench& bench) {
  const double rate = TROUPE_TRY(bench.copy_rate());
  return Figure{.value = rate,
                .unit = "GB/s read and written",
                .text = "within the device; the figure that others are compared with"};
}

// Between pinned memory and the device.
Result<Figure> check_host_copy(Bench& bench) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const std::int64_t bytes = bench.rehearsal() ? 1 << 20 : 256 << 20;
  const auto pinned =
      TROUPE_TRY(train::PinnedMemory::allocate(gpu->device, bytes, "timing copies"));
  std::byte* device = TROUPE_TRY(gpu->take(bytes));
  const int times = bench.rehearsal() ? 1 : 5;
  const double to = TROUPE_TRY(gpu->milliseconds("copies to the device", times, [&] {
    return gpu->table().copy(gpu->stream->get(), pinned.data(), device, bytes);
  }));
  const double from = TROUPE_TRY(gpu->milliseconds("copies from the device", times, [&] {
    return gpu->table().copy(gpu->stream->get(), device, pinned.data(), bytes);
  }));
  const auto rate = [bytes](double ms) { return static_cast<double>(bytes) / ms / 1e6; };
  return Figure{.value = std::min(rate(to), rate(from)),
                .unit = "GB/s",
                .text = fmt::format("to the device {:.1f}, from it {:.1f}", rate(to), rate(from))};
}

// An upload and a download of odd sizes through the pieces of pinned memory.
Result<Figure> check_transfer(Bench& bench) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const std::size_t bytes =
      static_cast<std::size_t>((bench.rehearsal() ? 2 : 20) * train::HostTransfer::kPieceBytes) +
      13;
  std::vector<std::uint8_t> sent(bytes), got(bytes, 0);
  for (std::size_t i = 0; i < bytes; ++i)
    sent[i] = static_cast<std::uint8_t>((i * 2654435761u) >> 24);
  std::byte* device = TROUPE_TRY(gpu->take(static_cast<std::int64_t>(bytes)));
  gpu->operators->upload(sent.data(), device, bytes);
  gpu->operators->download(device, got.data(), bytes);
  TROUPE_RETURN_IF_ERROR(gpu->operators->synchronize());
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < bytes; ++i) differing += sent[i] != got[i];
  return Figure{.value = static_cast<double>(differing),
                .unit = "bytes that differ",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = fmt::format("of {}", bytes)};
}

// An allocation that cannot be.
Result<Figure> check_shortage(Bench& bench) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const auto use = TROUPE_TRY(gpu->device->memory_use());
  const auto memory = train::DeviceMemory::allocate(gpu->device, use.total_bytes + (1 << 30),
                                                    "a test", train::MemoryPurpose::kActivations);
  if (memory.ok() || memory.status().code() != Code::kOutOfMemory)
    return error(Code::kInternal, "more than there is was not refused as such: {}",
                 memory.status().to_string());
  // And the device goes on.
  const auto after = TROUPE_TRY(train::DeviceMemory::allocate(gpu->device, 1 << 20, "a test",
                                                              train::MemoryPurpose::kActivations));
  return Figure{.value = static_cast<double>(use.free_bytes) / (1 << 30),
                .unit = "GiB free",
                .text = memory.status().message()};
}

}  // namespace

void add_device_checks(std::vector<Check>& checks) {
  checks.push_back(
      {"device/versions", "the device, the driver and the libraries", 1, check_device});
}

void add_copy_checks(std::vector<Check>& checks) {
  checks.push_back({"copy/device", "copies within the device", 0.5, check_copy});
  checks.push_back(
      {"copy/pinned", "copies between pinned memory and the device", 0.5, check_host_copy});
  checks.push_back(
      {"copy/transfer", "uploads and downloads arrive as they were", 0.5, check_transfer});
  checks.push_back({"copy/shortage", "an allocation that does not fit is told, and nothing breaks",
                    1, check_shortage});
}

}  // namespace troupe::tools::gpu
