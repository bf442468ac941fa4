#include "train/cuda/device/host_transfer.h"

#include <algorithm>
#include <cstring>

namespace troupe::train {
namespace {

constexpr const char* kWhat = "a copy between host and device";

}  // namespace

Result<HostTransfer::Piece> HostTransfer::make_piece(CudaStream& stream) {
  return Piece{TROUPE_TRY(PinnedMemory::allocate(stream.device(), kPieceBytes, kWhat)),
               TROUPE_TRY(CudaEvent::create(stream.device()))};
}

Result<HostTransfer> HostTransfer::create(CudaStream& stream) {
  Piece first = TROUPE_TRY(make_piece(stream));
  Piece second = TROUPE_TRY(make_piece(stream));
  return HostTransfer(stream, std::move(first), std::move(second));
}

HostTransfer::~HostTransfer() {
  for (const Piece& piece : pieces_) {
    // Whoever wanted to know whether they arrived asked before.
    if (!piece.memory.data()) continue;  // moved away
    [[maybe_unused]] const Status waited = piece.copied.wait(kWhat);
  }
}

Status HostTransfer::enqueue(Piece& piece, const void* from, void* to, std::int64_t bytes) {
  const CudaDevice& device = *stream_->device();
  TROUPE_RETURN_IF_ERROR(
      device.status(device.table().copy(stream_->get(), from, to, bytes), kWhat));
  return piece.copied.record(*stream_);
}

Status HostTransfer::upload(const void* host, void* device, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
    const std::int64_t count = std::min(kPieceBytes, bytes - at);
    Piece& piece = pieces_[next_++ % pieces_.size()];
    TROUPE_RETURN_IF_ERROR(piece.copied.wait(kWhat));
    std::memcpy(piece.memory.data(), from + at, static_cast<std::size_t>(count));
    TROUPE_RETURN_IF_ERROR(enqueue(piece, piece.memory.data(), to + at, count));
  }
  return {};
}

Status HostTransfer::download(const void* device, void* host, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  // One piece is on its way while the one before it is taken.
  Piece* arriving = nullptr;
  std::int64_t arriving_at = 0, arriving_count = 0;
  const auto take = [&]() -> Status {
    if (!arriving) return {};
    TROUPE_RETURN_IF_ERROR(arriving->copied.wait(kWhat));
    std::memcpy(to + arriving_at, arriving->memory.data(),
                static_cast<std::size_t>(arriving_count));
    return {};
  };
  for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
    const std::int64_t count = std::min(kPieceBytes, bytes - at);
    Piece& piece = pieces_[next_++ % pieces_.size()];
    // An upload's bytes may not have left it.
    TROUPE_RETURN_IF_ERROR(piece.copied.wait(kWhat));
    TROUPE_RETURN_IF_ERROR(enqueue(piece, from + at, piece.memory.data(), count));
    TROUPE_RETURN_IF_ERROR(take());
    arriving = &piece, arriving_at = at, arriving_count = count;
  }
  return take();
}

}  // namespace troupe::train
