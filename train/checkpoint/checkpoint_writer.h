#pragma once
// Writing a checkpoint from one process that has all of it.
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
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {

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
  FileSystem& files_;
  std::string output_dir_;
  CheckpointOptions options_;
  Logger log_;
};

}  // namespace troupe::train
