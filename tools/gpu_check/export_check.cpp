#include "tools/gpu_check/export_check.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/other_process.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/host_transfer.h"
#include "troupe/unique_fd.h"

namespace troupe::tools::gpu {
namespace {

std::vector<std::uint32_t> pattern(std::int64_t bytes) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(bytes / 4));
  std::uint32_t value = 1;
  for (std::uint32_t& word : words) word = value = value * 1664525u + 1013904223u;
  return words;
}

Result<Figure> check_export(Bench& bench) {
  if (bench.is_open())
    return error(Code::kFailedPrecondition, "this process has a context already");
  const std::int64_t asked = bench.rehearsal() ? 1 << 20 : 256 << 20;
  OtherProcess other = TROUPE_TRY(
      OtherProcess::start(bench, {"--export-child", "3", "--bytes", std::to_string(asked)}));
  const OtherProcess::Memory received = TROUPE_TRY(other.receive_memory());
  other.kill();

  // Only the descriptor holds the bytes now; this process had no context until here.
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const auto memory = TROUPE_TRY(train::DeviceMemory::import(
      gpu->device, received.descriptor.get(), received.bytes, "what the other process left",
      {{train::MemoryPurpose::kOther, received.bytes}}));
  const std::vector<std::uint32_t> expected = pattern(asked);
  std::vector<std::uint32_t> got(expected.size());
  gpu->operators->download(memory.data(), got.data(), got.size() * 4);
  TROUPE_RETURN_IF_ERROR(gpu->operators->synchronize());
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < got.size(); ++i) differing += got[i] != expected[i];
  return Figure{
      .value = static_cast<double>(differing),
      .unit = "words that differ",
      .bar = Figure::Bar::kAtMost,
      .bar_value = 0,
      .text = fmt::format("of {}, after kill -9 of the process that had written them, held "
                          "by a descriptor in a process without a context",
                          expected.size())};
}

}  // namespace

Status run_export_child(std::shared_ptr<const train::CudaLibrary> library, int device,
                        std::int64_t bytes, int socket) {
  const auto gpu =
      TROUPE_TRY(train::CudaDevice::open(std::move(library), device, SystemEnvironment()));
  const auto memory = TROUPE_TRY(train::DeviceMemory::allocate(
      gpu, bytes, "what outlives this process", {{train::MemoryPurpose::kOther, bytes}}, true));
  train::CudaStream stream = TROUPE_TRY(train::CudaStream::create(gpu));
  train::HostTransfer transfer = TROUPE_TRY(train::HostTransfer::create(stream));
  const std::vector<std::uint32_t> words = pattern(bytes);
  TROUPE_RETURN_IF_ERROR(transfer.upload(words.data(), memory.data(), bytes));
  TROUPE_RETURN_IF_ERROR(stream.wait("filling memory"));
  const UniqueFd descriptor = TROUPE_TRY(memory.export_descriptor());
  TROUPE_RETURN_IF_ERROR(send_memory(socket, memory.size(), descriptor.get()));
  // Killed here.
  wait_for_end(socket);
  return {};
}

void add_export_check(std::vector<Check>& checks) {
  checks.push_back({"memory/outlives its process",
                    "exported memory keeps its bytes behind a descriptor alone, after kill -9", 5,
                    check_export});
}

}  // namespace troupe::tools::gpu
