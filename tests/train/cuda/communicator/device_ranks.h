#pragma once
// Threads as ranks, each with a device of the fake GPU, and a communicator over the host.

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tests/runtime/collective/ranks.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cuda/communicator/nccl_communicator.h"
#include "train/cuda/communicator/staged_communicator.h"

namespace troupe::tests {

// One rank's device: a context, some memory and a stream.
class RankDeviceMemory {
 public:
  explicit RankDeviceMemory(int index) {
    REQUIRE(table.context_open(index, &context) == TROUPE_CUDA_OK);
    TroupeCudaMemory* memory = nullptr;
    REQUIRE(table.memory_create(context, kBytes, 0, &memory) == TROUPE_CUDA_OK);
    REQUIRE(table.memory_map(memory, &begin_) == TROUPE_CUDA_OK);
    REQUIRE(table.memory_release(memory) == TROUPE_CUDA_OK);
    REQUIRE(table.stream_create(context, 0, &stream) == TROUPE_CUDA_OK);
  }
  ~RankDeviceMemory() {
    table.stream_destroy(stream);
    table.memory_unmap(context, begin_, kBytes);
    table.context_close(context);
  }
  RankDeviceMemory(const RankDeviceMemory&) = delete;
  RankDeviceMemory& operator=(const RankDeviceMemory&) = delete;

  // The fake's memory can be read and written by the host, while no stream uses it.
  template <typename T>
  std::span<T> room(std::size_t offset_bytes, std::size_t count) {
    CHECK(offset_bytes + count * sizeof(T) <= static_cast<std::size_t>(kBytes));
    return {reinterpret_cast<T*>(static_cast<std::byte*>(begin_) + offset_bytes), count};
  }

  static constexpr std::int64_t kBytes = std::int64_t{16} << 20;
  const TroupeCudaTable& table = fake_cuda_table();
  TroupeCudaContext* context = nullptr;
  TroupeCudaStream* stream = nullptr;

 private:
  void* begin_ = nullptr;
};

struct Rank {
  RankDeviceMemory& device;
  collective::Communicator& host;
  int rank() const { return host.rank(); }
};

// Runs `body` as each of `ranks` ranks, on devices of their own or, with fewer devices, shared.
// Nothing of the fake may be left afterwards.
inline void run_devices(int ranks, const std::function<void(Rank)>& body,
                        FakeCudaOptions options = {.devices = 8}) {
  fake_cuda_reset(options);
  collective::tests::run_threads(std::vector<int>(static_cast<std::size_t>(ranks), 0),
                                 [&](collective::Communicator& host) {
                                   RankDeviceMemory device(host.rank() % options.devices);
                                   body({device, host});
                                 });
  CHECK(fake_cuda_left().empty());
}

inline std::shared_ptr<const train::CudaLibrary> fake_library() {
  return train::CudaLibrary::over(fake_cuda_table());
}

// Small buffers, so that everything goes in several pieces, and deadlines no test waits for.
inline train::NcclOptions nccl_options(const Rank& rank) {
  train::NcclOptions options;
  options.library = fake_library();
  options.context = rank.device.context;
  options.host = &rank.host;
  options.form_timeout = std::chrono::seconds(30);
  options.operation_timeout = std::chrono::seconds(30);
  options.scratch_bytes = 64 << 10;
  options.chunk_bytes = 16 << 10;
  options.watch_interval = std::chrono::milliseconds(1);
  return options;
}
inline train::StagedOptions staged_options(const Rank& rank) {
  return {.library = fake_library(),
          .context = rank.device.context,
          .host = &rank.host,
          .chunk_bytes = 16 << 10};
}

}  // namespace troupe::tests
