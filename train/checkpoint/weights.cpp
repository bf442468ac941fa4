#include "train/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <set>

#include "runtime/base/json.h"
#include "runtime/base/limits.h"

namespace troupe::train {
namespace {

// Names listed in an error before "and N more".
constexpr std::size_t kNamesListedMax = 10;

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

std::string listed(const std::vector<std::string>& names) {
  const auto shown = std::min(names.size(), kNamesListedMax);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// weight_map of an index: tensor → file.
Result<std::map<std::string, std::string>> read_index(FileSystem& files, const std::string& path) {
  const auto text = TROUPE_TRY(files.read(path, limits::kSafetensorsHeaderBytesMax));
  const auto index =
      TROUPE_TRY(json::parse(text, path, {.bytes_max = limits::kSafetensorsHeaderBytesMax}));
  const auto* weight_map = json::find(index, "weight_map");
  if (!weight_map || !weight_map->is_object()) {
    return error(Code::kInvalidArgument, "{}: no \"weight_map\" object", path);
  }
  std::map<std::string, std::string> map;
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
    map.emplace(name, file);
  }
  if (map.empty()) return error(Code::kInvalidArgument, "{}: the weight_map is empty", path);
  return map;
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

Result<Weights> Weights::load(FileSystem& files, const std::string& directory) {
  Weights weights;
  weights.directory_ = directory;
  const auto add = [&](SafetensorsFile file) {
    auto shared = std::make_shared<const SafetensorsFile>(std::move(file));
    for (const auto& tensor : shared->tensors()) weights.tensors_.emplace(tensor.name, tensor);
    weights.files_.push_back(std::move(shared));
  };
  const std::string single = join_path(directory, kWeightsFile);
  if (files.exists(single)) {
    add(TROUPE_TRY(SafetensorsFile::open(files, single)));
    return weights;
  }
  const std::string index_path = join_path(directory, kWeightsIndexFile);
  if (!files.exists(index_path)) return no_weights(files, directory);

  const auto index = TROUPE_TRY(read_index(files, index_path));
  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, file] : index) tensors_of[file].push_back(tensor);
  for (const auto& [name, expected] : tensors_of) {
    const std::string path = join_path(directory, name);
    if (!files.exists(path)) {
      return error(Code::kNotFound, "{} is missing; {} says that it holds {}", path, index_path,
                   listed(expected));
    }
    auto file = TROUPE_TRY(SafetensorsFile::open(files, path));
    for (const auto& tensor : expected) {
      if (!file.find(tensor)) {
        return error(Code::kDataLoss, "{}: the tensor '{}' is missing, which {} places there", path,
                     tensor, kWeightsIndexFile);
      }
    }
    for (const auto& tensor : file.tensors()) {
      const auto it = index.find(tensor.name);
      if (it == index.end() || it->second != name) {
        return error(Code::kDataLoss, "{}: the tensor '{}' is not placed there by {}", path,
                     tensor.name, kWeightsIndexFile);
      }
    }
    add(std::move(file));
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

Status check_weights(const Weights& weights, const std::vector<ExpectedTensor>& expected,
                     const std::function<bool(std::string_view)>& ignored) {
  std::vector<std::string> missing, reshaped, extra;
  std::set<std::string_view> known;
  for (const auto& want : expected) {
    known.insert(want.name);
    const auto* have = weights.find(want.name);
    if (!have) {
      missing.push_back(want.name);
    } else if (have->shape != want.shape) {
      reshaped.push_back(fmt::format("{} is ({}), the configuration says ({})", want.name,
                                     fmt::join(have->shape, ", "), fmt::join(want.shape, ", ")));
    }
  }
  for (const auto* have : weights.tensors()) {
    if (!known.contains(have->name) && !(ignored && ignored(have->name))) {
      extra.push_back(have->name);
    }
  }
  if (missing.empty() && reshaped.empty() && extra.empty()) return {};
  std::string text = "the weights do not fit the model's configuration";
  if (!missing.empty()) text += "; missing: " + listed(missing);
  if (!reshaped.empty()) text += "; other shape: " + listed(reshaped);
  if (!extra.empty()) text += "; not part of the model: " + listed(extra);
  return Status(Code::kInvalidArgument, text);
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
