#pragma once
// How weights are spread over files, and how the files are put in place. Private to this folder.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/safetensors.h"

namespace troupe::train {

// Weights that are being written into a directory, and are not to be taken for finished ones.
inline constexpr std::string_view kUnfinishedSuffix = ".tmp";

struct WeightShard {
  std::string name;
  std::vector<StoredTensor> tensors;
};

// Of `tensors`, which are sorted by name, the data is not looked at. Greedy in the order of names,
// as huggingface_hub's split_torch_state_dict_into_shards does: a tensor that does not fit opens
// the next shard; one above the limit has a shard to itself. Adapters are one file; a value head is
// the last one.
std::vector<WeightShard> split_weights(std::vector<StoredTensor> tensors,
                                       std::uint64_t shard_bytes_max);

// Whether they are to be found by an index, and its text: model.safetensors.index.json.
bool has_index(const std::vector<WeightShard>& shards);
std::string weight_index_text(const std::vector<WeightShard>& shards);

// Renames the files `names` (their index last, where there is one) from where `temporary` says they
// lie to their names in `directory`, such that an interruption leaves the old weights, the new
// ones, or a directory that is refused on loading. Removes the weights of an earlier save that do
// not belong to this one.
Status put_weights_in_place(FileSystem& files, const std::string& directory,
                            const std::vector<std::string>& names,
                            const std::function<std::string(const std::string&)>& temporary);

}  // namespace troupe::train
