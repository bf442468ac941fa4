#pragma once
// One rank's part of one save, on its way to the disk. Private to this folder.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/part_writer.h"
#include "train/checkpoint/save_plan.h"

namespace troupe::train {

// Writes parts into the files of a plan: opens, syncs and closes them as they come and go.
class PlannedFileWriter {
 public:
  PlannedFileWriter(FileSystem& files, std::string directory, const SavePlan& plan,
                    WriteBuffer& buffer, const std::atomic<bool>& cancelled);

  // Parts come by file.
  Status begin(const PlannedPart& part);
  Status append(std::span<const std::byte> data) { return writer_.append(data); }
  // The part is complete; its hash.
  Result<std::uint64_t> finish() { return writer_.finish(); }
  // Syncs and closes the last file.
  Status close();

 private:
  FileSystem& files_;
  std::string directory_;
  const SavePlan& plan_;
  PartWriter writer_;
  std::unique_ptr<PositionalFile> file_;
  std::optional<std::size_t> index_;
};

enum class SaveTarget {
  kCheckpoint,
  kModel,  // the final output: weights in the output directory itself
};

class SaveJob {
 public:
  SaveJob(FileSystem& files, const Clock& clock, const SaverOptions& options, SaveTarget target,
          std::string suffix, int rank, SaveContents contents,
          std::shared_ptr<const SavePlan> plan);

  std::int64_t step() const { return contents_.step; }
  const SavePlan& plan() const { return *plan_; }
  // The bytes of a segment of this rank.
  std::span<const std::byte> bytes_of_segment(const PlannedPart& part,
                                              const PlannedSegment& segment) const;
  // A writer for what other ranks sent here.
  PlannedFileWriter make_writer(WriteBuffer& buffer) const {
    return {files_, directory_, *plan_, buffer, cancelled_};
  }
  Status create_directory() { return files_.create_directories(directory_); }

  // The writing stops soon; from any thread.
  void cancel() { cancelled_ = true; }

  // On the saver's thread: writes what is this rank's and, at rank 0, all files beside the tensors.
  // `writes_pieces` is false where the pieces were sent to rank 0 instead.
  void write(bool writes_pieces, WriteBuffer& buffer);
  // Once write() is done.
  const Status& outcome() const { return outcome_; }
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }  // by RankPlan::parts
  double write_seconds() const { return write_seconds_; }

  // Rank 0, on the saver's thread, once all ranks have written. `hashes`: by rank, then by part.
  Result<WrittenCheckpoint> commit(const std::vector<std::vector<std::uint64_t>>& hashes,
                                   Logger& log);
  Status place_model();
  // Removes what was written.
  void drop();

 private:
  Status write_all(bool writes_pieces, WriteBuffer& buffer);
  Status write_beside();
  Status write_pieces(WriteBuffer& buffer);
  std::vector<ManifestFile> manifest_files(
      const std::vector<std::vector<std::uint64_t>>& hashes) const;

  FileSystem& files_;
  const Clock& clock_;
  const SaverOptions& options_;
  const SaveTarget target_;
  const std::string suffix_;
  const std::string directory_;
  const int rank_;
  SaveContents contents_;
  const std::shared_ptr<const SavePlan> plan_;
  std::atomic<bool> cancelled_{false};
  std::optional<CheckpointTransaction> transaction_;  // rank 0
  Status outcome_;
  std::vector<std::uint64_t> hashes_;
  double write_seconds_ = 0;
};

}  // namespace troupe::train
