#include "train/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <set>

#include "runtime/base/limits.h"
#include "train/checkpoint/name_list.h"
#include "train/checkpoint/weight_files.h"

namespace troupe::train {
namespace {

// Files beside the weights that make a directory a model (transformers' and tokenizers' names).
constexpr std::array kCompanionNames = {
    "config.json",
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

Result<Weights> Weights::load(FileSystem& files, const std::string& directory) {
  Weights weights;
  weights.directory_ = directory;
  for (const auto& found : TROUPE_TRY(find_weight_files(files, directory))) {
    const std::string path = join_path(directory, found.name);
    auto file =
        std::make_shared<const SafetensorsFile>(TROUPE_TRY(SafetensorsFile::open(files, path)));
    std::vector<std::string> names;
    for (const auto& tensor : file->tensors()) names.push_back(tensor.name);
    TROUPE_RETURN_IF_ERROR(check_placement(found, names, path));
    for (const auto& tensor : file->tensors()) weights.tensors_.emplace(tensor.name, tensor);
    weights.files_.push_back(std::move(file));
  }
  return weights;
}

const StoredTensor* Weights::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<const StoredTensor*> Weights::tensors() const {
  std::vector<const StoredTensor*> all;
  for (const auto& [name, tensor] : tensors_) all.push_back(&tensor);
  return all;
}

bool Weights::add_alias(const std::string& alias, std::string_view name) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || tensors_.contains(alias)) return false;
  StoredTensor tensor = it->second;
  tensor.name = alias;
  tensors_.emplace(alias, std::move(tensor));
  return true;
}

std::vector<std::string> Weights::file_names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) names.push_back(file->path().substr(file->path().rfind('/') + 1));
  return names;
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
                                     fmt::join(have->second->shape, ", "),
                                     fmt::join(want.shape, ", ")));
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

Status check_weights(const Weights& weights, const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored) {
  std::vector<TensorInfo> found;
  for (const auto* tensor : weights.tensors()) {
    found.push_back({tensor->name, tensor->dtype, tensor->shape, tensor->element_count()});
  }
  return check_weights(found, expected, ignored);
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

}  // namespace troupe::train
