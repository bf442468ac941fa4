#include "actors/ring_slabs.h"

#include <algorithm>

namespace troupe::detail {

std::optional<std::size_t> RingSlabs::take(std::size_t bytes) {
  MutexLock lock(mutex_);
  const auto offset = regions_.take(bytes);
  if (!offset) return std::nullopt;
  taken_ = true;
  const std::size_t granules = (bytes + kRingSlabGranuleBytes - 1) / kRingSlabGranuleBytes;
  used_end_ = std::max(used_end_, *offset + granules * kRingSlabGranuleBytes);
  return offset;
}

void RingSlabs::give_back(std::size_t offset, std::size_t bytes) {
  MutexLock lock(mutex_);
  regions_.give_back(offset, bytes);
}

bool RingSlabs::begin_releasing() {
  MutexLock lock(mutex_);
  return !std::exchange(releasing_, true);
}

bool RingSlabs::release_idle() {
  MutexLock lock(mutex_);
  if (std::exchange(taken_, false)) return false;
  for (const auto& [offset, bytes] : regions_.gaps()) {
    if (offset >= used_end_) break;
    segment_.discard(offset, std::min(bytes, used_end_ - offset));
  }
  if (regions_.free_bytes() < kRingSlabBytes) return false;  // some are being read still
  used_end_ = 0;
  releasing_ = false;
  return true;
}

}  // namespace troupe::detail
