#pragma once
// What several keys must say together. Texts in quotes of LLaMA-Factory are verbatim.

#include <string_view>

#include "runtime/base/file_system.h"
#include "train/config/problems.h"
#include "train/config/train_config.h"

namespace troupe::train {

// Whether a key is given as true.
inline bool is_on(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value && value->is_bool() && value->get_bool();
}

// `values` are the canonical values of all keys that were given.
void check_combinations(const TrainConfig& config, const json::Object& values, Problems& problems);

// Of these, the rules of evaluation.
void check_evaluation(const TrainConfig& config, const json::Object& values, Problems& problems);

// Of these, the rules of what is trained; values that training does not do (check_supported).
void check_finetuning(const TrainConfig& config, const json::Object& values, Problems& problems);

// All rules of a conversation with a model.
void check_chat(const TrainConfig& config, const json::Object& values, Problems& problems);
// All rules of an export; what of it is not done (check_export_supported).
void check_export(const TrainConfig& config, const json::Object& values, Problems& problems);

// Whether a model's folder is there, has a configuration, and may be read; with what to do about
// it.
Status check_model_folder(FileSystem& files, const std::string& folder);
// The same of a file in it that could not be read.
Status unreadable_model(const std::string& folder, const Status& why);
// The model's folder must exist.
void check_model_path(const TrainConfig& config, FileSystem& files, Problems& problems);
// The same of all folders and files that must exist before a run.
void check_paths(const TrainConfig& config, FileSystem& files, Problems& problems);

// The settings that `lr_scheduler_kwargs` may hold for a scheduler.
std::vector<std::string> scheduler_settings(std::string_view scheduler);

// The tool whose configuration this is, when its top-level keys are not LLaMA-Factory's, as the
// reason for a refusal: accelerate, DeepSpeed, LLaMA-Factory v1. `key` is the
// key that gave it away.
struct ForeignConfig {
  std::string key;
  std::string reason;
};
std::optional<ForeignConfig> foreign_config(const json::Object& values);

}  // namespace troupe::train
