#pragma once
// A model's weights in a directory, as Hugging Face lays them out: `model.safetensors`, or shards
// `model-00001-of-0000N.safetensors` with `model.safetensors.index.json`; and what lies beside
// them.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/tensor_piece.h"

namespace troupe::train {

inline constexpr const char* kWeightsFile = "model.safetensors";
// PEFT's adapters, which lie in one file whatever its size. Their tensors' names have a prefix.
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
// A reward model's head, beside its weights or adapter, by TRL's and LLaMA-Factory's names. An
// index does not list it.
inline constexpr const char* kValueHeadFile = "value_head.safetensors";
inline constexpr std::uint64_t kValueHeadBytesMax = 16u << 20;  // of a width beyond all models
inline constexpr std::string_view kValueHeadTensors = "v_head.";
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";
// transformers' default max_shard_size, "5GB".
inline constexpr std::uint64_t kShardBytesMax = 5'000'000'000;

// Whether a folder has the weights of a model, or their index, as transformers names them.
bool holds_weights(FileSystem& files, const std::string& folder);

// What a model wants to find.
struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Whether `weights` (TensorReader::weights()) hold exactly `expected` with these shapes. The error
// lists what is missing, what has another shape, and what is there and unknown (the first ten of
// each). Names for which `ignored` holds (GPT-2's attn.bias buffers, a stored copy of a tied head)
// may be there.
Status check_weights(const std::vector<TensorInfo>& weights,
                     const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored = {});

// Writes `content` to a new file and syncs it (not its name in the directory).
Result<FileDigest> write_synced_file(FileSystem& files, const std::string& path,
                                     std::string_view content);

// The files of a model's directory that go with its weights wherever they are saved: config.json,
// generation_config.json, tokenizer and chat template; those that are there, name → content.
Result<std::map<std::string, std::string>> read_companions(FileSystem& files,
                                                           const std::string& directory);
// Removes what says that the directory is a model, or an adapter, and is not in `kept`: of one of
// the other kind that stood there before (a config.json makes an adapter's folder a model's).
Status remove_other_companions(FileSystem& files, const std::string& directory,
                               const std::map<std::string, std::string>& kept);

}  // namespace troupe::train
