#include "scheduler/head/journal.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/base/record.h"
#include "scheduler/control/delta_batch.h"
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
// Deltas of a snapshot that share a record: so many as have so many bytes (journal_bytes.h).
constexpr std::uint64_t kBatchBytes = 256u << 10;

// Adds a record whose place is the end of `out`, which begins at `offset` of the file.
void put_record(std::string& out, std::uint64_t offset, std::span<const std::byte> payload) {
  const std::size_t at = out.size();
  out.resize(at + kRecordHeaderBytes + payload.size());
  write_record(reinterpret_cast<std::byte*>(out.data()) + at, offset + at, {payload});
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
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
  const std::span<std::byte> bytes(memory.get(), size);
  TROUPE_RETURN_IF_ERROR(file->read_at(0, bytes));
  const std::string_view text(reinterpret_cast<const char*>(memory.get()), size);
  // A head that died while it made its first journal left nothing that was acted upon.
  if (size < kRecordMagicBytes && kJournal.magic.starts_with(text)) return {};
  TROUPE_RETURN_IF_ERROR(check_magic(kJournal, text, path_));
  RecordReader reader(bytes);
  while (const auto payload = reader.next()) TROUPE_RETURN_IF_ERROR(decode_deltas(*payload, take));
  switch (reader.end()) {
    case RecordReader::End::kTorn:
      return {};
    case RecordReader::End::kUnsound:
      keep_damaged(reader.offset(), text.substr(reader.offset()));
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

// Its name is made of its content: a head that is started again before it has written the journal
// anew keeps the same bytes once. A full disk does not stop the start of a head.
void FileJournal::keep_damaged(std::uint64_t offset, std::string_view end) {
  const auto copy = fmt::format("{}.damaged-{:016x}", path_, xxh3_64(bytes_of(end)));
  const Status kept = write_file_atomically(files_, copy, end, 0600);
  damage_ = fmt::format(
      "the last {} bytes of {}, from byte {} on, are no record: a power cut has torn the last "
      "write, or they were damaged and the last decision is forgotten; {}",
      end.size(), path_, offset,
      kept.ok() ? "they are kept as " + copy
                : "they could not be kept as " + copy + ": " + kept.to_string());
}

// In records of many deltas, not in one: this file comes to be as a whole.
Status FileJournal::rewrite(std::span<const Delta> snapshot) {
  file_.reset();
  std::string content(kJournal.magic);
  while (!snapshot.empty()) {
    std::size_t count = 0;
    for (std::uint64_t bytes = 0; count < snapshot.size() && bytes < kBatchBytes; ++count) {
      bytes += journal_bytes(snapshot[count]);
    }
    put_record(content, 0, encode_deltas(snapshot.first(count)));
    snapshot = snapshot.subspan(count);
  }
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
  std::string record;
  put_record(record, size_bytes_, encode_deltas(deltas));
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
