#include "scheduler/head/journal.h"

#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/base/hash.h"

namespace troupe::scheduler {
namespace {

constexpr std::string_view kMagic = "TRPJRNL2";
constexpr std::string_view kAnyMagic = kMagic.substr(0, kMagic.size() - 1);  // of any version
constexpr std::uint64_t kJournalBytesMax = std::uint64_t{1} << 30;
// A rewrite pays above this size, when the file is mostly history.
constexpr std::uint64_t kRewriteBytes = 1u << 20;
constexpr std::uint64_t kRewriteFactor = 4;

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

// Each on its own: for a file that comes to be as a whole.
std::string content_of(std::span<const Delta> deltas) {
  std::string out(kMagic);
  for (const Delta& delta : deltas) put_record(out, out.size(), text_of(delta));
  return out;
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

// Appends what the payload of a record holds.
Status take_payload(std::string_view payload, std::vector<Delta>& deltas) {
  if (payload.empty() || payload.front() != kSeveral) {
    deltas.push_back(TROUPE_TRY(decode_delta(bytes_of(payload))));
    return {};
  }
  payload.remove_prefix(1);
  while (!payload.empty()) {
    std::uint32_t length = 0;
    if (payload.size() >= sizeof length) std::memcpy(&length, payload.data(), sizeof length);
    if (payload.size() < sizeof length || payload.size() - sizeof length < length) {
      return Status(Code::kDataLoss, "a journal record of several decisions is cut");
    }
    payload.remove_prefix(sizeof length);
    deltas.push_back(TROUPE_TRY(decode_delta(bytes_of(payload.substr(0, length)))));
    payload.remove_prefix(length);
  }
  return {};
}

// The header at `offset` of a file; nothing where there is none of a record.
std::optional<Header> header_at(std::string_view content, std::uint64_t offset) {
  if (content.size() - offset < Header::kBytes) return std::nullopt;
  Header header;
  const char* from = content.data() + offset;
  std::memcpy(&header.length, from, sizeof header.length);
  from += sizeof header.length;
  std::memcpy(&header.payload_hash, from, sizeof header.payload_hash);
  from += sizeof header.payload_hash;
  std::memcpy(&header.check, from, sizeof header.check);
  if (header.check != header.check_at(offset)) return std::nullopt;
  return header;
}

// The payload of the whole, sound record at `offset`.
std::optional<std::string_view> record_at(std::string_view content, std::uint64_t offset) {
  const auto header = header_at(content, offset);
  if (!header || header->length > content.size() - offset - Header::kBytes) return std::nullopt;
  const std::string_view payload = content.substr(offset + Header::kBytes, header->length);
  if (xxh3_64(bytes_of(payload)) != header->payload_hash) return std::nullopt;
  return payload;
}

// Whether what begins at `offset`, where there is no sound record, is an append that did not come
// to its end: no sound record follows. One behind it was made durable after it, so these bytes were
// damaged later.
bool torn(std::string_view content, std::uint64_t offset) {
  for (++offset; offset < content.size(); ++offset) {
    if (record_at(content, offset)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<Delta>> FileJournal::replay() {
  std::vector<Delta> deltas;
  if (!files_.exists(path_)) return deltas;
  const std::string content = TROUPE_TRY(files_.read(path_, kJournalBytesMax));
  // A head that died while it made its first journal left nothing that was acted upon.
  if (content.size() < kMagic.size()) return deltas;
  if (content.starts_with(kAnyMagic) && !content.starts_with(kMagic)) {
    return error(Code::kDataLoss,
                 "{} was written by another version of troupe; end that version's cluster, then "
                 "move the file away",
                 path_);
  }
  if (!content.starts_with(kMagic)) {
    return error(Code::kDataLoss,
                 "{} is no journal of a head; give another --state-dir, or move it "
                 "away",
                 path_);
  }
  for (std::uint64_t offset = kMagic.size(); offset < content.size();) {
    const auto payload = record_at(content, offset);
    if (!payload) {
      if (torn(content, offset)) break;
      return error(Code::kDataLoss, "{} is damaged at byte {}; move it away to start without it",
                   path_, offset);
    }
    TROUPE_RETURN_IF_ERROR(take_payload(*payload, deltas));
    offset += Header::kBytes + payload->size();
  }
  return deltas;
}

Status FileJournal::rewrite(std::span<const Delta> snapshot) {
  file_.reset();
  const std::string content = content_of(snapshot);
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files_, path_, content, 0600));
  file_ = TROUPE_TRY(files_.open_append(path_, 0600));
  size_bytes_ = snapshot_bytes_ = content.size();
  return {};
}

Status FileJournal::append(std::span<const Delta> deltas) {
  if (!file_) return error(Code::kFailedPrecondition, "{} is not open", path_);
  if (deltas.empty()) return {};
  const std::string record = record_of(deltas, size_bytes_);
  Status written = file_->append(record);
  if (written.ok()) written = file_->sync();
  // After a failure the end of the file is unknown: only a rewrite makes it good again.
  if (!written.ok()) file_.reset();
  size_bytes_ += record.size();
  return written;
}

bool FileJournal::wants_rewrite() const {
  return !file_ || (size_bytes_ > kRewriteBytes && size_bytes_ > kRewriteFactor * snapshot_bytes_);
}

}  // namespace troupe::scheduler
