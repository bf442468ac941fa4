#pragma once
// Named, aligned regions of a segment behind a header that tells a later process what it attached
// to.
//
//   SegmentLayout layout("trainer-state", 1);
//   layout.add("params", params_bytes).add("moments", moments_bytes);
//   Segment segment = …create("…", layout.size_bytes()); layout.write_header(segment);
//   …the respawned process: layout.verify(segment) before it trusts a byte.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::memory {

// The first 64 bytes of a laid-out segment (little-endian, as all machines we run on).
struct SegmentHeader {
  std::uint64_t magic;    // kSegmentMagic
  std::uint32_t version;  // of the owner's layout, given to SegmentLayout
  std::uint32_t region_count;
  std::uint64_t layout_hash;  // XXH3-64 over purpose, version, region names, offsets, sizes
  std::uint64_t size_bytes;   // of the whole segment
  std::uint64_t reserved[4];
};
static_assert(sizeof(SegmentHeader) == 64);
inline constexpr std::uint64_t kSegmentMagic = 0x31474553'50555254;  // "TRUPSEG1"

class SegmentLayout {
 public:
  struct Region {
    std::string name;
    std::size_t offset;
    std::size_t size_bytes;
  };

  SegmentLayout(std::string purpose, std::uint32_t version);

  // Appends a region. `alignment_bytes`: a power of two; 64 keeps regions on their own cache lines,
  // 4096 on their own pages. A name twice is a bug.
  SegmentLayout& add(std::string name, std::size_t size_bytes, std::size_t alignment_bytes = 64);

  // Header plus all regions, rounded up to whole pages.
  std::size_t size_bytes() const;
  std::uint64_t hash() const;
  const std::vector<Region>& regions() const { return regions_; }
  bool has(std::string_view name) const;

  // Marks a new segment as laid out this way.
  void write_header(Segment& segment) const;
  // kProtocol / kDataLoss naming what differs when the segment was laid out otherwise.
  Status verify(const Segment& segment) const;
  // The bytes of a region; a name that was not added is a bug.
  std::span<std::byte> region(Segment& segment, std::string_view name) const;
  std::span<const std::byte> region(const Segment& segment, std::string_view name) const;

 private:
  const Region& find(std::string_view name) const;

  std::string purpose_;
  std::uint32_t version_;
  std::size_t end_ = sizeof(SegmentHeader);
  std::vector<Region> regions_;
};

}  // namespace troupe::memory
