#pragma once
// Weights as a model's directory, for whoever loads models: of a checkpoint, whatever it was
// written by and in, or tensor by tensor.

#include <cstdint>
#include <functional>
#include <map>
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

// kAlreadyExists where a directory holds a model, an adapter or a checkpoint, or is the output
// directory of a training that goes on, or may go on from a checkpoint in it.
Status check_new_model(FileSystem& files, const std::string& out);

// A model that is written tensor by tensor.
struct WrittenModel {
  std::map<std::string, std::string> companions;  // config.json and what else goes with it
  std::vector<StoredTensor> tensors;              // sorted by name, without their data
  std::uint64_t shard_bytes_max = kShardBytesMax;
  // Appends the whole data of one of `tensors`.
  std::function<Status(const StoredTensor&, SafetensorsWriter&)> append;
  // Before each file of weights; may be empty.
  std::function<void(const std::string& file, std::uint64_t size_bytes)> on_file = {};
};
// Writes it to `out`, which check_new_model() must accept. The weights are put in place when all of
// them are written and synced; a failure leaves none.
Result<MergedModel> write_model(FileSystem& files, const std::string& out,
                                const WrittenModel& model);

// Writes the weights of a validated checkpoint to `out` in HF form, types kept, with config.json,
// generation_config.json and tokenizer beside them. Memory: a buffer. kNotFound where the
// checkpoint has no config.json; kAlreadyExists where `out` holds weights already.
Result<MergedModel> merge_checkpoint(FileSystem& files, const GoodCheckpoint& checkpoint,
                                     const std::string& out,
                                     std::uint64_t shard_bytes_max = kShardBytesMax);

}  // namespace troupe::train
