// The variables that accelerate 1.11 sets for a script (utils/launch.py), letter for letter:
// Accelerator() makes its plugins of them.
#include <algorithm>
#include <set>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/launchers/accelerate_settings.h"
#include "train/config/keys.h"
#include "train/config/values.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kCpuInfoBytesMax = 16u << 20;

std::string python_bool(bool value) { return value ? "True" : "False"; }

bool is_on(const AccelerateSettings& settings, std::string_view path) {
  const auto* value = settings.find(path);
  return value && train::read_bool(*value).value_or(false);
}

// Cores of the machine, each once however many threads it has; 0: nobody says.
int physical_cores(FileSystem& files) {
  const auto text = files.read("/proc/cpuinfo", kCpuInfoBytesMax);
  if (!text.ok()) return 0;
  std::set<std::pair<std::string, std::string>> cores;
  std::string package;
  for (const std::string& line : split_words(*text, '\n')) {
    const auto value = [&] { return std::string(trim(line.substr(line.find(':') + 1))); };
    if (line.starts_with("physical id")) package = value();
    if (line.starts_with("core id")) cores.emplace(package, value());
  }
  return static_cast<int>(cores.size());
}

std::string threads_of_rank(const AccelerateSettings& settings,
                            const std::optional<std::string>& given,
                            const LauncherContext& context) {
  if (given) return *given;
  if (const auto threads = context.environment.get("OMP_NUM_THREADS")) return *threads;
  if (!settings.cpu) return "1";
  const int local = std::max(1, settings.processes / settings.machines);
  return std::to_string(std::max(1, physical_cores(context.files) / local));
}

using Variables = std::map<std::string, std::string>;

void set_dynamo(const AccelerateSettings& settings, Variables& variables) {
  const std::string at = "dynamo_config.dynamo_";
  variables["ACCELERATE_DYNAMO_BACKEND"] = upper_case(settings.text(at + "backend", "no"));
  variables["ACCELERATE_DYNAMO_MODE"] = settings.text(at + "mode", "default");
  for (const char* name : {"use_fullgraph", "use_dynamic", "use_regional_compilation"}) {
    variables["ACCELERATE_DYNAMO_" + upper_case(name)] = python_bool(is_on(settings, at + name));
  }
}

Status set_fsdp(const AccelerateSettings& settings, Variables& variables) {
  struct Row {
    const char* key;        // fsdp_config's, without "fsdp_"
    const char* otherwise;  // launch's own default; null: not set then
    const char* variable;   // null: the key in capitals
  };
  constexpr Row kRows[] = {
      {"version", "1", nullptr},
      {"sharding_strategy", "FULL_SHARD", nullptr},
      {"reshard_after_forward", "true", nullptr},
      {"offload_params", "false", nullptr},
      {"min_num_params", "100000000", nullptr},
      {"auto_wrap_policy", nullptr, nullptr},
      {"transformer_layer_cls_to_wrap", nullptr, "TRANSFORMER_CLS_TO_WRAP"},
      {"backward_prefetch", nullptr, nullptr},
      {"state_dict_type", nullptr, nullptr},
      {"forward_prefetch", "false", nullptr},
      {"use_orig_params", "true", nullptr},
      {"cpu_ram_efficient_loading", "true", nullptr},
      {"sync_module_states", "true", nullptr},
      {"activation_checkpointing", "false", nullptr},
      {"ignored_modules", nullptr, nullptr},
  };
  const auto value = [&](const Row& row) -> std::optional<std::string> {
    const auto* found = settings.find(fmt::format("fsdp_config.fsdp_{}", row.key));
    if (found) return train::value_text(*found);
    return row.otherwise ? std::optional<std::string>(row.otherwise) : std::nullopt;
  };
  const auto off = [&](const char* key) {
    return lower_case(settings.text(std::string("fsdp_config.fsdp_") + key, "true")) == "false";
  };
  if (!off("cpu_ram_efficient_loading") && off("sync_module_states")) {
    return Status(Code::kInvalidArgument,
                  "When using `--fsdp_cpu_ram_efficient_loading` set `--fsdp_sync_module_states` "
                  "to `True`");
  }
  variables["ACCELERATE_USE_FSDP"] = "true";
  for (const Row& row : kRows) {
    const auto text = value(row);
    if (!text) continue;
    const std::string_view otherwise = row.otherwise ? row.otherwise : "";
    const bool is_switch = otherwise == "true" || otherwise == "false";
    variables["FSDP_" + (row.variable ? std::string(row.variable) : upper_case(row.key))] =
        is_switch ? lower_case(*text) : *text;
  }
  return {};
}

