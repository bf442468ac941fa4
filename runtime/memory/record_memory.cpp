#include "runtime/memory/record_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace troupe::memory {
namespace {

constexpr std::size_t kSaltBytes = sizeof(std::uint64_t);
constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);
constexpr std::size_t kFrontBytes = kRecordMagicBytes + kSaltBytes;

}  // namespace

RecordMemory::RecordMemory(const RecordKind& kind, Segment segment, std::size_t areas)
    : kind_(&kind),
      segment_(std::move(segment)),
      areas_(areas),
      area_bytes_((segment_.size() - kFrontBytes) / areas) {
  std::memcpy(&salt_, segment_.data() + kRecordMagicBytes, sizeof salt_);
}

Result<RecordMemory> RecordMemory::create(const RecordKind& kind, const std::string& name,
                                          std::size_t areas, std::size_t area_bytes,
                                          Populate populate) {
  const std::size_t page = page_bytes();
  const std::size_t bytes = kFrontBytes + areas * (kNumberBytes + area_bytes);
  auto segment = TROUPE_TRY(Segment::create(name, (bytes + page - 1) / page * page, populate));
  const std::uint64_t salt = SystemRandom().next_u64();
  std::memcpy(segment.data(), kind.magic.data(), kRecordMagicBytes);
  std::memcpy(segment.data() + kRecordMagicBytes, &salt, sizeof salt);
  RecordMemory memory(kind, std::move(segment), areas);
  memory.end_ = memory.front_of(0);
  return memory;
}

Result<RecordMemory> RecordMemory::open(const RecordKind& kind, std::size_t areas, UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 ||
      info.st_size < static_cast<off_t>(kFrontBytes + areas * kNumberBytes)) {
    return error(Code::kDataLoss, "the descriptor is no {}", kind.name);
  }
  auto segment = TROUPE_TRY(
      Segment::adopt(std::move(fd), static_cast<std::size_t>(info.st_size), Access::kReadWrite));
  const std::string_view front(reinterpret_cast<const char*>(segment.data()), kFrontBytes);
  TROUPE_RETURN_IF_ERROR(check_magic(kind, front, "the memory"));
  RecordMemory memory(kind, std::move(segment), areas);
  bool written = false;
  for (std::size_t area = 0; area < areas; ++area) {
    if (!memory.reader(area).next()) continue;
    if (!written || memory.number_of(area) > memory.number_of(memory.newest_)) {
      memory.newest_ = area;
    }
    written = true;
  }
  RecordReader reader = memory.reader(memory.newest_);
  while (reader.next()) {
  }
  memory.end_ = reader.offset();
  return memory;
}

std::size_t RecordMemory::front_of(std::size_t area) const {
  return kFrontBytes + area * area_bytes_ + kNumberBytes;
}

std::uint64_t RecordMemory::number_of(std::size_t area) const {
  std::uint64_t number = 0;
  std::memcpy(&number, segment_.data() + front_of(area) - kNumberBytes, sizeof number);
  return number;
}

RecordReader RecordMemory::reader(std::size_t area) const {
  const std::size_t end = front_of(area) - kNumberBytes + area_bytes_;
  return RecordReader({segment_.data(), end}, front_of(area), base_of(area));
}

bool RecordMemory::fits(std::size_t payload_bytes) const {
  return bytes_of(payload_bytes) <= area_bytes_ - kNumberBytes;
}

bool RecordMemory::has_room(std::size_t payload_bytes) const {
  return bytes_of(payload_bytes) <= front_of(newest_) - kNumberBytes + area_bytes_ - end_;
}

std::optional<RecordMemory::Payload> RecordMemory::append(Pieces pieces) {
  std::size_t bytes = 0;
  for (const Payload piece : pieces) bytes += piece.size();
  if (!has_room(bytes)) return std::nullopt;
  write_record(segment_.data() + end_, base_of(newest_) + end_, pieces);
  const Payload payload(segment_.data() + end_ + kRecordHeaderBytes, bytes);
  end_ += bytes_of(bytes);
  return payload;
}

// The number first: with it nothing in the area is a record any more.
void RecordMemory::begin_area(Pieces pieces) {
  TROUPE_CHECK(areas_ == 2);
  const std::uint64_t number = std::max(number_of(0), number_of(1)) + 1;
  newest_ = 1 - newest_;
  end_ = front_of(newest_);
  std::memcpy(segment_.data() + end_ - kNumberBytes, &number, sizeof number);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  TROUPE_CHECK(append(pieces).has_value());
}

Result<std::vector<RecordMemory::Payload>> RecordMemory::records(std::size_t area) const {
  std::vector<Payload> payloads;
  RecordReader reader = this->reader(area);
  while (const auto payload = reader.next()) payloads.push_back(*payload);
  if (reader.end() == RecordReader::End::kDamaged) {
    return error(Code::kDataLoss, "the {} is damaged at byte {}", kind_->name, reader.offset());
  }
  return payloads;
}

}  // namespace troupe::memory
