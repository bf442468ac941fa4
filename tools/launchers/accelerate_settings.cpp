#include "tools/launchers/accelerate_settings.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/accelerate.h"
#include "train/config/keys.h"
#include "train/config/source.h"
#include "train/config/values.h"
#include "train/config/yaml.h"

namespace troupe::tools {
namespace {

using train::json_view;
using train::value_text;

constexpr int kProcessesMax = 1 << 16;

// YAML 1.1 reads the bare words no and NO as false.
std::string type_text(const json::Value& value) {
  return value.is_bool() ? (value.get_bool() ? "YES" : "NO") : upper_case(value_text(value));
}

bool is_nonempty_mapping(const json::Object& values, std::string_view name) {
  const auto* section = values.if_contains(json_view(name));
  return section && section->is_object() && !section->get_object().empty();
}

void put(json::Object& values, const std::string& path, json::Value value) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) {
    values[json_view(path)] = std::move(value);
    return;
  }
  json::Value& section = values[json_view(path.substr(0, dot))];
  if (!section.is_object()) section = json::Object();
  section.get_object()[json_view(path.substr(dot + 1))] = std::move(value);
}

Status check_flags(const AccelerateFlags& flags) {
  if (flags.multi_gpu + flags.cpu + flags.use_deepspeed + flags.use_fsdp > 1) {
    return Status(Code::kInvalidArgument,
                  "You can only use one of `--cpu`, `--multi_gpu`, `--tpu`, `--use_deepspeed`, "
                  "`--use_fsdp` at a time.");
  }
  const auto given = [&](const char* path) {
    const auto found = flags.values.find(path);
    return found != flags.values.end() ? found->second : std::nullopt;
  };
  if (const auto processes = given("num_processes");
      flags.multi_gpu && processes && (*processes == "0" || *processes == "1")) {
    return Status(Code::kInvalidArgument,
                  "You need to use at least 2 processes to use `--multi_gpu`.");
  }
  const bool second_version = given("fsdp_config.fsdp_version").value_or("1") == "2";
  if (flags.use_parallelism_config && !(flags.use_fsdp && second_version)) {
    return Status(Code::kInvalidArgument,
                  "You cannot use `--use_parallelism_config` without `--use_fsdp` and "
                  "`--fsdp_version=2`. ");
  }
  return {};
}

Result<int> integer(const AccelerateSettings& settings, const char* path, int otherwise, int least,
                    int most) {
  const json::Value* value = settings.find(path);
  if (!value) return otherwise;
  const auto number = train::read_integer(*value);
  if (!number.ok()) return number.status().prefixed(path);
  if (*number < least || *number > most) {
    return error(Code::kInvalidArgument, "{}: {} is not between {} and {}", path, *number, least,
                 most);
  }
  return static_cast<int>(*number);
}

Status settle_processes(const LauncherContext& context, AccelerateSettings& out) {
  const int gpus = context.gpus_here();
  const auto* given = out.find("num_processes");
  const bool left_open = !given || train::read_integer(*given).value_or(0) == -1;
  if (left_open && !out.file.empty() && out.text("distributed_type", "") != "NO") {
    return error(Code::kInvalidArgument,
                 "You need to manually pass in `--num_processes` using this config yaml. ({} has "
                 "none)",
                 out.file);
  }
  if (left_open) {
    out.processes = out.file.empty() ? std::max(1, gpus) : 1;
  } else {
    // accelerate starts one process where there are none.
    out.processes = std::max(1, TROUPE_TRY(integer(out, "num_processes", 1, 0, kProcessesMax)));
  }
  out.machines = TROUPE_TRY(integer(out, "num_machines", 1, 1, kProcessesMax));
  out.machine_rank = TROUPE_TRY(integer(out, "machine_rank", 0, 0, kProcessesMax));
  if (out.processes % out.machines != 0) {
    return error(Code::kInvalidArgument,
                 "num_processes={} on num_machines={}: every machine has equally many; use a "
                 "multiple of {}",
                 out.processes, out.machines, out.machines);
  }
  if (out.machine_rank >= out.machines) {
    return error(Code::kInvalidArgument, "machine_rank={} of num_machines={}: they count from 0",
                 out.machine_rank, out.machines);
  }
  if (out.machines > 1 && !out.find("main_process_ip")) {
    return Status(Code::kInvalidArgument,
                  "When using multiple machines, you need to specify the main process IP.");
  }
  if (!out.file.empty()) return {};
  // accelerate's text, with its tabs.
  std::string guessed;
  if (left_open) {
    guessed += fmt::format("\n\t`--num_processes` was set to a value of `{}`", gpus);
    if (gpus > 1) {
      guessed +=
          "\n\t\tMore than one GPU was found, enabling multi-GPU training.\n"
          "\t\tIf this was unintended please pass in `--num_processes=1`.";
    }
  }
  if (!out.find("num_machines")) guessed += "\n\t`--num_machines` was set to a value of `1`";
  if (!out.find("mixed_precision")) {
    guessed += "\n\t`--mixed_precision` was set to a value of `'no'`";
  }
  if (!out.find("dynamo_config.dynamo_backend")) {
    guessed += "\n\t`--dynamo_backend` was set to a value of `'no'`";
  }
  if (guessed.empty()) return {};
  out.notices.push_back(
      "The following values were not passed to `accelerate launch` and had defaults used instead:" +
      guessed +
      "\nTo avoid this warning pass in values for each of the problematic parameters or run "
      "`accelerate config`.");
  return {};
}

