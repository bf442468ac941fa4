#include "runtime/base/record.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "records have little-endian numbers");

using RecordHeader = std::array<std::byte, kRecordHeaderBytes>;
constexpr std::size_t kHashAt = sizeof(std::uint32_t);
constexpr std::size_t kCheckAt = kHashAt + sizeof(std::uint64_t);

template <typename Number>
Number number_in(std::span<const std::byte> bytes, std::uint64_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// Of what stands before the check, whatever stands in its place.
std::uint64_t check_of(RecordHeader header, std::uint64_t place) {
  std::memcpy(header.data() + kCheckAt, &place, sizeof place);
  return xxh3_64(header);
}

}  // namespace

Status check_magic(const RecordKind& kind, std::string_view bytes, std::string_view whose) {
  TROUPE_CHECK(kind.magic.size() == kRecordMagicBytes);
  if (bytes.starts_with(kind.magic)) return {};
  if (bytes.size() >= kRecordMagicBytes &&
      bytes.starts_with(kind.magic.substr(0, kRecordMagicBytes - 1))) {
    return error(Code::kDataLoss, "{} was written by another version of troupe; {}", whose,
                 kind.of_another_version);
  }
  return error(Code::kDataLoss, "{} is no {}", whose, kind.name);
}

void write_record(std::byte* out, std::uint64_t place,
                  std::initializer_list<std::span<const std::byte>> pieces) {
  std::size_t bytes = 0;
  for (const auto piece : pieces) {
    if (!piece.empty()) {
      std::memcpy(out + kRecordHeaderBytes + bytes, piece.data(), piece.size());
    }
    bytes += piece.size();
  }
  TROUPE_CHECK(bytes > 0 && bytes <= std::numeric_limits<std::uint32_t>::max());
  const std::uint64_t hash = xxh3_64({out + kRecordHeaderBytes, bytes});
  RecordHeader header;
  std::memcpy(header.data(), &bytes, kHashAt);
  std::memcpy(header.data() + kHashAt, &hash, sizeof hash);
  const std::uint64_t check = check_of(header, place);
  std::memcpy(header.data() + kCheckAt, &check, sizeof check);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(out, header.data(), header.size());
}

bool RecordReader::header_at(std::uint64_t offset) const {
  if (bytes_.size() - offset < kRecordHeaderBytes) return false;
  RecordHeader header;
  std::memcpy(header.data(), bytes_.data() + offset, header.size());
  return number_in<std::uint64_t>(header, kCheckAt) == check_of(header, base_ + offset);
}

std::optional<std::span<const std::byte>> RecordReader::record_at(std::uint64_t offset) const {
  if (offset > bytes_.size() || bytes_.size() - offset < kRecordHeaderBytes) return std::nullopt;
  const auto rest = bytes_.subspan(offset);
  const auto bytes = number_in<std::uint32_t>(rest, 0);
  if (bytes == 0 || bytes > rest.size() - kRecordHeaderBytes) return std::nullopt;
  if (!header_at(offset)) return std::nullopt;
  const auto payload = rest.subspan(kRecordHeaderBytes, bytes);
  if (xxh3_64(payload) != number_in<std::uint64_t>(rest, kHashAt)) return std::nullopt;
  return payload;
}

std::optional<std::span<const std::byte>> RecordReader::next() {
  const auto payload = record_at(offset_);
  if (payload) offset_ += kRecordHeaderBytes + payload->size();
  return payload;
}

RecordReader::End RecordReader::end() const {
  if (offset_ >= bytes_.size()) return End::kWhole;
  for (std::uint64_t offset = offset_ + 1; offset < bytes_.size(); ++offset) {
    if (record_at(offset)) return End::kDamaged;
  }
  const std::uint64_t left = bytes_.size() - offset_;
  if (left < kRecordHeaderBytes) return End::kTorn;
  const auto bytes = number_in<std::uint32_t>(bytes_, offset_);
  return bytes > left - kRecordHeaderBytes && header_at(offset_) ? End::kTorn : End::kUnsound;
}

}  // namespace troupe
