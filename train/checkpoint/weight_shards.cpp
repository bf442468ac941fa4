#include "train/checkpoint/weight_shards.h"

#include <set>

#include "runtime/base/json.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {
namespace {

// "model.safetensors", its index, "adapter_model.safetensors", or
// "model-00001-of-00002.safetensors".
bool is_weights_file(std::string_view name) {
  if (name == kWeightsFile || name == kWeightsIndexFile || name == kAdapterFile ||
      name == kValueHeadFile)
    return true;
  constexpr std::string_view kForm = "model-#####-of-#####.safetensors";
  if (name.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (kForm[i] == '#' ? (name[i] < '0' || name[i] > '9') : name[i] != kForm[i]) return false;
  }
  return true;
}

std::vector<WeightShard> split_model(std::vector<StoredTensor> tensors,
                                     std::uint64_t shard_bytes_max) {
  if (!tensors.empty() && tensors.front().name.starts_with(kAdapterPrefix))
    return {{kAdapterFile, std::move(tensors)}};
  std::vector<WeightShard> shards(1);
  std::uint64_t bytes = 0;
  for (auto& tensor : tensors) {
    const auto size = tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
    if (!shards.back().tensors.empty() && bytes + size > shard_bytes_max) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? std::string(kWeightsFile)
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

}  // namespace

std::vector<WeightShard> split_weights(std::vector<StoredTensor> tensors,
                                       std::uint64_t shard_bytes_max) {
  std::vector<StoredTensor> value_head;
  std::erase_if(tensors, [&](const StoredTensor& tensor) {
    if (!tensor.name.starts_with(kValueHeadTensors)) return false;
    value_head.push_back(tensor);
    return true;
  });
  auto shards = split_model(std::move(tensors), shard_bytes_max);
  if (!value_head.empty()) shards.push_back({kValueHeadFile, std::move(value_head)});
  return shards;
}

bool has_index(const std::vector<WeightShard>& shards) {
  return shards.front().name != kWeightsFile && shards.front().name != kAdapterFile;
}

std::string weight_index_text(const std::vector<WeightShard>& shards) {
  json::Object weight_map;
  std::uint64_t bytes = 0, parameters = 0;
  for (const auto& shard : shards) {
    if (shard.name == kValueHeadFile) continue;
    for (const auto& tensor : shard.tensors) {
      weight_map[tensor.name] = shard.name;
      bytes += tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
      parameters += static_cast<std::uint64_t>(tensor.element_count());
    }
  }
  json::Object index;
  index["metadata"] = json::Object{{"total_parameters", parameters}, {"total_size", bytes}};
  index["weight_map"] = std::move(weight_map);
  return json::write_indented(index, true) + "\n";
}

// One file replaces the old one at once. Shards take the names of old shards one by one: the old
// index goes first, so that meanwhile nothing looks complete, and the new one comes last.
Status put_weights_in_place(FileSystem& files, const std::string& directory,
                            const std::vector<std::string>& names,
                            const std::function<std::string(const std::string&)>& temporary) {
  const std::string index = join_path(directory, kWeightsIndexFile);
  if (names.size() > 1 && files.exists(index)) {
    TROUPE_RETURN_IF_ERROR(files.remove(index));
    TROUPE_RETURN_IF_ERROR(files.sync_directory(directory));
  }
  for (const auto& name : names) {
    if (name == kWeightsIndexFile) TROUPE_RETURN_IF_ERROR(files.sync_directory(directory));
    TROUPE_RETURN_IF_ERROR(files.rename(temporary(name), join_path(directory, name)));
  }
  TROUPE_RETURN_IF_ERROR(files.sync_directory(directory));
  const std::set<std::string> current(names.begin(), names.end());
  bool removed = false;
  for (const auto& entry : TROUPE_TRY(files.list(directory))) {
    // Weights of an earlier save, or what a save that was killed left under temporary names.
    std::string_view name = entry.name;
    if (name.ends_with(kUnfinishedSuffix)) name.remove_suffix(kUnfinishedSuffix.size());
    if (entry.is_directory || !is_weights_file(name) || current.contains(entry.name)) continue;
    TROUPE_RETURN_IF_ERROR(files.remove(join_path(directory, entry.name)));
    removed = true;
  }
  return removed ? files.sync_directory(directory) : Status();
}

}  // namespace troupe::train
