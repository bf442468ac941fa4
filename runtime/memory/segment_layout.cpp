#include "runtime/memory/segment_layout.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::memory {
namespace {

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

SegmentLayout::SegmentLayout(std::string purpose, std::uint32_t version)
    : purpose_(std::move(purpose)), version_(version) {}

SegmentLayout& SegmentLayout::add(std::string name, std::size_t size_bytes,
                                  std::size_t alignment_bytes) {
  TROUPE_CHECK(!has(name), "region '{}' added twice to layout '{}'", name, purpose_);
  TROUPE_CHECK(alignment_bytes != 0 && (alignment_bytes & (alignment_bytes - 1)) == 0 &&
                   alignment_bytes <= page_bytes(),
               "region '{}': alignment {}", name, alignment_bytes);
  const std::size_t offset = round_up(end_, alignment_bytes);
  regions_.push_back({std::move(name), offset, size_bytes});
  end_ = offset + size_bytes;
  return *this;
}

std::size_t SegmentLayout::size_bytes() const { return round_up(end_, page_bytes()); }

std::uint64_t SegmentLayout::hash() const {
  std::string text = fmt::format("{}\n{}\n", purpose_, version_);
  for (const Region& region : regions_)
    text += fmt::format("{}\t{}\t{}\n", region.name, region.offset, region.size_bytes);
  return xxh3_64(bytes_of(text));
}

bool SegmentLayout::has(std::string_view name) const {
  return std::any_of(regions_.begin(), regions_.end(),
                     [&](const Region& region) { return region.name == name; });
}

const SegmentLayout::Region& SegmentLayout::find(std::string_view name) const {
  const auto it = std::find_if(regions_.begin(), regions_.end(),
                               [&](const Region& region) { return region.name == name; });
  TROUPE_CHECK(it != regions_.end(), "layout '{}' has no region '{}'", purpose_, name);
  return *it;
}

void SegmentLayout::write_header(Segment& segment) const {
  TROUPE_CHECK(segment.size() == size_bytes());
  const SegmentHeader header{
      kSegmentMagic, version_,     static_cast<std::uint32_t>(regions_.size()),
      hash(),        size_bytes(), {}};
  std::memcpy(segment.data(), &header, sizeof header);
}

Status SegmentLayout::verify(const Segment& segment) const {
  if (segment.size() != size_bytes())
    return error(Code::kProtocol, "segment '{}' has {} bytes, its layout needs {}", purpose_,
                 segment.size(), size_bytes());
  SegmentHeader header;
  std::memcpy(&header, segment.data(), sizeof header);
  if (header.magic != kSegmentMagic)
    return error(Code::kDataLoss, "segment '{}' carries no layout header", purpose_);
  if (header.version != version_)
    return error(Code::kProtocol, "segment '{}' has layout version {}, this program's is {}",
                 purpose_, header.version, version_);
  if (header.layout_hash != hash() || header.size_bytes != size_bytes() ||
      header.region_count != regions_.size())
    return error(
        Code::kProtocol,
        "segment '{}' was laid out otherwise (hash {:016x} with {} regions, this program's "
        "is {:016x} with {})",
        purpose_, header.layout_hash, header.region_count, hash(), regions_.size());
  return {};
}

std::span<std::byte> SegmentLayout::region(Segment& segment, std::string_view name) const {
  const Region& found = find(name);
  TROUPE_CHECK(found.offset + found.size_bytes <= segment.size());
  return {segment.data() + found.offset, found.size_bytes};
}

std::span<const std::byte> SegmentLayout::region(const Segment& segment,
                                                 std::string_view name) const {
  const Region& found = find(name);
  TROUPE_CHECK(found.offset + found.size_bytes <= segment.size());
  return {segment.data() + found.offset, found.size_bytes};
}

}  // namespace troupe::memory