// The type that flags ask for; empty: none does.
std::string type_of_flags(const AccelerateFlags& flags) {
  if (flags.use_deepspeed) return "DEEPSPEED";
  if (flags.use_fsdp) return "FSDP";
  return flags.multi_gpu ? "MULTI_GPU" : "";
}

}  // namespace

const json::Value* AccelerateSettings::find(std::string_view path) const {
  return train::find_path(values, path);
}

std::string AccelerateSettings::text(std::string_view path, std::string_view otherwise) const {
  const auto* value = find(path);
  return value ? value_text(*value) : std::string(otherwise);
}

std::string accelerate_default_file(const Environment& environment) {
  const std::string home = environment.get("HOME").value_or("");
  const std::string cache = environment.get("XDG_CACHE_HOME").value_or(join_path(home, ".cache"));
  auto hugging_face = environment.get("HF_HOME").value_or(join_path(cache, "huggingface"));
  if (hugging_face.starts_with("~/")) hugging_face = join_path(home, hugging_face.substr(2));
  return join_path(hugging_face, "accelerate/default_config.yaml");
}

Result<json::Object> read_accelerate_values(const std::string& path, FileSystem& files) {
  if (!files.exists(path)) {
    return error(Code::kNotFound,
                 "The passed configuration file `{}` does not exist. Please pass an existing file "
                 "to `accelerate launch`, or use the default one created through `accelerate "
                 "config` and run `accelerate launch` without the `--config_file` argument.",
                 path);
  }
  const std::string text = TROUPE_TRY(files.read(path, limits::kConfigBytesMax));
  // `accelerate config default` writes JSON whatever the file is called; YAML reads it, too.
  json::Object values = std::move(TROUPE_TRY(train::parse_document(text, path)).values);
  TROUPE_RETURN_IF_ERROR(train::check_accelerate_names(values, path));
  auto* type = values.if_contains("distributed_type");
  if (!type || type->is_null()) {
    return error(Code::kInvalidArgument,
                 "A `distributed_type` must be specified in the config file. ({})", path);
  }
  *type = json::Value(type_text(*type));
  if (const auto* fp16 = values.if_contains("fp16")) {
    if (!values.if_contains("mixed_precision") && train::read_bool(*fp16).value_or(false)) {
      values["mixed_precision"] = "fp16";
    }
    values.erase("fp16");
  }
  if (auto* precision = values.if_contains("mixed_precision"); precision && precision->is_bool()) {
    *precision = "no";
  }
  if (const auto* backend = values.if_contains("dynamo_backend")) {
    const std::string name = backend->is_bool() ? "NO" : value_text(*backend);
    values.erase("dynamo_backend");
    if (name != "NO") put(values, "dynamo_config.dynamo_backend", json::Value(name));
  }
  if (auto* fsdp = values.if_contains("fsdp_config"); fsdp && fsdp->is_object()) {
    json::Object full;
    for (auto& member : fsdp->get_object()) {
      const std::string name(member.key());
      full[json_view(name.starts_with("fsdp") ? name : "fsdp_" + name)] = member.value();
    }
    *fsdp = std::move(full);
  }
  return values;
}

