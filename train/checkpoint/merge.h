#pragma once
// A checkpoint's weights as a model's directory: for whoever loads models, whatever the checkpoint
// was written by and in.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {

struct MergedModel {
  std::vector<FileDigest> files;  // what was written, sorted by name
  std::uint64_t size_bytes = 0;   // of them all
  std::size_t tensor_count = 0;
};

// Writes the weights of a validated checkpoint to `out` in HF form, types kept, with config.json,
// generation_config.json and tokenizer beside them. Memory: a buffer. kNotFound where the
// checkpoint has no config.json; kAlreadyExists where `out` holds weights already.
Result<MergedModel> merge_checkpoint(FileSystem& files, const GoodCheckpoint& checkpoint,
                                     const std::string& out,
                                     std::uint64_t shard_bytes_max = kShardBytesMax);

}  // namespace troupe::train
