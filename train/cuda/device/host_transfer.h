#pragma once
// Copies between ordinary memory of the host and a device, through pinned memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/stream.h"

namespace troupe::train {

// Of one stream, in whose order copies take effect. One thread at a time.
class HostTransfer {
 public:
  // Two pieces of this size are copied in turns.
  static constexpr std::int64_t kPieceBytes = 4 << 20;

  // `stream` must outlive the object.
  static Result<HostTransfer> create(CudaStream& stream);
  HostTransfer(HostTransfer&&) = default;
  HostTransfer& operator=(HostTransfer&&) = delete;
  // Copies that are under way are waited for.
  ~HostTransfer();

  // `host` may change when the call returns; the device has the bytes in the stream's order.
  Status upload(const void* host, void* device, std::int64_t bytes);
  // `host` has the bytes when the call returns.
  Status download(const void* device, void* host, std::int64_t bytes);

 private:
  struct Piece {
    PinnedMemory memory;
    CudaEvent copied;
  };
  HostTransfer(CudaStream& stream, Piece first, Piece second)
      : stream_(&stream), pieces_{std::move(first), std::move(second)} {}
  static Result<Piece> make_piece(CudaStream& stream);
  Status enqueue(Piece& piece, const void* from, void* to, std::int64_t bytes);

  CudaStream* stream_;
  std::array<Piece, 2> pieces_;
  std::size_t next_ = 0;
};

}  // namespace troupe::train
