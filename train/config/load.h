#pragma once
// From a file, overrides, flags and the environment to a TrainConfig.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/config/foreign_keys.h"
#include "train/config/launch.h"
#include "train/config/source.h"
#include "train/config/train_config.h"

namespace troupe::train {

struct LoadedConfig;

enum class LoadPurpose {
  kTraining,
  // Of a model and adapters alone: what a training needs beside them may be missing, and keys of
  // training have no effect.
  kExport,
  kChat,  // likewise, and nothing is written
};

struct LoadOptions {
  LoadPurpose purpose = LoadPurpose::kTraining;
  std::int64_t gpu_count = 0;  // devices of this machine, for the world size
  // Of a program that trains: what it brings itself, which need not be named, and the values of
  // keys that are not given, where those are others than usual.
  bool brings_model = false, brings_data = false;
  json::Object defaults = {};
  // Whether the model's folder, data sets' folder and the like must exist. Off where only the
  // settings are to be judged.
  bool check_paths = true;
  // Puts folders and files of this machine where the configuration names what is on a hub. Absent:
  // names of a hub are refused.
  std::function<void(LoadedConfig&, Problems&)> locate;
  // What else must be good of a configuration, and is not known here: what the files of model and
  // data hold. Told where the settings have problems, too, so that all are listed together.
  std::function<void(const LoadedConfig&, Problems&)> check_contents;
  // Called where there are problems, before they are returned, with what was understood: for
  // explain_refused().
  std::function<void(const LoadedConfig&, const Problems&)> on_problems;
};

struct LoadedConfig {
  TrainConfig config;
  LaunchEnvironment launch;
  WorldSize world_size;
  SourceDocument source;              // what was given, with its places, for explain()
  std::vector<std::string> warnings;  // keys let through by ALLOW_EXTRA_ARGS and the like
  std::vector<std::string> notices;   // what the launch says in vain, and why

  // For explain(): what became of the keys of DeepSpeed's, FSDP's and accelerate's files and
  // variables, and what gave the value of a key that was not given itself (troupe.strategy →
  // deepspeed.zero_optimization.stage).
  std::vector<KeyFact> facts;
  std::map<std::string, std::string, std::less<>> resolved_from;
  // Where what a key names on a hub was found, by the key, for explain().
  std::map<std::string, std::string, std::less<>> located;
};

// `arguments` are those after `troupe train` (or `troupe export`): a path that ends in .yaml, .yml
// or .json, then overrides or flags; or flags alone. Relative paths are relative to the working
// directory.
//
// Files of Axolotl are known by their keys and read as it reads them (axolotl.h), overrides in its
// keys; `--format llamafactory|axolotl|aitraining` among the arguments decides otherwise.
//
// Every problem is found before anything is started, and all are reported together, one a line,
// each with its place and key ("x.yaml:12: bf16=true is not supported: …"). The context key "key"
// of the status names the first one's key. The code is that of all problems (kUnsupported where
// every one is a refusal), or kInvalidArgument; kNotFound for a missing configuration file.
Result<LoadedConfig> load_train_config(std::span<const std::string> arguments,
                                       const Environment& environment, FileSystem& files,
                                       const LoadOptions& options = {});

// The same for a text; `name` stands in errors and tells JSON (.json) from YAML.
Result<LoadedConfig> load_train_config_text(std::string_view text, std::string_view name,
                                            std::span<const std::string> arguments,
                                            const Environment& environment, FileSystem& files,
                                            const LoadOptions& options = {});

}  // namespace troupe::train