Result<AccelerateSettings> settle_accelerate(const AccelerateFlags& flags,
                                             const LauncherContext& context) {
  TROUPE_RETURN_IF_ERROR(check_flags(flags));
  AccelerateSettings out;
  const std::string standard = accelerate_default_file(context.environment);
  if (flags.config_file) {
    out.file = *flags.config_file;
  } else if (!flags.cpu && context.files.exists(standard)) {
    out.file = standard;
  }
  if (!out.file.empty()) {
    out.values = TROUPE_TRY(read_accelerate_values(out.file, context.files));
    if (const auto* section = out.values.if_contains("deepspeed_config");
        section && section->is_object()) {
      for (const auto& member : section->get_object()) {
        out.file_deepspeed_keys.emplace_back(member.key());
      }
    }
    out.precision_of_file = out.find("mixed_precision") != nullptr;
  }
  const std::string asked = type_of_flags(flags);
  out.parallelism = asked.empty() && !out.file.empty()
                        ? is_nonempty_mapping(out.values, "parallelism_config")
                        : flags.use_parallelism_config;
  const auto set = [&](const std::string& path, json::Value value) {
    const auto* before = out.find(path);
    if (before && value_text(*before) == value_text(value)) return;
    put(out.values, path, std::move(value));
    out.changed = true;
  };
  for (const auto& [path, text] : flags.values) {
    if (!text) continue;
    // These are texts, whatever YAML would make of them.
    const bool plain = path == "mixed_precision" || path == "main_process_ip";
    set(path, plain ? json::Value(*text) : train::resolve_yaml_scalar(*text));
    if (path == "mixed_precision") out.precision_of_file = false;
  }
  for (const auto& [path, on] : flags.switches) {
    if (on) set(path, json::Value(true));
  }
  if (!out.parallelism && out.values.if_contains("parallelism_config")) {
    out.values.erase("parallelism_config");
    out.changed = true;
  }
  const bool says_something = !out.values.empty();
  if (!asked.empty()) set("distributed_type", json::Value(asked));
  TROUPE_RETURN_IF_ERROR(settle_processes(context, out));
  if (flags.cpu) {
    set("use_cpu", json::Value(true));
    set("distributed_type", json::Value(out.processes > 1 ? "MULTI_CPU" : "NO"));
  } else if (!out.find("distributed_type")) {
    const int gpus = context.gpus_here();
    const char* several = gpus > 0 ? "MULTI_GPU" : "MULTI_CPU";
    put(out.values, "distributed_type", json::Value(out.processes > 1 ? several : "NO"));
    out.changed = says_something;
  }
  const std::string type = out.text("distributed_type", "NO");
  constexpr const char* kTypes[] = {"NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED", "FSDP"};
  if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes)) {
    return error(Code::kUnsupported,
                 "distributed_type={} is not supported: no such device or runtime is used; use "
                 "MULTI_CPU or MULTI_GPU, FSDP or DEEPSPEED",
                 type);
  }
  const auto* use_cpu = out.find("use_cpu");
  out.cpu = use_cpu && train::read_bool(*use_cpu).value_or(false);
  // Where there is neither a GPU nor --cpu, each process of accelerate's takes itself for the
  // only one. A running cluster's nodes may have GPUs that this machine lacks.
  const bool here = context.environment.get("TROUPE_ADDRESS").value_or("").empty();
  if (out.processes > 1 && here && context.gpus_here() == 0) out.cpu = true;
  out.kind = flags.cpu || type == "NO" || type == "MULTI_CPU" ? AccelerateKind::kSimple
             : type == "DEEPSPEED"                            ? AccelerateKind::kDeepSpeed
                                                              : AccelerateKind::kMultiple;
  const std::string gpu_ids = out.text("gpu_ids", "all");
  if (type == "MULTI_GPU" && out.machines == 1 && gpu_ids != "all" &&
      gpu_ids.find(',') == std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "Less than two GPU ids were configured and tried to run on on multiple GPUs. "
                  "Please ensure at least two are specified for `--gpu_ids`, or use "
                  "`--gpu_ids='all'`.");
  }
  if (out.find("mpirun_config.mpirun_hostfile")) {
    return Status(Code::kUnsupported,
                  "mpirun_config.mpirun_hostfile is not supported: ranks are placed without MPI; "
                  "leave it out, and give the command on each machine, or its hostfile to troupe "
                  "run --hostfile");
  }
  if (out.kind == AccelerateKind::kSimple && out.processes > 1) {
    out.notices.push_back(fmt::format(
        "accelerate starts one process here where there is no mpirun; these are {} ranks, which "
        "meet by gloo on CPUs",
        out.processes));
  }
  return out;
}

}  // namespace troupe::tools
