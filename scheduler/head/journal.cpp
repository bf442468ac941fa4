#include "scheduler/head/journal.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/record.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

constexpr RecordKind kJournal{
    .magic = "TRPJRNL2",
    .name = "journal of a head; give another --state-dir, or move it away",
    .of_another_version = "end that version's cluster, then move the file away"};
// A rewrite pays when the file is mostly history: so many times the snapshot, within these bounds.
constexpr std::uint64_t kHistoryFactor = 3;
constexpr std::uint64_t kHistoryBytesLeast = 1u << 20;
// The first byte of a payload with several deltas; encode_delta's first byte is another.
constexpr std::byte kSeveral{2};

// Adds a record whose place is the end of `out`, which begins at `offset` of the file.
void put_record(std::string& out, std::uint64_t offset, std::span<const std::byte> payload) {
  const std::size_t at = out.size();
  out.resize(at + kRecordHeaderBytes + payload.size());
  write_record(reinterpret_cast<std::byte*>(out.data()) + at, offset + at, {payload});
}

// All in one, for this place in the file.
std::string record_of(std::span<const Delta> deltas, std::uint64_t offset) {
  std::string out;
  if (deltas.size() == 1) {
    put_record(out, offset, encode_delta(deltas.front()));
    return out;
  }
  std::vector<std::byte> several(1, kSeveral);
  for (const Delta& delta : deltas) {
    const auto one = encode_delta(delta);
    const auto length = static_cast<std::uint32_t>(one.size());
    const auto front = std::as_bytes(std::span(&length, 1));
    several.insert(several.end(), front.begin(), front.end());
    several.insert(several.end(), one.begin(), one.end());
  }
  put_record(out, offset, several);
  return out;
}

// Gives `take` what the payload of a record holds.
Status take_payload(std::span<const std::byte> payload, const std::function<Status(Delta)>& take) {
  if (payload.front() != kSeveral) return take(TROUPE_TRY(decode_delta(payload)));
  for (payload = payload.subspan(1); !payload.empty();) {
    std::uint32_t length = 0;
    if (payload.size() >= sizeof length) std::memcpy(&length, payload.data(), sizeof length);
    if (payload.size() < sizeof length || payload.size() - sizeof length < length) {
      return Status(Code::kDataLoss, "a journal record of several decisions is cut");
    }
    payload = payload.subspan(sizeof length);
    TROUPE_RETURN_IF_ERROR(take(TROUPE_TRY(decode_delta(payload.first(length)))));
    payload = payload.subspan(length);
  }
  return {};
}

}  // namespace

Status FileJournal::replay(const std::function<Status(Delta)>& take) {
  if (!files_.exists(path_)) return {};
  const auto file = TROUPE_TRY(files_.open_readable(path_));
  const std::uint64_t size = file->size();
  if (size > bytes_max_) {
    return error(Code::kFailedPrecondition,
                 "{} has {} bytes, and no head of this version writes or reads a journal of more "
                 "than {}: move it away to start without what it knows",
                 path_, size, bytes_max_);
  }
  size_bytes_ = size;
  // A head that died while it made its first journal left nothing that was acted upon.
  if (size < kRecordMagicBytes) return {};
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
  const std::span<std::byte> bytes(memory.get(), size);
  TROUPE_RETURN_IF_ERROR(file->read_at(0, bytes));
  TROUPE_RETURN_IF_ERROR(check_magic(
      kJournal, {reinterpret_cast<const char*>(memory.get()), kRecordMagicBytes}, path_));
  RecordReader reader(bytes);
  while (const auto payload = reader.next()) TROUPE_RETURN_IF_ERROR(take_payload(*payload, take));
  switch (reader.end()) {
    case RecordReader::End::kTorn:
      return {};
    case RecordReader::End::kDamaged:
      return error(Code::kDataLoss, "{} is damaged at byte {}; move it away to start without it",
                   path_, reader.offset());
    case RecordReader::End::kWhole:
      break;
  }
  file_ = TROUPE_TRY(files_.open_append(path_, 0600));
  return {};
}

// Each delta is a record of its own: this file comes to be as a whole.
Status FileJournal::rewrite(std::span<const Delta> snapshot) {
  file_.reset();
  std::string content(kJournal.magic);
  content.reserve(content.size() + journal_bytes(snapshot));
  for (const Delta& delta : snapshot) put_record(content, 0, encode_delta(delta));
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
