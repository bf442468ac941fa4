#pragma once
// Tells which tool's settings a file holds.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Whether a word on a command line names a file of settings, by its ending.
bool is_config_file(std::string_view word);

enum class ConfigFormat { kLlamaFactory, kAxolotl, kAitraining };  // "llamafactory", …

struct DetectedFormat {
  ConfigFormat format = ConfigFormat::kLlamaFactory;
  std::vector<std::string> marks;  // the keys that gave it away
};
// By the outermost keys. LLaMA-Factory's where nothing says otherwise.
DetectedFormat detect_format(const json::Object& values);

// Takes `--format NAME` or `--format=NAME` out of the arguments. kInvalidArgument for a name that
// is none, with those that are.
Result<std::optional<ConfigFormat>> take_format(std::vector<std::string>& arguments);

// As people write it: "LLaMA-Factory", "Axolotl", "AITraining".
std::string format_title(ConfigFormat format);

}  // namespace troupe::train
