#include "train/trainer/held_pieces.h"

#include "train/cuda/device/memory_ledger.h"

namespace troupe::train {

Status HeldPieces::hold(HostAccess& access, std::initializer_list<std::span<TensorPiece>> groups) {
  if (access.in_place()) return {};
  std::size_t bytes = 0;
  for (const auto pieces : groups)
    for (const TensorPiece& piece : pieces) bytes += piece.data.size();
  if (bytes > bytes_) {
    held_.reset();
    bytes_ = 0;
    held_.reset(allocate_huge(bytes));
    if (!held_) {
      return error(Code::kOutOfMemory,
                   "there is no memory of the host for the {} of a checkpoint that this rank "
                   "writes from there (save_only_model: true needs less of it)",
                   memory_size_text(static_cast<std::int64_t>(bytes)));
    }
    bytes_ = bytes;
  }
  std::size_t at = 0;
  for (const auto pieces : groups) {
    for (TensorPiece& piece : pieces) {
      const std::span<std::byte> held(held_.get() + at, piece.data.size());
      TROUPE_RETURN_IF_ERROR(access.read(piece.data, held));
      piece.data = held;
      at += held.size();
    }
  }
  return {};
}

}  // namespace troupe::train
