#include "train/checkpoint/weight_files.h"

#include <algorithm>
#include <map>

#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/name_list.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {
namespace {

// weight_map of an index: file → its tensors, sorted.
Result<std::map<std::string, std::vector<std::string>>> read_index(FileSystem& files,
                                                                   const std::string& path) {
  const auto text = TROUPE_TRY(files.read(path, limits::kSafetensorsHeaderBytesMax));
  const auto index =
      TROUPE_TRY(json::parse(text, path, {.bytes_max = limits::kSafetensorsHeaderBytesMax}));
  const auto* weight_map = json::find(index, "weight_map");
  if (!weight_map || !weight_map->is_object()) {
    return error(Code::kInvalidArgument, "{}: no \"weight_map\" object", path);
  }
  std::map<std::string, std::vector<std::string>> placed;
  for (const auto& member : weight_map->get_object()) {
    const std::string name(member.key());
    if (!member.value().is_string()) {
      return error(Code::kInvalidArgument, "{}: the file of tensor '{}' is no string", path, name);
    }
    const std::string file(member.value().get_string());
    // A name in this directory: an index must not reach out of it.
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      return error(Code::kInvalidArgument, "{}: tensor '{}' is said to lie in '{}', no file name",
                   path, name, file);
    }
    placed[file].push_back(name);
  }
  if (placed.empty()) return error(Code::kInvalidArgument, "{}: the weight_map is empty", path);
  for (auto& [file, tensors] : placed) stable_sort_by(tensors, std::less<>());
  return placed;
}

Status no_weights(FileSystem& files, const std::string& directory) {
  if (!files.exists(directory)) return error(Code::kNotFound, "no directory {}", directory);
  if (files.exists(join_path(directory, "pytorch_model.bin")) ||
      files.exists(join_path(directory, "pytorch_model.bin.index.json"))) {
    return error(Code::kUnsupported,
                 "{} holds its weights as torch pickles, which are not read; save the model with "
                 "safe_serialization=True",
                 directory);
  }
  return error(Code::kNotFound, "{} holds neither {} nor {}", directory, kWeightsFile,
               kWeightsIndexFile);
}

}  // namespace

Result<std::vector<WeightFile>> find_weight_files(FileSystem& files, const std::string& directory) {
  std::vector<WeightFile> found;
  if (files.exists(join_path(directory, kValueHeadFile)))
    found.push_back({kValueHeadFile, std::nullopt});
  if (files.exists(join_path(directory, kWeightsFile))) {
    found.push_back({kWeightsFile, std::nullopt});
    return found;
  }
  if (files.exists(join_path(directory, kAdapterFile))) {
    found.push_back({kAdapterFile, std::nullopt});
    return found;
  }
  const std::string index_path = join_path(directory, kWeightsIndexFile);
  if (!files.exists(index_path)) return no_weights(files, directory);
  for (auto& [name, tensors] : TROUPE_TRY(read_index(files, index_path))) {
    const std::string path = join_path(directory, name);
    if (!files.exists(path)) {
      return error(Code::kNotFound, "{} is missing; {} says that it holds {}", path, index_path,
                   listed(tensors));
    }
    found.push_back({name, std::move(tensors)});
  }
  return found;
}

Status check_placement(const WeightFile& file, const std::vector<std::string>& found,
                       const std::string& path) {
  if (!file.tensors) return {};
  for (const auto& tensor : *file.tensors) {
    if (!std::binary_search(found.begin(), found.end(), tensor)) {
      return error(Code::kDataLoss, "{}: the tensor '{}' is missing, which {} places there", path,
                   tensor, kWeightsIndexFile);
    }
  }
  for (const auto& tensor : found) {
    if (!std::binary_search(file.tensors->begin(), file.tensors->end(), tensor)) {
      return error(Code::kDataLoss, "{}: the tensor '{}' is not placed there by {}", path, tensor,
                   kWeightsIndexFile);
    }
  }
  return {};
}

}  // namespace troupe::train
