#include "train/hub/model_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/suggest.h"

namespace troupe::train::hub {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<const char*> ends) {
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

}  // namespace

Result<std::vector<std::string>> model_files(const std::vector<std::string>& all,
                                             const ModelFiles& wanted) {
  const std::string prefix = wanted.folder.empty() ? "" : wanted.folder + "/";
  std::vector<std::string> out, weights, others;
  for (const auto& path : all) {
    if (!path.starts_with(prefix)) continue;
    const auto name = path.substr(prefix.size());
    if (name.find('/') != std::string::npos) continue;
    if (name.ends_with(".safetensors")) {
      weights.push_back(path);
    } else if (ends_with_any(
                   name, {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt"})) {
      others.push_back(path);
    } else if (ends_with_any(name, {".json", ".txt", ".model", ".jinja", ".tiktoken"})) {
      out.push_back(path);
    }
  }
  if (!wanted.weights) return out;
  const auto own = [&](const std::string& path) {
    return path.substr(prefix.size()).starts_with("consolidated");
  };
  if (!std::ranges::all_of(weights, own)) std::erase_if(weights, own);
  if (weights.empty()) {
    if (others.size() > 3) others.resize(3);
    return error(Code::kNotFound,
                 "it has no weights in safetensors{}{}; convert them (huggingface.co/spaces/"
                 "safetensors/convert), or name a repository that has them",
                 others.empty() ? "" : ", but ", join_words(others));
  }
  out.insert(out.end(), weights.begin(), weights.end());
  return out;
}

}  // namespace troupe::train::hub
