#include "actors/light_log.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "actors/serialize.h"
#include "runtime/base/hash.h"
#include "runtime/base/random.h"

namespace troupe::detail {
namespace {

constexpr std::uint64_t kLightLogMagic = 0x3148'4749'4c50'5254ULL;  // "TRPLIGH1"
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kSegmentBytesMin = 16u << 10;

struct LogHeader {
  std::uint64_t magic = 0;
  std::uint64_t salt = 0;
};

constexpr std::size_t filled_up(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace

Status LightLog::open(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size < static_cast<off_t>(kHeaderBytes)) {
    return Status(Code::kDataLoss, "the descriptor is no log of light actors");
  }
  segment_ = TROUPE_TRY(memory::Segment::adopt(
      std::move(fd), static_cast<std::size_t>(info.st_size), memory::Access::kReadWrite));
  LogHeader header;
  std::memcpy(&header, segment_.data(), sizeof header);
  if (header.magic != kLightLogMagic) {
    return Status(Code::kDataLoss, "the log of light actors has no valid header");
  }
  salt_ = header.salt;
  used_ = kHeaderBytes;
  while (const auto record = record_at(used_)) {
    const Place place{used_, sizeof *record + filled_up(record->bytes)};
    sequence_ = record->sequence;
    note(*record, place);
    used_ += place.bytes;
  }
  return {};
}

std::optional<LightLog::RecordHeader> LightLog::record_at(std::size_t offset) const {
  RecordHeader header;
  if (segment_.size() - offset < sizeof header) return std::nullopt;
  std::memcpy(&header, segment_.data() + offset, sizeof header);
  if (header.sequence != sequence_ + 1 || header.bytes > segment_.size() - offset - sizeof header) {
    return std::nullopt;
  }
  Xxh3Stream stream;
  stream.update(std::as_bytes(std::span(&salt_, 1)));
  stream.update(std::as_bytes(std::span(&header, 1)).subspan(sizeof header.hash));
  stream.update({segment_.data() + offset + sizeof header, header.bytes});
  if (stream.digest() != header.hash) return std::nullopt;
  return header;
}

std::span<const std::byte> LightLog::bytes_at(const Place& place) const {
  RecordHeader header;
  std::memcpy(&header, segment_.data() + place.offset, sizeof header);
  return {segment_.data() + place.offset + sizeof header, header.bytes};
}

void LightLog::forget(Key key) {
  const auto found = live_.find(key);
  if (found == live_.end()) return;
  live_bytes_ -= found->second.bytes;
  live_.erase(found);
}

void LightLog::note(const RecordHeader& header, Place place) {
  const auto kind = static_cast<Kind>(header.kind);
  if (kind == Kind::kEnded) {
    forget(key_of(header.number, Kind::kCreated));
    forget(key_of(header.number, Kind::kSaved));
  }
  const Key key = key_of(header.number, kind);
  forget(key);
  live_.emplace(key, place);
  live_bytes_ += place.bytes;
}

void LightLog::write(memory::Segment& segment, std::uint64_t salt, std::size_t offset,
                     RecordHeader header, std::span<const std::byte> bytes) const {
  Xxh3Stream stream;
  stream.update(std::as_bytes(std::span(&salt, 1)));
  stream.update(std::as_bytes(std::span(&header, 1)).subspan(sizeof header.hash));
  stream.update(bytes);
  header.hash = stream.digest();
  std::byte* out = segment.data() + offset;
  if (!bytes.empty()) std::memcpy(out + sizeof header, bytes.data(), bytes.size());
  // The header last: until it is there, there is no record.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(out, &header, sizeof header);
}

Status LightLog::renew(std::size_t extra) {
  const std::size_t wanted = kHeaderBytes + 2 * (live_bytes_ + extra);
  const std::size_t page = memory::page_bytes();
  const std::size_t size = (std::max(kSegmentBytesMin, wanted) + page - 1) / page * page;
  // Populated: a full memory is an error here instead of a fault in mid-write.
  auto segment =
      TROUPE_TRY(memory::Segment::create("troupe-light-actors", size, memory::Populate::kNow));
  const LogHeader header{kLightLogMagic, SystemRandom().next_u64()};
  std::memcpy(segment.data(), &header, sizeof header);
  std::size_t offset = kHeaderBytes;
  std::uint64_t sequence = 0;
  std::unordered_map<Key, Place> moved;
  moved.reserve(live_.size());
  for (const auto& [key, place] : live_) {
    RecordHeader record;
    std::memcpy(&record, segment_.data() + place.offset, sizeof record);
    record.sequence = ++sequence;
    write(segment, header.salt, offset, record, bytes_at(place));
    moved.emplace(key, Place{offset, place.bytes});
    offset += place.bytes;
  }
  TROUPE_RETURN_IF_ERROR(keep_(segment.fd()));
  segment_ = std::move(segment);
  salt_ = header.salt;
  used_ = offset;
  sequence_ = sequence;
  live_ = std::move(moved);
  return {};
}

Status LightLog::append(RecordHeader header, std::span<const std::byte> bytes) {
  const std::size_t size = sizeof header + filled_up(bytes.size());
  if (!segment_.valid() || segment_.size() - used_ < size) TROUPE_RETURN_IF_ERROR(renew(size));
  header.bytes = bytes.size();
  header.sequence = ++sequence_;
  write(segment_, salt_, used_, header, bytes);
  note(header, {used_, size});
  used_ += size;
  return {};
}

Status LightLog::created(std::uint32_t number, std::span<const std::byte> arguments) {
  return append({.number = number, .kind = static_cast<std::uint32_t>(Kind::kCreated)}, arguments);
}

Status LightLog::saved(std::uint32_t number, const SavedState& state) {
  return append({.type_hash = state.type_hash,
                 .version = state.version,
                 .number = number,
                 .kind = static_cast<std::uint32_t>(Kind::kSaved)},
                state.bytes);
}

Status LightLog::ended(std::uint32_t number, const Status& why) {
  return append({.number = number, .kind = static_cast<std::uint32_t>(Kind::kEnded)},
                encode_value(why));
}

LightLog::Entry LightLog::find(std::uint32_t number) const {
  Entry entry;
  const auto place_of = [&](Kind kind) { return live_.find(key_of(number, kind)); };
  if (const auto it = place_of(Kind::kEnded); it != live_.end()) {
    const DecodeContext context;
    Decoder in(bytes_at(it->second), context);
    Status why;
    entry.end = Codec<Status>::decode(in, why) ? why : in.status();
  }
  if (const auto it = place_of(Kind::kCreated); it != live_.end()) {
    entry.arguments = bytes_at(it->second);
  }
  if (const auto it = place_of(Kind::kSaved); it != live_.end()) {
    RecordHeader header;
    std::memcpy(&header, segment_.data() + it->second.offset, sizeof header);
    const auto bytes = bytes_at(it->second);
    entry.state =
        SavedState{header.version, header.type_hash, wire::Bytes(bytes.begin(), bytes.end())};
  }
  return entry;
}

}  // namespace troupe::detail
