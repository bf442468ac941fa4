#pragma once
// The settings of accelerate's launcher once flags, file and defaults are read (accelerate 1.11,
// commands/launch.py): one set of values, named as in its file.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tools/launchers/invocation.h"

namespace troupe::tools {

struct AccelerateFlags {
  // Flags that the file has a key for, by that key's path: "num_processes",
  // "fsdp_config.fsdp_version".
  std::map<std::string, std::optional<std::string>> values;
  std::map<std::string, bool> switches;
  std::optional<std::string> config_file;
  bool cpu = false, multi_gpu = false, use_deepspeed = false, use_fsdp = false;
  bool use_parallelism_config = false;
};

// The launcher of accelerate's that starts the script: it decides which variables that sees.
enum class AccelerateKind { kSimple, kMultiple, kDeepSpeed };

struct AccelerateSettings {
  std::string file;      // whose values lie below the flags'; empty: there is none
  json::Object values;   // as the file would have them; distributed_type is always there
  bool changed = false;  // a flag says what the file does not
  std::vector<std::string> file_deepspeed_keys;  // those of the file's deepspeed_config
  bool precision_of_file = false;

  AccelerateKind kind = AccelerateKind::kSimple;
  bool cpu = false;
  bool parallelism = false;  // parallelism_config counts
  int processes = 1;         // on all machines
  int machines = 1;
  int machine_rank = 0;
  std::vector<std::string> notices;

  // The value at "key" or "section.key"; null where it is not there, or null.
  const json::Value* find(std::string_view path) const;
  std::string text(std::string_view path, std::string_view otherwise) const;
};

// Where `accelerate config` writes: $HF_HOME/accelerate/default_config.yaml.
std::string accelerate_default_file(const Environment& environment);

// A file's values, old keys made new, with fsdp_config's keys under their full names. Errors in
// accelerate's words.
Result<json::Object> read_accelerate_values(const std::string& path, FileSystem& files);

// Flags before the file's values before defaults. Errors in accelerate's words.
Result<AccelerateSettings> settle_accelerate(const AccelerateFlags& flags,
                                             const LauncherContext& context);

// The variables that the script finds in its environment (utils/launch.py). `threads` is the value
// of --num_cpu_threads_per_process. kUnsupported, kInvalidArgument for a mixed_precision that ranks
// cannot be told of.
Result<std::map<std::string, std::string>> accelerate_variables(
    const AccelerateSettings& settings, const std::optional<std::string>& threads,
    const LauncherContext& context);

}  // namespace troupe::tools
