#pragma once
// What one process writes that has all of a state: models in HF form, and checkpoints as version 1
// of the format had them.

#include <set>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"

namespace troupe::train::tests {

// Writes `tensors` into `directory`, which exists, and puts them in place of what is there. Returns
// the files, sorted by name.
Result<std::vector<FileDigest>> save_weights(FileSystem& files, const std::string& directory,
                                             std::vector<StoredTensor> tensors,
                                             std::uint64_t shard_bytes_max = kShardBytesMax);

struct WholeState {
  std::int64_t step = 0;
  std::vector<StoredTensor> weights;
  std::vector<StoredTensor> optimizer;  // none: weights only
};

// `out/checkpoint-N` of run "run", version 1: moments in optimizer.safetensors, with "step" beside
// them; then rotates.
Result<WrittenCheckpoint> save_whole(FileSystem& files, const WholeState& state,
                                     const std::string& output_dir = "out",
                                     std::optional<int> save_total_limit = {},
                                     const std::set<std::int64_t>& protected_steps = {});

}  // namespace troupe::train::tests
