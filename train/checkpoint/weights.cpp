#include "train/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/checkpoint/name_list.h"

namespace troupe::train {
namespace {

// Files beside the weights that make a directory a model (transformers' and tokenizers' names).
constexpr std::array kCompanionNames = {
    "config.json",
    "adapter_config.json",
    "adapter_base.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
};

}  // namespace

bool holds_weights(FileSystem& files, const std::string& folder) {
  return files.exists(join_path(folder, kWeightsFile)) ||
         files.exists(join_path(folder, kWeightsIndexFile)) ||
         files.exists(join_path(folder, kAdapterFile));
}

Status check_weights(const std::vector<TensorInfo>& weights,
                     const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored) {
  std::map<std::string_view, const TensorInfo*> there;
  for (const auto& tensor : weights) there.emplace(tensor.name, &tensor);
  std::vector<std::string> missing, reshaped, extra;
  std::set<std::string_view> known;
  for (const auto& want : expected) {
    known.insert(want.name);
    const auto have = there.find(want.name);
    if (have == there.end()) {
      missing.push_back(want.name);
    } else if (have->second->shape != want.shape) {
      reshaped.push_back(fmt::format("{} is ({}), the configuration says ({})", want.name,
                                     join_numbers(have->second->shape), join_numbers(want.shape)));
    }
  }
  for (const auto& [name, tensor] : there) {
    if (!known.contains(name) && !(ignored && ignored(name))) extra.emplace_back(name);
  }
  if (missing.empty() && reshaped.empty() && extra.empty()) return {};
  std::string text = "the weights do not fit the model's configuration";
  if (!missing.empty()) text += "; missing: " + listed(missing);
  if (!reshaped.empty()) text += "; other shape: " + listed(reshaped);
  if (!extra.empty()) text += "; not part of the model: " + listed(extra);
  return Status(Code::kInvalidArgument, text);
}

Result<FileDigest> write_synced_file(FileSystem& files, const std::string& path,
                                     std::string_view content) {
  auto file = TROUPE_TRY(files.create(path));
  TROUPE_RETURN_IF_ERROR(file->append(content));
  TROUPE_RETURN_IF_ERROR(file->sync());
  TROUPE_RETURN_IF_ERROR(file->close());
  return FileDigest{std::filesystem::path(path).filename().string(), content.size(),
                    xxh3_64(bytes_of(content))};
}

Result<std::map<std::string, std::string>> read_companions(FileSystem& files,
                                                           const std::string& directory) {
  std::map<std::string, std::string> companions;
  for (const char* name : kCompanionNames) {
    const std::string path = join_path(directory, name);
    if (!files.exists(path)) continue;
    companions.emplace(name, TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax)));
  }
  return companions;
}

Status remove_other_companions(FileSystem& files, const std::string& directory,
                               const std::map<std::string, std::string>& kept) {
  for (const char* name : {"config.json", "adapter_config.json", "adapter_base.json"}) {
    const std::string path = join_path(directory, name);
    if (!kept.contains(name) && files.exists(path)) TROUPE_RETURN_IF_ERROR(files.remove(path));
  }
  return {};
}

}  // namespace troupe::train
