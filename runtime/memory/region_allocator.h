#pragma once
// Which parts of a segment are in use: bookkeeping alone, in the memory of the one process that
// hands them out. Parts that were given back are used again first, while they are warm in caches.

#include <cstddef>
#include <map>
#include <optional>

namespace troupe::memory {

// Not thread-safe.
class RegionAllocator {
 public:
  // Regions begin at, and their sizes are rounded up to, multiples of `granule_bytes`.
  RegionAllocator(std::size_t size_bytes, std::size_t granule_bytes);
  // The offset of `bytes` (> 0) free bytes; nothing where there is no such gap.
  std::optional<std::size_t> take(std::size_t bytes);
  // Gives back what take(bytes) returned.
  void give_back(std::size_t offset, std::size_t bytes);
  std::size_t free_bytes() const { return free_bytes_; }
  // What is not in use: offset → size.
  const std::map<std::size_t, std::size_t>& gaps() const { return gaps_; }

 private:
  std::size_t rounded(std::size_t bytes) const;

  const std::size_t granule_bytes_;
  std::map<std::size_t, std::size_t> gaps_;  // offset → size; neighbours are merged
  std::size_t free_bytes_ = 0;
};

}  // namespace troupe::memory
