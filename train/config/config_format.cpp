#include "train/config/config_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

struct Named {
  ConfigFormat format;
  const char* word;
  const char* title;
};
constexpr Named kFormats[] = {{ConfigFormat::kLlamaFactory, "llamafactory", "LLaMA-Factory"},
                              {ConfigFormat::kAxolotl, "axolotl", "Axolotl"},
                              {ConfigFormat::kAitraining, "aitraining", "AITraining"}};

std::vector<std::string> present(const json::Object& values,
                                 std::initializer_list<const char*> keys) {
  std::vector<std::string> out;
  for (const char* key : keys)
    if (values.contains(key)) out.emplace_back(key);
  return out;
}

}  // namespace

bool is_config_file(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json");
}

DetectedFormat detect_format(const json::Object& values) {
  // Every one of the files of others begins with a model under another name than ours.
  if (values.contains("model_name_or_path")) return {};
  auto marks = present(values, {"base_model", "task", "project_name", "backend", "data"});
  if (values.contains("task") && marks.size() >= 2) return {ConfigFormat::kAitraining, marks};
  marks = present(values, {"base_model", "datasets", "pretraining_dataset", "sequence_len",
                           "micro_batch_size", "num_epochs", "val_set_size"});
  if (marks.size() >= 2 || values.contains("base_model")) {
    if (marks.size() > 3) marks.resize(3);
    return {ConfigFormat::kAxolotl, marks};
  }
  return {};
}

Result<std::optional<ConfigFormat>> take_format(std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--format";
  std::optional<ConfigFormat> out;
  for (auto at = arguments.begin(); at != arguments.end();) {
    std::string name;
    if (at->starts_with(std::string(kFlag) + "=")) {
      name = at->substr(kFlag.size() + 1);
      at = arguments.erase(at);
    } else if (*at == kFlag) {
      at = arguments.erase(at);
      if (at != arguments.end() && !at->starts_with("--")) {
        name = *at;
        at = arguments.erase(at);
      }
    } else {
      ++at;
      continue;
    }
    const auto found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                    [&](const Named& entry) { return entry.word == name; });
    if (found == std::end(kFormats)) {
      std::vector<std::string> words;
      for (const auto& entry : kFormats) words.emplace_back(entry.word);
      return error(Code::kInvalidArgument, "--format: '{}' is no valid value; one of {}{}", name,
                   join_words(words), did_you_mean(name, words));
    }
    out = found->format;
  }
  return out;
}

std::string format_title(ConfigFormat format) {
  for (const auto& entry : kFormats)
    if (entry.format == format) return entry.title;
  return "LLaMA-Factory";
}

}  // namespace troupe::train
