#pragma once
// Memory of a node's ranks that the others map read-only and read in place. Internal.
//
// A place says in one word where a buffer lies: the registration (from 1, the same number on all
// ranks) and the offset in it. Zero is no place.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory/segment.h"

namespace troupe::collective {

class RegisteredMemory {
 public:
  // One registration. own: this rank's segment, empty where it gives none; it stays mapped. theirs:
  // of each rank that gave one to this rank, by rank.
  void add(std::span<const std::byte> own, std::vector<memory::Segment> theirs);

  // The registration whose own memory begins here is forgotten, and what others gave with it.
  void remove(const void* own);

  // Where [data, data + bytes) lies in this rank's registered memory.
  std::uint64_t place_of(const void* data, std::size_t bytes) const;
  // The bytes at `place` of `rank`, in this process; null where it gave no such memory.
  const std::byte* find(int rank, std::uint64_t place, std::size_t bytes) const;

 private:
  struct Registration {
    std::span<const std::byte> own;
    std::vector<memory::Segment> theirs;
  };
  std::vector<Registration> registrations_;
};

}  // namespace troupe::collective
