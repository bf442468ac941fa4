#pragma once
// What a checkpoint saves of a rank's state, in memory of the host.

#include <cstddef>
#include <initializer_list>
#include <span>

#include "runtime/base/huge_pages.h"
#include "train/checkpoint/tensor_piece.h"
#include "train/trainer/host_access.h"

namespace troupe::train {

class HeldPieces {
 public:
  // Lets threads of the host read the bytes of `groups` until the next call, whatever happens to
  // the buffers of a device meanwhile: they are copied, and the pieces show the copy. Where the
  // buffers are the host's own nothing is done, because a save is sealed before the next update.
  Status hold(HostAccess& access, std::initializer_list<std::span<TensorPiece>> groups);

 private:
  HugeBytes held_;
  std::size_t bytes_ = 0;
};

}  // namespace troupe::train
