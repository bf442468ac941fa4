#pragma once
// Beside which base an adapter was trained: a file in its folder, and in every checkpoint of it.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/adapters/adapter_config.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::train {

inline constexpr const char* kBaseRecordFile = "adapter_base.json";

// XXH3 of every tensor's name, type and shape, and of its first, middle and last values (1024
// each): reads a few MiB of a model whatever its size. Weights that were trained differ everywhere;
// a copy in other files is the same base, one in another type is not. A change of few values may
// not be noticed.
Result<std::string> weights_hash(const TensorReader& weights);
// The same of a folder's weights, a model's or an adapter's.
Result<std::string> folder_hash(FileSystem& files, const std::string& folder);

struct BaseRecord {
  std::string hash;                 // of the model's folder
  std::vector<std::string> merged;  // of the adapters that were merged into it first, in this order
  // Their configurations, which scale them; nothing where a record does not tell them.
  std::vector<std::optional<AdapterConfig>> merged_configs = {};

  // `model` and `merged` are folders.
  static Result<BaseRecord> make(FileSystem& files, const std::string& model,
                                 const std::vector<std::string>& merged);
  std::string to_text() const;
  static Result<BaseRecord> parse(std::string_view text, std::string_view name);
};

// kInvalidArgument where the adapter in `folder` was trained beside another base than this one,
// which is `under`, or over other adapters. Folders without the file are accepted, such as PEFT's;
// so is an adapter that was trained over others where the weights are not those that these were
// merged into: an export of them has another hash and is the same base.
Status check_adapter_base(FileSystem& files, const std::string& folder, const std::string& base,
                          const BaseRecord& under);
// Of a checkpoint that a run goes on from: all of its record, and that of the run. The tensors of a
// merged adapter with another scale would make another base of them.
Status check_checkpoint_base(FileSystem& files, const std::string& checkpoint,
                             const std::string& base, const BaseRecord& run);

}  // namespace troupe::train