void set_parallelism(const AccelerateSettings& settings, Variables& variables) {
  const std::string at = "parallelism_config.parallelism_config_";
  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  for (const char* axis : {"dp_replicate_size", "tp_size", "cp_size", "dp_shard_size"}) {
    variables["PARALLELISM_CONFIG_" + upper_case(axis)] = settings.text(at + axis, "1");
  }
  if (settings.text(at + "cp_size", "1") != "1") {
    variables["PARALLELISM_CONFIG_CP_COMM_STRATEGY"] =
        settings.text(at + "cp_comm_strategy", "allgather");
  }
}

void set_deepspeed(const AccelerateSettings& settings, const Environment& environment,
                   Variables& variables) {
  // The script's folder is found by DeepSpeed's workers as by one's own.
  const std::string here = environment.get("PWD").value_or(".");
  const auto path = environment.get("PYTHONPATH");
  variables["PYTHONPATH"] = path && !path->empty() ? *path + ":" + here : here;
  std::vector<std::string> fields = settings.file_deepspeed_keys;
  if (settings.precision_of_file) fields.emplace_back("mixed_precision");
  variables["ACCELERATE_CONFIG_DS_FIELDS"] = lower_case(join_words(fields, ","));
  variables["ACCELERATE_USE_DEEPSPEED"] = "true";
  struct Row {
    const char* key;
    const char* variable;
    bool as_it_is = false;
  };
  constexpr Row kRows[] = {
      {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
      {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
      {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING"},
      {"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
      {"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
      {"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT"},
      {"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"},
      {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", true},
      {"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", true},
  };
  for (const Row& row : kRows) {
    const auto* value = settings.find(std::string("deepspeed_config.") + row.key);
    if (!value) continue;
    const std::string text = train::value_text(*value);
    variables[row.variable] = row.as_it_is ? text : lower_case(text);
  }
}

}  // namespace

Result<Variables> accelerate_variables(const AccelerateSettings& settings,
                                       const std::optional<std::string>& threads,
                                       const LauncherContext& context) {
  Variables variables;
  const std::string precision = lower_case(settings.text("mixed_precision", "no"));
  if (precision == "fp8") {
    return Status(Code::kUnsupported,
                  "mixed_precision=fp8 is not supported: accelerate tells scripts of FP8 by its "
                  "packages' settings; give it to Accelerator() in the script, or use bf16");
  }
  if (precision != "no" && precision != "fp16" && precision != "bf16") {
    return error(Code::kInvalidArgument,
                 "Unknown mixed_precision mode: {}. Choose between ['no', 'fp8', 'fp16', 'bf16'].",
                 precision);
  }
  variables["ACCELERATE_MIXED_PRECISION"] = precision;
  if (is_on(settings, "debug")) variables["ACCELERATE_DEBUG_MODE"] = "true";
  if (is_on(settings, "enable_cpu_affinity")) variables["ACCELERATE_CPU_AFFINITY"] = "1";
  const std::string gpus = settings.text("gpu_ids", "all");
  if (gpus != "all") variables["CUDA_VISIBLE_DEVICES"] = gpus;
  if (settings.cpu) variables["ACCELERATE_USE_CPU"] = "True";
  if (settings.kind == AccelerateKind::kDeepSpeed) {
    set_deepspeed(settings, context.environment, variables);
    return variables;
  }
  set_dynamo(settings, variables);
  variables["OMP_NUM_THREADS"] = threads_of_rank(settings, threads, context);
  if (settings.kind == AccelerateKind::kSimple) {
    variables["ACCELERATE_USE_CPU"] = python_bool(settings.cpu);
    // "False" counts as true there: these are always set.
    variables["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    variables["KMP_BLOCKTIME"] = "1";
    if (settings.processes > 1) variables["CCL_WORKER_COUNT"] = "0";
    return variables;
  }
  if (settings.text("distributed_type", "") == "FSDP") {
    TROUPE_RETURN_IF_ERROR(set_fsdp(settings, variables));
  }
  if (settings.parallelism) set_parallelism(settings, variables);
  return variables;
}

}  // namespace troupe::tools
