#pragma once
// accelerate's launch configuration: its file (key troupe.accelerate_config) and the variables that
// its launcher sets.
//
// Sources: accelerate's ClusterConfig, utils/launch.py, DeepSpeedPlugin, ParallelismConfig. Its
// sections for another distributed_type than the file's are passed over, as accelerate does.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "train/config/claims.h"
#include "train/config/foreign_keys.h"
#include "train/config/fsdp.h"
#include "train/config/launch.h"
#include "train/config/mesh.h"
#include "train/config/problems.h"

namespace troupe::train {

// A value and the key or variable that gave it.
template <typename T>
struct Sourced {
  T value{};
  std::string key;
};

struct AccelerateSettings {
  // Where it is from, for messages and --explain: the file's path, or "environment".
  std::string origin;
  // Before a key of the file in messages: "troupe.accelerate_config."; empty for variables.
  std::string prefix;

  std::optional<Sourced<std::string>> mixed_precision;  // "no" or "bf16"; others are refused
  std::optional<FsdpSettings> fsdp;
  std::optional<Sourced<json::Value>> deepspeed;  // a path, or a mapping
  std::string offload_key;                        // that asks for the mapping's offload
  std::optional<Sourced<std::int64_t>> gradient_accumulation_steps;
  std::optional<Sourced<double>> gradient_clipping;
  std::optional<Sourced<MeshAxes>> mesh;

  std::optional<Sourced<std::int64_t>> processes;  // on all machines
  std::optional<Sourced<std::int64_t>> machines;
  std::optional<Sourced<std::int64_t>> machine_rank;
  std::optional<Sourced<std::string>> main_address;
  std::optional<Sourced<std::int64_t>> main_port;
  std::string use_cpu_key;                      // that turns GPUs off; else empty
  std::optional<Sourced<std::string>> gpu_ids;  // "0,1"; nothing where all are meant

  std::vector<KeyFact> facts;
  std::vector<std::string> notes;
};

// The file at `path`, YAML or JSON; a DeepSpeed file that it names is looked for from the working
// directory, then beside it. A text that begins with '{' is what a file would hold, in JSON: a
// launcher gives it so where flags change what the file says. kUnsupported where it asks for what
// is not there.
Result<AccelerateSettings> read_accelerate_file(const std::string& path, FileSystem& files);

// Whether the outermost keys are accelerate's. kInvalidArgument in accelerate's own words.
Status check_accelerate_names(const json::Object& values, std::string_view path);

// ACCELERATE_…, FSDP_…, PARALLELISM_CONFIG_…. Nothing where none of them says anything. Problems
// name the variable.
std::optional<AccelerateSettings> read_accelerate_environment(const Environment& environment,
                                                              Problems& problems);

// DeepSpeed's configuration as accelerate's DeepSpeedPlugin makes it where no file is named.
// The devices: "none", "cpu".
json::Object deepspeed_of_stage(json::Value stage, const json::Value& optimizer_device = "none",
                                const json::Value& param_device = "none");

// The launch as the file has it, where the environment is silent; what it says differently is a
// problem.
void merge_launch(const AccelerateSettings& settings, LaunchEnvironment& launch,
                  Problems& problems);

// The table that says what becomes of every key of the file but those of fsdp_config (fsdp_keys()).
const ForeignKeys& accelerate_keys();

}  // namespace troupe::train
