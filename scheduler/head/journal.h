#pragma once
// Where the head's decisions are kept: an append-only file of records, rewritten as a snapshot when
// it has grown.
//
// File: records (runtime/base/record.h, "TRPJRNL2"), whose payloads are deltas
// (scheduler/control/delta_batch.h).
//
// What is appended at once is one record: decisions that belong together, such as the members of a
// gang, come back together or not at all.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "scheduler/control/delta.h"

namespace troupe::scheduler {

// Not thread-safe: one thread at a time (journal_writer.h).
class Journal {
 public:
  virtual ~Journal() = default;
  // Gives `take` what was kept, in order, until that fails. Once, first. A journal with a sound end
  // can be appended to from then on.
  virtual Status replay(const std::function<Status(Delta)>& take) = 0;
  // Appends and makes durable, all of them or none.
  virtual Status append(std::span<const Delta> deltas) = 0;
  // Replaces everything by `snapshot`.
  virtual Status rewrite(std::span<const Delta> snapshot) = 0;
  // Whether `append` can succeed: not before there is a file, nor behind a torn end or a write that
  // failed. Then only a rewrite makes it good.
  virtual bool can_append() const { return true; }
  // Whether a rewrite is to take the place of the next append, of at most so many bytes
  // (journal_bytes.h): it cannot be appended to, or has grown so much that a rewrite pays.
  virtual bool wants_rewrite(std::uint64_t more_bytes) const = 0;
  // Of the file; 0 where there is none.
  virtual std::uint64_t size_bytes() const { return 0; }
  // Of replay(): what stood at the end that could not be read and may have been acted upon, and
  // where it is kept now, as a sentence. Empty where there was nothing of the kind.
  virtual std::string damage() const { return {}; }
  // Whether anything is kept at all, which waits for a disk.
  virtual bool keeps() const { return true; }
};

// Keeps nothing: the embedded head lives as long as its driver.
class MemoryJournal final : public Journal {
 public:
  Status replay(const std::function<Status(Delta)>&) override { return {}; }
  Status append(std::span<const Delta>) override { return {}; }
  Status rewrite(std::span<const Delta>) override { return {}; }
  bool wants_rewrite(std::uint64_t) const override { return false; }
  bool keeps() const override { return false; }
};

// `files` must outlive it. The file never grows beyond `bytes_max`.
class FileJournal final : public Journal {
 public:
  FileJournal(FileSystem& files, std::string path,
              std::uint64_t bytes_max = limits::kJournalBytesMax)
      : files_(files), path_(std::move(path)), bytes_max_(bytes_max) {}
  // kDataLoss for a file that is no journal, is another version's, or is damaged before its end;
  // kFailedPrecondition for one above the limit. A torn end is left out; one that may be a damaged
  // record is left out too, and copied to PATH.damaged-HASH first.
  Status replay(const std::function<Status(Delta)>& take) override;
  Status append(std::span<const Delta> deltas) override;
  Status rewrite(std::span<const Delta> snapshot) override;
  bool can_append() const override { return file_ != nullptr; }
  bool wants_rewrite(std::uint64_t more_bytes) const override;
  std::uint64_t size_bytes() const override { return size_bytes_; }
  std::string damage() const override { return damage_; }

 private:
  void keep_damaged(std::uint64_t offset, std::string_view end);

  FileSystem& files_;
  const std::string path_;
  const std::uint64_t bytes_max_;
  std::unique_ptr<WritableFile> file_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t snapshot_bytes_ = 0;  // of the last rewrite; 0 before one
  std::string damage_;
};

}  // namespace troupe::scheduler
