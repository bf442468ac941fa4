#pragma once
// Collectives over the host for buffers of the device: in pieces through pinned memory and a CPU
// communicator, while the next piece comes down and the last one goes up.

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "train/cuda/communicator/device_group.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::train {

// One thread uses it. Results are the CPU communicator's, bit for bit: its operations are
// elementwise, and it sums by the same tree however a buffer is cut.
class HostStage {
 public:
  // Pinned memory of four times `chunk_bytes` and a stream. What is done follows everything on
  // `stream`, which follows it. Both, and the context, outlive the object.
  static Result<std::unique_ptr<HostStage>> make(std::shared_ptr<const CudaLibrary> library,
                                                 TroupeCudaContext* context,
                                                 TroupeCudaStream* stream,
                                                 std::int64_t chunk_bytes);
  ~HostStage();
  HostStage(const HostStage&) = delete;
  HostStage& operator=(const HostStage&) = delete;

  // Carries any operation out over `host`, whose ranks are the group's. When it returns, results
  // may still be on their way up: `stream` waits for them, after an error too. Errors: `host`'s,
  // the library's, kDeadlineExceeded; afterwards the ranks no longer agree where they are.
  Status carry_out(collective::Communicator& host, const DeviceCall& call);

 private:
  // A run of bytes of the device's and where it lies in a chunk's buffer.
  struct Piece {
    std::byte* device;
    std::size_t at;
    std::size_t bytes;
  };
  struct Chunk {
    std::vector<Piece> down, up;
    bool up_from_input = false;  // the operation was in place
    std::function<Status(std::byte* input, std::byte* output)> work;
  };
  struct Buffers {
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    TroupeCudaEvent* down = nullptr;
    TroupeCudaEvent* up = nullptr;
  };

  HostStage(std::shared_ptr<const CudaLibrary> library, TroupeCudaContext* context,
            TroupeCudaStream* stream, std::int64_t chunk_bytes)
      : library_(std::move(library)),
        context_(context),
        stream_(stream),
        chunk_bytes_(static_cast<std::size_t>(chunk_bytes)) {}
  Status allocate();

  Status whole_buffer(collective::Communicator& host, const DeviceCall& call);
  Status sharded(collective::Communicator& host, const DeviceCall& call);
  Chunk sharded_chunk(collective::Communicator& host, const DeviceCall& call, std::size_t begin,
                      std::vector<std::size_t> counts) const;
  Status pipeline(std::size_t chunks, const std::function<Chunk(std::size_t)>& make,
                  Deadline deadline);
  Status run_chunks(std::size_t chunks, const std::function<Chunk(std::size_t)>& make,
                    Deadline deadline);
  Status begin_down(const Chunk& chunk, Buffers& buffers);
  Status finish(const Chunk& chunk, Buffers& buffers, Deadline deadline);
  Status check(int code, std::string_view what) const {
    return cuda_status(library_->table(), code, what);
  }

  const std::shared_ptr<const CudaLibrary> library_;
  TroupeCudaContext* const context_;
  TroupeCudaStream* const stream_;
  TroupeCudaStream* up_stream_ = nullptr;
  const std::size_t chunk_bytes_;
  std::array<Buffers, 2> buffers_;
};

}  // namespace troupe::train
