#include "scheduler/head/journal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/base/hash.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

constexpr std::string_view kMagic = "TRPJRNL2";
constexpr std::string_view kAnyMagic = kMagic.substr(0, kMagic.size() - 1);  // of any version
// A rewrite pays when the file is mostly history: so many times the snapshot, within these bounds.
constexpr std::uint64_t kHistoryFactor = 3;
constexpr std::uint64_t kHistoryBytesLeast = 1u << 20;
// Of the file that lies in memory while it is read.
constexpr std::size_t kWindowBytes = 1u << 20;

// The first byte of a payload with several deltas; encode_delta's first byte is another.
constexpr char kSeveral = 2;

void put_length(std::string& out, std::size_t size) {
  const auto length = static_cast<std::uint32_t>(size);
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
}

// Of a record. The check binds it to its place in the file: bytes within a payload that look like a
// header are none.
struct Header {
  std::uint32_t length = 0;
  std::uint64_t payload_hash = 0;
  std::uint64_t check = 0;

  static constexpr std::size_t kBytes = sizeof length + sizeof payload_hash + sizeof check;

  std::uint64_t check_at(std::uint64_t offset) const {
    std::array<std::byte, sizeof length + sizeof payload_hash + sizeof offset> bytes;
    std::memcpy(bytes.data(), &length, sizeof length);
    std::memcpy(bytes.data() + sizeof length, &payload_hash, sizeof payload_hash);
    std::memcpy(bytes.data() + sizeof length + sizeof payload_hash, &offset, sizeof offset);
    return xxh3_64(bytes);
  }
};

void put_record(std::string& out, std::uint64_t offset, std::string_view payload) {
  Header header{static_cast<std::uint32_t>(payload.size()), xxh3_64(bytes_of(payload)), 0};
  header.check = header.check_at(offset);
  put_length(out, payload.size());
  out.append(reinterpret_cast<const char*>(&header.payload_hash), sizeof header.payload_hash);
  out.append(reinterpret_cast<const char*>(&header.check), sizeof header.check);
  out.append(payload);
}

std::string text_of(const Delta& delta) {
  const auto bytes = encode_delta(delta);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// All in one, for this place in the file.
std::string record_of(std::span<const Delta> deltas, std::uint64_t offset) {
  std::string payload;
  if (deltas.size() == 1) {
    payload = text_of(deltas.front());
  } else {
    payload.assign(1, kSeveral);
    for (const Delta& delta : deltas) {
      const std::string one = text_of(delta);
      put_length(payload, one.size());
      payload += one;
    }
  }
  std::string out;
  put_record(out, offset, payload);
  return out;
}

// Gives `take` what the payload of a record holds.
Status take_payload(std::string_view payload, const std::function<Status(Delta)>& take) {
  if (payload.empty() || payload.front() != kSeveral) {
    return take(TROUPE_TRY(decode_delta(bytes_of(payload))));
  }
  payload.remove_prefix(1);
  while (!payload.empty()) {
    std::uint32_t length = 0;
    if (payload.size() >= sizeof length) std::memcpy(&length, payload.data(), sizeof length);
    if (payload.size() < sizeof length || payload.size() - sizeof length < length) {
      return Status(Code::kDataLoss, "a journal record of several decisions is cut");
    }
    payload.remove_prefix(sizeof length);
    TROUPE_RETURN_IF_ERROR(take(TROUPE_TRY(decode_delta(bytes_of(payload.substr(0, length))))));
    payload.remove_prefix(length);
  }
  return {};
}

// A journal's file, of which some lies in memory.
class RecordReader {
 public:
  explicit RecordReader(ReadableFile& file) : file_(file), size_(file.size()) {}
  std::uint64_t size() const { return size_; }

  // These bytes, or those of them that there are, until the next call.
  Result<std::string_view> bytes_at(std::uint64_t offset, std::uint64_t count) {
    count = std::min(count, size_ - std::min(offset, size_));
    if (offset < begin_ || offset + count > begin_ + window_.size()) {
      begin_ = offset;
      window_.resize(std::min(std::max<std::uint64_t>(count, kWindowBytes), size_ - offset));
      TROUPE_RETURN_IF_ERROR(file_.read_at(offset, std::as_writable_bytes(std::span(window_))));
    }
    return std::string_view(window_).substr(offset - begin_, count);
  }

  // The payload of the whole, sound record at `offset`, until the next call; nothing where there is
  // none.
  Result<std::optional<std::string_view>> record_at(std::uint64_t offset) {
    const std::string_view start = TROUPE_TRY(bytes_at(offset, Header::kBytes));
    if (start.size() < Header::kBytes) return std::optional<std::string_view>();
    Header header;
    const char* from = start.data();
    std::memcpy(&header.length, from, sizeof header.length);
    from += sizeof header.length;
    std::memcpy(&header.payload_hash, from, sizeof header.payload_hash);
    from += sizeof header.payload_hash;
    std::memcpy(&header.check, from, sizeof header.check);
    if (header.check != header.check_at(offset)) return std::optional<std::string_view>();
    const std::string_view payload = TROUPE_TRY(bytes_at(offset + Header::kBytes, header.length));
    if (payload.size() < header.length || xxh3_64(bytes_of(payload)) != header.payload_hash) {
      return std::optional<std::string_view>();
    }
    return std::optional(payload);
  }

  // Whether what begins at `offset`, where there is no sound record, is an append that did not come
  // to its end: no sound record follows. One behind it was made durable after it, so these bytes
  // were damaged later.
  Result<bool> torn_at(std::uint64_t offset) {
    for (++offset; offset < size_; ++offset) {
      if (TROUPE_TRY(record_at(offset))) return false;
    }
    return true;
  }

 private:
  ReadableFile& file_;
  const std::uint64_t size_;
  std::uint64_t begin_ = 0;
  std::string window_;
};

}  // namespace

