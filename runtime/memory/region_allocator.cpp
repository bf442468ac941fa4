#include "runtime/memory/region_allocator.h"

#include <iterator>

#include "runtime/base/check.h"

namespace troupe::memory {

RegionAllocator::RegionAllocator(std::size_t size_bytes, std::size_t granule_bytes)
    : granule_bytes_(granule_bytes), free_bytes_(size_bytes) {
  TROUPE_CHECK(granule_bytes != 0 && size_bytes % granule_bytes == 0);
  if (size_bytes != 0) gaps_.emplace(0, size_bytes);
}

std::size_t RegionAllocator::rounded(std::size_t bytes) const {
  return (bytes + granule_bytes_ - 1) / granule_bytes_ * granule_bytes_;
}

std::optional<std::size_t> RegionAllocator::take(std::size_t bytes) {
  TROUPE_CHECK(bytes != 0);
  if (bytes > free_bytes_) return std::nullopt;
  const std::size_t size = rounded(bytes);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < size) continue;
    const std::size_t offset = gap->first;
    const std::size_t left = gap->second - size;
    gaps_.erase(gap);
    if (left != 0) gaps_.emplace(offset + size, left);
    free_bytes_ -= size;
    return offset;
  }
  return std::nullopt;
}

void RegionAllocator::give_back(std::size_t offset, std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  auto [gap, added] = gaps_.emplace(offset, size);
  TROUPE_CHECK(added, "a region given back twice");
  free_bytes_ += size;
  const auto next = std::next(gap);
  if (next != gaps_.end() && next->first == offset + size) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap != gaps_.begin()) {
    const auto before = std::prev(gap);
    TROUPE_CHECK(before->first + before->second <= offset, "a region given back twice");
    if (before->first + before->second == offset) {
      before->second += gap->second;
      gaps_.erase(gap);
    }
  }
}

}  // namespace troupe::memory
