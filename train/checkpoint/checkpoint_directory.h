#pragma once
// `output_dir/checkpoint-N/` directories: made atomically, rotated, removed.
//
// Everything is written into `tmp-checkpoint-N…/` and synced file by file; the manifest comes last;
// a rename makes it `checkpoint-N`; the parent is synced. So a directory under the final name is
// complete, and whatever an interruption leaves is under a name that nobody loads. One writer at a
// time for an output directory; not thread-safe.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/manifest.h"

namespace troupe::train {

// The files of a checkpoint beside its weights.
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kSchedulerFile = "scheduler.json";
inline constexpr const char* kRngStateFile = "rng_state.json";
inline constexpr const char* kCursorFile = "cursor.json";
inline constexpr const char* kTrainerStateFile = "trainer_state.json";
inline constexpr const char* kTrainingArgsFile = "training_args.json";
// What was trained on (train/data/sample_stream.h). In the output directory, too, where a later
// start finds the hashes of data files that have not changed since.
inline constexpr const char* kSampleStreamFile = "sample_stream.json";

// One checkpoint in the making, whatever its layout: files are put into path() by whoever owns a
// part of the state (several ranks may), what they are is added, commit() publishes.
class CheckpointTransaction {
 public:
  // Clears what dead writers left in `output_dir` and makes the temporary directory, under a name
  // that ends in `suffix`.
  static Result<CheckpointTransaction> begin(FileSystem& files, const std::string& output_dir,
                                             std::int64_t step, std::string_view suffix = {});
  CheckpointTransaction(CheckpointTransaction&& other) noexcept;
  CheckpointTransaction& operator=(CheckpointTransaction&&) = delete;
  // Without a commit, removes the temporary directory.
  ~CheckpointTransaction();

  // Where the files go until the commit.
  const std::string& path() const { return path_; }
  // That path for a writer who has no transaction.
  static std::string path_of(const std::string& output_dir, std::int64_t step,
                             std::string_view suffix);
  // A synced file that lies in path().
  void add(FileDigest digest) { add(ManifestFile{std::move(digest), {}, {}}); }
  void add(ManifestFile file) { written_.push_back(std::move(file)); }
  // Writes, syncs and adds a file.
  Status write(const std::string& name, std::string_view content);
  // Writes the manifest (whose `files` and `step` are filled in here), renames, syncs the parent.
  // A checkpoint of the same step is replaced, an earlier run's are removed. Returns the final
  // path.
  Result<std::string> commit(Manifest manifest);

 private:
  CheckpointTransaction(FileSystem& files, std::string output_dir, std::int64_t step,
                        std::string path);
  FileSystem* files_;
  std::string output_dir_;
  std::int64_t step_;
  std::string path_;
  std::vector<ManifestFile> written_;
};

struct WrittenCheckpoint {
  std::int64_t step = 0;
  std::string path;
  std::uint64_t size_bytes = 0;      // of all files
  std::vector<std::string> removed;  // older checkpoints that went by save_total_limit
};

// Removes the oldest checkpoints beyond the newest `save_total_limit` (none or not positive: keeps
// all), but neither that of `written_step` nor `protected_steps`. Returns the names of those gone.
Result<std::vector<std::string>> rotate_checkpoints(FileSystem& files,
                                                    const std::string& output_dir,
                                                    std::optional<int> save_total_limit,
                                                    std::int64_t written_step,
                                                    const std::set<std::int64_t>& protected_steps);

// Removes a checkpoint such that an interruption never leaves half of it under a name that is
// loaded: renamed away first.
Status remove_checkpoint(FileSystem& files, const std::string& output_dir, const std::string& name);
// Removes what writers that are gone left under temporary names in `output_dir`: unfinished
// checkpoints, and files that were written beside the ones they were to replace.
Status clear_unfinished_saves(FileSystem& files, const std::string& output_dir);
// Where an earlier run's checkpoints are kept in an output directory (below), until a
// CheckpointTransaction there is committed.
inline constexpr const char* kEarlierRunFolder = "earlier-run";
// Moves all checkpoints of `output_dir` there: a new run begins (overwrite_output_dir), and may end
// before it has any of its own.
Status set_checkpoints_aside(FileSystem& files, const std::string& output_dir);
// Removes them: the new run has saved.
Status forget_earlier_run(FileSystem& files, const std::string& output_dir);

}  // namespace troupe::train