Status FileJournal::replay(const std::function<Status(Delta)>& take) {
  if (!files_.exists(path_)) return {};
  const auto file = TROUPE_TRY(files_.open_readable(path_));
  RecordReader reader(*file);
  if (reader.size() > bytes_max_) {
    return error(Code::kFailedPrecondition,
                 "{} has {} bytes, and no head of this version writes or reads a journal of more "
                 "than {}: move it away to start without what it knows",
                 path_, reader.size(), bytes_max_);
  }
  size_bytes_ = reader.size();
  // A head that died while it made its first journal left nothing that was acted upon.
  if (reader.size() < kMagic.size()) return {};
  const std::string magic(TROUPE_TRY(reader.bytes_at(0, kMagic.size())));
  if (magic.starts_with(kAnyMagic) && magic != kMagic) {
    return error(Code::kDataLoss,
                 "{} was written by another version of troupe; end that version's cluster, then "
                 "move the file away",
                 path_);
  }
  if (magic != kMagic) {
    return error(Code::kDataLoss,
                 "{} is no journal of a head; give another --state-dir, or move it "
                 "away",
                 path_);
  }
  for (std::uint64_t offset = kMagic.size(); offset < reader.size();) {
    const auto payload = TROUPE_TRY(reader.record_at(offset));
    if (!payload) {
      if (TROUPE_TRY(reader.torn_at(offset))) return {};
      return error(Code::kDataLoss, "{} is damaged at byte {}; move it away to start without it",
                   path_, offset);
    }
    TROUPE_RETURN_IF_ERROR(take_payload(*payload, take));
    offset += Header::kBytes + payload->size();
  }
  file_ = TROUPE_TRY(files_.open_append(path_, 0600));
  return {};
}

// Each delta is a record of its own: this file comes to be as a whole.
Status FileJournal::rewrite(std::span<const Delta> snapshot) {
  file_.reset();
  std::string content(kMagic);
  content.reserve(kMagic.size() + journal_bytes(snapshot));
  for (const Delta& delta : snapshot) put_record(content, content.size(), text_of(delta));
  if (content.size() > bytes_max_) {
    return error(Code::kFailedPrecondition,
                 "what the head knows takes {} bytes, and {} may have {}", content.size(), path_,
                 bytes_max_);
  }
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files_, path_, content, 0600));
  file_ = TROUPE_TRY(files_.open_append(path_, 0600));
  size_bytes_ = snapshot_bytes_ = content.size();
  return {};
}

Status FileJournal::append(std::span<const Delta> deltas) {
  if (!file_) return error(Code::kFailedPrecondition, "{} is not open", path_);
  if (deltas.empty()) return {};
  const std::string record = record_of(deltas, size_bytes_);
  if (record.size() > bytes_max_ - size_bytes_) {
    return error(Code::kFailedPrecondition, "{} would grow beyond the {} bytes that it may have",
                 path_, bytes_max_);
  }
  Status written = file_->append(record);
  if (written.ok()) written = file_->sync();
  // After a failure the end of the file is unknown: only a rewrite makes it good again.
  if (!written.ok()) file_.reset();
  size_bytes_ += record.size();
  return written;
}

bool FileJournal::wants_rewrite(std::uint64_t more_bytes) const {
  const std::uint64_t history = std::clamp<std::uint64_t>(
      kHistoryFactor * snapshot_bytes_, kHistoryBytesLeast, limits::kJournalHistoryBytesMax);
  return !file_ || size_bytes_ + more_bytes > snapshot_bytes_ + history;
}

}  // namespace troupe::scheduler
