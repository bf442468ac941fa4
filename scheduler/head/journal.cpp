#include "scheduler/head/journal.h"

#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/base/hash.h"

namespace troupe::scheduler {
namespace {

constexpr std::string_view kMagic = "TRPJRNL1";
constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t) + sizeof(std::uint64_t);
constexpr std::uint64_t kJournalBytesMax = std::uint64_t{1} << 30;
// A rewrite pays above this size, when the file is mostly history.
constexpr std::uint64_t kRewriteBytes = 1u << 20;
constexpr std::uint64_t kRewriteFactor = 4;
// What is hashed at most to tell a torn end from a damaged middle.
constexpr std::uint64_t kTornLookMin = 64u << 20;
constexpr std::uint64_t kTornLookFactor = 8;

// The first byte of a payload with several deltas; encode_delta's first byte is another.
constexpr char kSeveral = 2;

void put_length(std::string& out, std::size_t size) {
  const auto length = static_cast<std::uint32_t>(size);
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
}

void put_record(std::string& out, std::string_view payload) {
  put_length(out, payload.size());
  const std::uint64_t hash = xxh3_64(bytes_of(payload));
  out.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  out.append(payload);
}

std::string text_of(const Delta& delta) {
  const auto bytes = encode_delta(delta);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Each on its own: for a file that comes to be as a whole.
std::string records_of(std::span<const Delta> deltas) {
  std::string out;
  for (const Delta& delta : deltas) put_record(out, text_of(delta));
  return out;
}

// How many bytes record_at_front() would have to hash.
std::uint64_t payload_bytes(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return 0;
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length > bytes.size() - kHeaderBytes ? 0 : length;
}

// All in one.
std::string record_of(std::span<const Delta> deltas) {
  if (deltas.size() == 1) return records_of(deltas);
  std::string payload(1, kSeveral);
  for (const Delta& delta : deltas) {
    const std::string one = text_of(delta);
    put_length(payload, one.size());
    payload += one;
  }
  std::string out;
  put_record(out, payload);
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

// The payload of the record that `bytes` begin with; nothing where there is no whole, sound one.
std::optional<std::string_view> record_at_front(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  std::uint32_t length = 0;
  std::uint64_t hash = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::memcpy(&hash, bytes.data() + sizeof length, sizeof hash);
  if (length > bytes.size() - kHeaderBytes) return std::nullopt;
  const std::string_view payload = bytes.substr(kHeaderBytes, length);
  if (xxh3_64(bytes_of(payload)) != hash) return std::nullopt;
  return payload;
}

// Whether bytes that are no record are an append that did not come to its end: no record follows.
// A sound one behind them was made durable after them, so they were damaged later. Bytes at which
// every second one could begin a long record are no end that a torn append leaves: they count as
// damaged once more than a few times their number have been looked at.
bool torn(std::string_view bytes) {
  std::uint64_t left = kTornLookMin + kTornLookFactor * bytes.size();
  while (bytes.size() > kHeaderBytes) {
    bytes.remove_prefix(1);
    const std::uint64_t looked_at = payload_bytes(bytes);
    if (looked_at > left) return false;
    left -= looked_at;
    if (record_at_front(bytes)) return false;
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
  if (!content.starts_with(kMagic)) {
    return error(Code::kDataLoss,
                 "{} is no journal of a head; give another --state-dir, or move it "
                 "away",
                 path_);
  }
  std::string_view rest = std::string_view(content).substr(kMagic.size());
  while (!rest.empty()) {
    const auto payload = record_at_front(rest);
    if (!payload) {
      if (torn(rest)) break;
      return error(Code::kDataLoss, "{} is damaged at byte {}; move it away to start without it",
                   path_, content.size() - rest.size());
    }
    TROUPE_RETURN_IF_ERROR(take_payload(*payload, deltas));
    rest.remove_prefix(kHeaderBytes + payload->size());
  }
  return deltas;
}

Status FileJournal::rewrite(std::span<const Delta> snapshot) {
  file_.reset();
  const std::string content = std::string(kMagic) + records_of(snapshot);
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files_, path_, content, 0600));
  file_ = TROUPE_TRY(files_.open_append(path_, 0600));
  size_bytes_ = snapshot_bytes_ = content.size();
  return {};
}

Status FileJournal::append(std::span<const Delta> deltas) {
  if (!file_) return error(Code::kFailedPrecondition, "{} is not open", path_);
  if (deltas.empty()) return {};
  const std::string records = record_of(deltas);
  Status written = file_->append(records);
  if (written.ok()) written = file_->sync();
  // After a failure the end of the file is unknown: only a rewrite makes it good again.
  if (!written.ok()) file_.reset();
  size_bytes_ += records.size();
  return written;
}

bool FileJournal::wants_rewrite() const {
  return !file_ || (size_bytes_ > kRewriteBytes && size_bytes_ > kRewriteFactor * snapshot_bytes_);
}

}  // namespace troupe::scheduler
