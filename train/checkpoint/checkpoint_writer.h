#pragma once
// Writing `output_dir/checkpoint-N/`, atomically.
//
// Everything is written into `tmp-checkpoint-N/` and synced file by file; the manifest comes last;
// a rename makes it `checkpoint-N`; the parent is synced. So a directory under the final name is
// complete, and whatever an interruption leaves is under a name that nobody loads. One writer at a
// time for an output directory; not thread-safe.
//
// Files (hf layout): model.safetensors (or shards and index), config.json, generation_config.json
// and tokenizer where given, trainer_state.json, training_args.json, optimizer.safetensors
// (exp_avg.NAME, exp_avg_sq.NAME, step), scheduler.json, rng_state.json, cursor.json,
// troupe_checkpoint.json (manifest.h).

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {

inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kSchedulerFile = "scheduler.json";
inline constexpr const char* kRngStateFile = "rng_state.json";
inline constexpr const char* kCursorFile = "cursor.json";
inline constexpr const char* kTrainerStateFile = "trainer_state.json";
inline constexpr const char* kTrainingArgsFile = "training_args.json";

// One checkpoint in the making, whatever its layout: files are put into path() by whoever owns a
// part of the state (several ranks may), their digests are added, commit() publishes.
class CheckpointTransaction {
 public:
  // Clears what dead writers left in `output_dir` and makes the temporary directory.
  static Result<CheckpointTransaction> begin(FileSystem& files, const std::string& output_dir,
                                             std::int64_t step);
  CheckpointTransaction(CheckpointTransaction&& other) noexcept;
  CheckpointTransaction& operator=(CheckpointTransaction&&) = delete;
  // Without a commit, removes the temporary directory.
  ~CheckpointTransaction();

  // Where the files go until the commit.
  const std::string& path() const { return path_; }
  // A synced file that lies in path().
  void add(FileDigest digest) { digests_.push_back(std::move(digest)); }
  // Writes, syncs and adds a file.
  Status write(const std::string& name, std::string_view content);
  // Writes the manifest (whose `files` and `step` are filled in here), renames, syncs the parent.
  // A checkpoint of the same step is replaced. Returns the final path.
  Result<std::string> commit(Manifest manifest);

 private:
  CheckpointTransaction(FileSystem& files, std::string output_dir, std::int64_t step);
  FileSystem* files_;
  std::string output_dir_;
  std::int64_t step_;
  std::string path_;
  std::vector<FileDigest> digests_;
};

// What a checkpoint in HF layout holds. Tensors are spans of the caller's memory and must not
// change while write() runs.
struct CheckpointContents {
  std::int64_t step = 0;  // optimizer steps done
  int world_size = 1;
  std::string run;                    // the run's id, see CheckpointSearch::run
  std::vector<StoredTensor> weights;  // under their HF names
  // Optimizer state: exp_avg.NAME, exp_avg_sq.NAME. "step" is added here.
  std::vector<StoredTensor> optimizer;
  json::Value scheduler;
  json::Value rng_state;
  json::Value cursor;  // the sample cursor, opaque here
  // Name → content: config.json, tokenizer files, trainer_state.json, training_args.json.
  std::map<std::string, std::string> files;
};

struct CheckpointOptions {
  // Newest checkpoints to keep; none: all.
  std::optional<int> save_total_limit;
  // Weights, trainer state and companions only, as save_only_model.
  bool weights_only = false;
  std::uint64_t shard_bytes_max = kShardBytesMax;
};

struct WrittenCheckpoint {
  std::string path;
  std::uint64_t size_bytes = 0;      // of all files
  std::vector<std::string> removed;  // older checkpoints that went by save_total_limit
};

class CheckpointWriter {
 public:
  // `files` must outlive the writer.
  CheckpointWriter(FileSystem& files, std::string output_dir, CheckpointOptions options,
                   Logger log);

  // Writes a checkpoint durably, then removes the oldest beyond save_total_limit, but none of
  // `protected_steps` (the best model). A failure to remove is logged, not returned. On an error
  // (kResourceExhausted: the disk is full) the checkpoints before are untouched and nothing
  // temporary is left where the file system allows its removal.
  Result<WrittenCheckpoint> write(const CheckpointContents& contents,
                                  const std::set<std::int64_t>& protected_steps = {});

 private:
  Status write_state(CheckpointTransaction& transaction, const CheckpointContents& contents);
  Result<std::vector<std::string>> rotate(std::int64_t written_step,
                                          const std::set<std::int64_t>& protected_steps);
  FileSystem& files_;
  std::string output_dir_;
  CheckpointOptions options_;
  Logger log_;
};

// Removes a checkpoint such that an interruption never leaves half of it under a name that is
// loaded: renamed away first.
Status remove_checkpoint(FileSystem& files, const std::string& output_dir, const std::string& name);
// Removes what writers that are gone left under temporary names in `output_dir`: unfinished
// checkpoints, and files that were written beside the ones they were to replace.
Status clear_unfinished_saves(FileSystem& files, const std::string& output_dir);
// Removes all checkpoints of `output_dir`: a new run begins there (overwrite_output_dir).
Status remove_all_checkpoints(FileSystem& files, const std::string& output_dir);

}  // namespace troupe::train
