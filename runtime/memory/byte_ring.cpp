#include "runtime/memory/byte_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::memory {

Result<MirroredMapping> MirroredMapping::map(const Segment& segment, std::size_t offset,
                                             std::size_t capacity) {
  TROUPE_CHECK(offset % page_bytes() == 0 && capacity % page_bytes() == 0 && capacity != 0 &&
               offset + capacity <= segment.size());
  void* base = ::mmap(nullptr, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    return error(Code::kOutOfMemory, "no address space for a ring of {} bytes: {}", capacity,
                 std::strerror(errno));
  MirroredMapping mapping;
  mapping.data_ = static_cast<std::byte*>(base);
  mapping.capacity_ = capacity;
  for (int half = 0; half < 2; ++half) {
    if (::mmap(mapping.data_ + half * capacity, capacity, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, segment.fd(), static_cast<off_t>(offset)) == MAP_FAILED)
      return error(Code::kOutOfMemory, "a ring of {} bytes could not be mapped: {}", capacity,
                   std::strerror(errno));
  }
  return mapping;
}

MirroredMapping::MirroredMapping(MirroredMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

MirroredMapping& MirroredMapping::operator=(MirroredMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

MirroredMapping::~MirroredMapping() {
  if (data_ != nullptr) ::munmap(data_, 2 * capacity_);
}

RingWriter::RingWriter(RingControl* control, MirroredMapping mapping)
    : control_(control), mapping_(std::move(mapping)) {}

std::size_t RingWriter::space(std::size_t want) {
  const std::size_t capacity = mapping_.capacity();
  if (capacity - (written_ - consumed_seen_) < want) {
    const std::uint64_t consumed = control_->consumed.load(std::memory_order_acquire);
    // A position outside what was published is a scribbling peer; keep the last good one.
    if (consumed - consumed_seen_ <= published_ - consumed_seen_) consumed_seen_ = consumed;
  }
  return capacity - (written_ - consumed_seen_);
}

std::size_t RingWriter::write(std::span<const std::byte> bytes) {
  const std::size_t capacity = mapping_.capacity();
  const std::size_t count = std::min(bytes.size(), space(bytes.size()));
  if (count != 0) std::memcpy(mapping_.data() + written_ % capacity, bytes.data(), count);
  written_ += count;
  return count;
}

bool RingWriter::publish() {
  if (published_ == written_) return false;
  published_ = written_;
  control_->written.store(written_, std::memory_order_seq_cst);
  return true;
}

RingReader::RingReader(RingControl* control, MirroredMapping mapping)
    : control_(control), mapping_(std::move(mapping)) {}

std::span<const std::byte> RingReader::readable(std::size_t want) {
  if (written_seen_ - consumed_ < want) {
    const std::uint64_t written = control_->written.load(std::memory_order_seq_cst);
    if (written - released_ > mapping_.capacity() || written - consumed_ > mapping_.capacity()) {
      damaged_ = true;
    } else {
      written_seen_ = written;
    }
  }
  return {mapping_.data() + consumed_ % mapping_.capacity(), written_seen_ - consumed_};
}

bool RingReader::release() {
  if (released_ == consumed_) return false;
  released_ = consumed_;
  control_->consumed.store(consumed_, std::memory_order_release);
  return true;
}

}  // namespace troupe::memory
