#include "train/checkpoint/part_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// Copied and hashed together: stays in the first-level cache.
constexpr std::size_t kHashBytes = 16u << 10;
static_assert(kWriteBufferBytes % kHugePageBytes == 0);
static_assert(kHugePageBytes % PositionalFile::kBlockBytes == 0);

}  // namespace

// In huge pages: a write that passes the cache holds on to each page of it.
WriteBuffer::WriteBuffer() : memory_(allocate_huge(kWriteBufferBytes)) {
  TROUPE_CHECK(memory_ != nullptr);
}

PartWriter::PartWriter(WriteBuffer& buffer, const std::atomic<bool>& cancelled)
    : buffer_(buffer), cancelled_(cancelled) {}

void PartWriter::begin(PositionalFile& file, std::uint64_t offset) {
  file_ = &file;
  hash_ = std::make_unique<Xxh3Stream>();
  offset_ = offset;
  begin_ = end_ = offset % PositionalFile::kBlockBytes;
}

Status PartWriter::append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto size = std::min({data.size(), kHashBytes, kWriteBufferBytes - end_});
    std::byte* const place = buffer_.data() + end_;
    std::memcpy(place, data.data(), size);
    hash_->update({place, size});
    end_ += size;
    data = data.subspan(size);
    if (end_ == kWriteBufferBytes) TROUPE_RETURN_IF_ERROR(flush());
  }
  return {};
}

Status PartWriter::flush() {
  if (cancelled_) return error(Code::kCancelled, "the save was given up");
  const auto size = end_ - begin_;
  if (size > 0) TROUPE_RETURN_IF_ERROR(file_->write_at(offset_, {buffer_.data() + begin_, size}));
  offset_ += size;
  begin_ = end_ = 0;
  return {};
}

Result<std::uint64_t> PartWriter::finish() {
  TROUPE_RETURN_IF_ERROR(flush());
  return hash_->digest();
}

}  // namespace troupe::train
