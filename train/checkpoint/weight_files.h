#pragma once
// Which files of a model's directory hold its weights. Private to this folder.

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct WeightFile {
  std::string name;  // in the directory
  // What the index places in it, sorted; nothing where there is no index.
  std::optional<std::vector<std::string>> tensors;
};

// model.safetensors goes before shards, as in transformers. kNotFound where there are no weights or
// a shard is missing.
Result<std::vector<WeightFile>> find_weight_files(FileSystem& files, const std::string& directory);

// Whether a file holds what the index places in it and nothing else. `found` is sorted; `path` is
// the file's.
Status check_placement(const WeightFile& file, const std::vector<std::string>& found,
                       const std::string& path);

}  // namespace troupe::train
