#pragma once
// A model's weights in a directory, as Hugging Face lays them out: `model.safetensors`, or shards
// `model-00001-of-0000N.safetensors` with `model.safetensors.index.json`.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/tensor_piece.h"

namespace troupe::train {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";
// transformers' default max_shard_size, "5GB".
inline constexpr std::uint64_t kShardBytesMax = 5'000'000'000;

// The weights of one model, mapped. Immutable, may be read from any thread.
class Weights {
 public:
  // Opens what `directory` holds; model.safetensors goes before shards, as in transformers. Errors
  // name the file and the tensor: kNotFound where there are no weights or a shard is missing,
  // kDataLoss where a file is cut off or the index and the shards disagree.
  static Result<Weights> load(FileSystem& files, const std::string& directory);

  // The tensor, or nullptr.
  const StoredTensor* find(std::string_view name) const;
  // Sorted by name.
  std::vector<const StoredTensor*> tensors() const;
  // Makes `alias` another name of `name` where `alias` is absent and `name` is there: a tied
  // lm_head.weight is not stored. Returns whether it did.
  bool add_alias(const std::string& alias, std::string_view name);
  // The names of the files, in order.
  std::vector<std::string> file_names() const;

 private:
  std::string directory_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// What a model wants to find.
struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Whether `weights` hold exactly `expected` with these shapes. The error lists what is missing,
// what has another shape, and what is there and unknown (the first ten of each). Names for which
// `ignored` holds (GPT-2's attn.bias buffers, a stored copy of a tied head) may be there.
Status check_weights(const Weights& weights, const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored = {});
// The same for TensorReader::weights().
Status check_weights(const std::vector<TensorInfo>& weights,
                     const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored = {});

// Writes `tensors` into `directory`, which exists: one file, or shards and an index where they take
// more than `shard_bytes_max` together. Files are written under temporary names, synced and renamed
// such that an interruption leaves the old weights, the new ones, or a directory that load()
// refuses; weights of an earlier save that do not belong to this one are removed. On an error
// nothing temporary is left. Returns the files written, sorted by name.
Result<std::vector<FileDigest>> save_weights(FileSystem& files, const std::string& directory,
                                             std::vector<StoredTensor> tensors,
                                             std::uint64_t shard_bytes_max = kShardBytesMax);

// Writes `content` to a new file and syncs it (not its name in the directory).
Result<FileDigest> write_synced_file(FileSystem& files, const std::string& path,
                                     std::string_view content);

// The final output: the weights in HF form with config.json, generation_config.json and the
// tokenizer's files beside them (`companions`: name → content), each replaced atomically.
Status save_model(FileSystem& files, const std::string& directory,
                  std::vector<StoredTensor> tensors,
                  const std::map<std::string, std::string>& companions,
                  std::uint64_t shard_bytes_max = kShardBytesMax);

// The files of a model's directory that go with its weights wherever they are saved: config.json,
// generation_config.json, tokenizer and chat template; those that are there, name → content.
Result<std::map<std::string, std::string>> read_companions(FileSystem& files,
                                                           const std::string& directory);

}  // namespace troupe::train
