#include "train/config/accelerate.h"

#include <algorithm>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/deepspeed.h"
#include "train/config/source.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr const char* kPrefix = "troupe.accelerate_config.";

// accelerate's PrecisionType. fp8 is refused.
Result<std::string> read_mixed_precision(const json::Value& value, std::string_view key) {
  // YAML reads the bare word no as false.
  auto text = value.is_bool() && !value.get_bool() ? "no" : lower_case(value_text(value));
  if (text == "no" || text == "bf16" || text == "fp16") return text;
  if (text == "fp8") {
    return error(Code::kUnsupported,
                 "{}=fp8 is not supported: accelerate's settings of FP8 are of other recipes; use "
                 "bf16 here, and fp8: true in the run's own file",
                 key);
  }
  return error(Code::kInvalidArgument, "{}: '{}' is no valid value; one of no, bf16, fp16, fp8",
               key, text.substr(0, 40));
}

// Values of a file by path, of the keys that count in it.
class Values {
 public:
  Values(const json::Object& values, ShownName shown) : values_(values), shown_(std::move(shown)) {}

  const json::Value* find(std::string_view path) const {
    if (!accelerate_keys().counts(path, values_)) return nullptr;
    const json::Object* level = &values_;
    while (true) {
      const auto dot = path.find('.');
      const auto part = path.substr(0, dot);
      const auto* value = level->if_contains(json_view(part));
      if (!value || value->is_null()) return nullptr;
      if (dot == std::string_view::npos) return value;
      level = value->if_object();
      if (!level) return nullptr;
      path = path.substr(dot + 1);
    }
  }
  std::string key(const std::string& path) const { return shown_(path); }

  Result<std::optional<Sourced<std::int64_t>>> integer(const std::string& path, std::int64_t least,
                                                       std::int64_t most) const {
    const auto* value = find(path);
    if (!value) return std::optional<Sourced<std::int64_t>>();
    const auto number = read_integer(*value);
    if (!number.ok()) return number.status().prefixed(key(path));
    if (*number < least || *number > most) {
      return error(Code::kInvalidArgument, "{}: {} is not between {} and {}", key(path), *number,
                   least, most);
    }
    return std::optional(Sourced<std::int64_t>{*number, key(path)});
  }

  // The part of the settings that file and variables share: DeepSpeed's and the mesh.
  Status read_deepspeed_part(AccelerateSettings& out) const;
  Status read_mesh_part(AccelerateSettings& out) const;

 private:
  const json::Object& values_;
  ShownName shown_;
};

Status Values::read_deepspeed_part(AccelerateSettings& out) const {
  const std::string at = "deepspeed_config.";
  const auto* file = find(at + "deepspeed_config_file");
  if (file && lower_case(value_text(*file)) != "none") {
    for (const auto* name : {"zero_stage", "gradient_accumulation_steps", "gradient_clipping"}) {
      if (!find(at + name)) continue;
      return error(Code::kInvalidArgument,
                   "{} is not read where {} is given; put it into that file, or leave one of them "
                   "out",
                   key(at + name), key(at + "deepspeed_config_file"));
    }
    for (const auto* name : {"offload_optimizer_device", "offload_param_device"}) {
      const auto* device = find(at + name);
      if (!device || lower_case(value_text(*device)) == "none") continue;
      return error(Code::kInvalidArgument,
                   "{} is not read where {} is given; put it into that file, or leave one of them "
                   "out",
                   key(at + name), key(at + "deepspeed_config_file"));
    }
    out.deepspeed = Sourced<json::Value>{*file, key(at + "deepspeed_config_file")};
    return {};
  }
  const auto stage = TROUPE_TRY(integer(at + "zero_stage", 0, 3));
  // accelerate's default.
  constexpr std::int64_t kStage = 2;
  json::Value devices[] = {"none", "none"};
  constexpr const char* kDevices[] = {"offload_optimizer_device", "offload_param_device"};
  for (std::size_t i = 0; i < std::size(kDevices); ++i) {
    const auto* device = find(at + kDevices[i]);
    if (!device || !TROUPE_TRY(reads_offload_device(*device, key(at + kDevices[i])))) continue;
    devices[i] = "cpu";
    out.offload_key = key(at + kDevices[i]);
  }
  out.deepspeed = Sourced<json::Value>{
      deepspeed_of_stage(stage ? stage->value : kStage, devices[0], devices[1]),
      key(at + "zero_stage")};
  const auto* steps = find(at + "gradient_accumulation_steps");
  if (steps && lower_case(value_text(*steps)) != "auto") {
    out.gradient_accumulation_steps =
        TROUPE_TRY(integer(at + "gradient_accumulation_steps", 1, 1 << 20));
  }
  const auto* clipping = find(at + "gradient_clipping");
  if (clipping && lower_case(value_text(*clipping)) != "auto" &&
      lower_case(value_text(*clipping)) != "none") {
    const auto norm = read_number(*clipping);
    if (!norm.ok()) return norm.status().prefixed(key(at + "gradient_clipping"));
    if (*norm < 0) {
      return error(Code::kInvalidArgument, "{}: {} is below 0", key(at + "gradient_clipping"),
                   *norm);
    }
    out.gradient_clipping = Sourced<double>{*norm, key(at + "gradient_clipping")};
  }
  return {};
}

Status Values::read_mesh_part(AccelerateSettings& out) const {
  const std::string at = "parallelism_config.parallelism_config_";
  const auto replicate = TROUPE_TRY(integer(at + "dp_replicate_size", 1, 1 << 16));
  const auto shard = TROUPE_TRY(integer(at + "dp_shard_size", 1, 1 << 16));
  if (!replicate && !shard) return {};
  out.mesh = Sourced<MeshAxes>{{replicate ? replicate->value : 1, shard ? shard->value : 1},
                               shard ? shard->key : replicate->key};
  return {};
}

// Where a file's trainers compute.
Status read_devices(const Values& values, AccelerateSettings& out) {
  if (const auto* value = values.find("use_cpu")) {
    const auto on = read_bool(*value);
    if (!on.ok()) return on.status().prefixed(values.key("use_cpu"));
    if (*on) out.use_cpu_key = values.key("use_cpu");
  }
  const auto* given = values.find("gpu_ids");
  if (!given) return {};
  const auto key = values.key("gpu_ids");
  const auto ids = read_text_list(given->is_number() ? to_value(value_text(*given)) : *given);
  if (!ids.ok()) return ids.status().prefixed(key);
  for (const auto& id : *ids) {
    if (lower_case(id) == "all") return {};
    const bool number =
        std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!number && !id.starts_with("GPU-") && !id.starts_with("MIG-")) {
      return error(Code::kInvalidArgument, "{}: '{}' is no device; give numbers, as in 0,1, or all",
                   key, id.substr(0, 40));
    }
  }
  if (!ids->empty()) out.gpu_ids = Sourced<std::string>{join_words(*ids, ","), key};
  return {};
}

// The launch of a file.
Status read_launch(const Values& values, AccelerateSettings& out) {
  constexpr std::int64_t kMost = 1 << 16;
  const auto* processes = values.find("num_processes");
  // -1: the launcher says.
  if (processes && read_integer(*processes).value_or(0) != -1) {
    out.processes = TROUPE_TRY(values.integer("num_processes", 1, kMost));
  }
  out.machines = TROUPE_TRY(values.integer("num_machines", 1, kMost));
  out.machine_rank = TROUPE_TRY(values.integer("machine_rank", 0, kMost - 1));
  out.main_port = TROUPE_TRY(values.integer("main_process_port", 1, 65535));
  if (const auto* address = values.find("main_process_ip")) {
    out.main_address = Sourced<std::string>{value_text(*address), values.key("main_process_ip")};
  }
  const auto machines = out.machines ? out.machines->value : 1;
  if (out.machine_rank && out.machine_rank->value >= machines) {
    return error(Code::kInvalidArgument, "{}: {} is not below {}, which is {}",
                 out.machine_rank->key, out.machine_rank->value, values.key("num_machines"),
                 machines);
  }
  if (out.processes && out.processes->value % machines != 0) {
    return error(Code::kInvalidArgument,
                 "{}: {} processes on {} machines: every machine has "
                 "equally many; use a multiple of {}",
                 out.processes->key, out.processes->value, machines, machines);
  }
  return {};
}

// accelerate's DistributedType, in capitals. Devices that are not there are refused.
Result<std::string> read_distributed_type(const Values& values) {
  const auto* value = values.find("distributed_type");
  const auto key = values.key("distributed_type");
  if (!value) {
    return error(Code::kInvalidArgument,
                 "A `distributed_type` must be specified in the config file. One of NO, MULTI_GPU, "
                 "MULTI_CPU, DEEPSPEED, FSDP");
  }
  const auto type = value->is_bool() && !value->get_bool() ? "NO" : upper_case(value_text(*value));
  for (const auto* known : {"NO", "MULTI_GPU", "MULTI_CPU", "DEEPSPEED", "FSDP"}) {
    if (type == known) return type;
  }
  for (const auto* other : {"MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
                            "MULTI_HPU", "MULTI_NEURON", "XLA", "TPU", "MEGATRON_LM", "TP"}) {
    if (type != other) continue;
    return error(Code::kUnsupported,
                 "{}={} is not supported: no such device or runtime is used; use MULTI_CPU or "
                 "MULTI_GPU, FSDP or DEEPSPEED",
                 key, type);
  }
  return error(Code::kInvalidArgument,
               "{}: '{}' is no valid value; one of NO, MULTI_GPU, MULTI_CPU, DEEPSPEED, FSDP", key,
               type.substr(0, 40));
}

// Reads a file whose keys are checked.
Status read_settings(const json::Object& document, AccelerateSettings& out) {
  const ShownName shown = [](const std::string& path) { return kPrefix + path; };
  const Values values(document, shown);
  const auto type = TROUPE_TRY(read_distributed_type(values));
  TROUPE_RETURN_IF_ERROR(read_launch(values, out));
  TROUPE_RETURN_IF_ERROR(read_devices(values, out));
  if (type == "NO" && !out.processes) {
    out.processes = Sourced<std::int64_t>{1, shown("distributed_type")};
  }
  if (const auto* precision = values.find("mixed_precision")) {
    const auto key = shown("mixed_precision");
    out.mixed_precision =
        Sourced<std::string>{TROUPE_TRY(read_mixed_precision(*precision, key)), key};
  } else if (const auto* fp16 = values.find("fp16"); fp16 && read_bool(*fp16).value_or(false)) {
    out.mixed_precision = Sourced<std::string>{"fp16", shown("fp16")};
  }
  if (type == "FSDP") {
    const auto* settings = values.find("fsdp_config");
    if (settings && !settings->is_object()) {
      return error(Code::kInvalidArgument, "{}: expected a mapping", shown("fsdp_config"));
    }
    const FsdpSource source{
        .shown = [&](const std::string& path) { return shown("fsdp_config." + path); },
        .origin = out.origin,
        .words = std::nullopt,
        .from_environment = false};
    out.fsdp = TROUPE_TRY(
        read_fsdp(settings ? settings->get_object() : json::Object(), source, out.facts));
  }
  if (type == "DEEPSPEED") TROUPE_RETURN_IF_ERROR(values.read_deepspeed_part(out));
  return values.read_mesh_part(out);
}

// A path that leads nowhere from the working directory may be meant from the file's own.
void find_deepspeed_file(const std::string& path, FileSystem& files, AccelerateSettings& out) {
  if (!out.deepspeed || !out.deepspeed->value.is_string()) return;
  const auto name = value_text(out.deepspeed->value);
  const auto slash = path.rfind('/');
  if (slash == std::string::npos || name.starts_with('/') || files.exists(name)) return;
  const auto beside = join_path(path.substr(0, slash), name);
  if (files.exists(beside)) out.deepspeed->value = to_value(beside);
}

}  // namespace

json::Object deepspeed_of_stage(json::Value stage, const json::Value& optimizer_device,
                                const json::Value& param_device) {
  json::Object zero;
  zero["stage"] = std::move(stage);
  zero["offload_optimizer"] = json::Object{{"device", optimizer_device}};
  zero["offload_param"] = json::Object{{"device", param_device}};
  json::Object out;
  for (const auto* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "gradient_clipping"}) {
    out[key] = "auto";
  }
  json::Object bf16;
  bf16["enabled"] = "auto";
  out["bf16"] = std::move(bf16);
  out["zero_optimization"] = std::move(zero);
  return out;
}

Status check_accelerate_names(const json::Object& values, std::string_view path) {
  const auto* environment = values.if_contains("compute_environment");
  if (environment && value_text(*environment) == "AMAZON_SAGEMAKER") {
    return error(Code::kUnsupported,
                 "{}compute_environment=AMAZON_SAGEMAKER is not supported: training runs on "
                 "machines of one's own, and SageMaker has a launcher for its; use LOCAL_MACHINE",
                 kPrefix);
  }
  const auto known = accelerate_keys().names_under("");
  std::vector<std::string> unknown;
  std::string near;
  for (const auto& member : values) {
    const std::string name(member.key());
    if (name.starts_with('_') || std::count(known.begin(), known.end(), name) != 0) continue;
    unknown.push_back(fmt::format("'{}'", name));
    near += did_you_mean(name, known);
  }
  if (unknown.empty()) return {};
  std::sort(unknown.begin(), unknown.end());
  return error(Code::kInvalidArgument,
               "The config file at {} had unknown keys ([{}]), please try upgrading your "
               "`accelerate` version or fix (and potentially remove) these keys from your config "
               "file{}",
               path, join_words(unknown), near);
}

Result<AccelerateSettings> read_accelerate_file(const std::string& path, FileSystem& files) {
  AccelerateSettings out;
  SourceDocument document;
  if (path.starts_with('{')) {
    out.origin = "accelerate launch";
    document = TROUPE_TRY(parse_document(path, "troupe.accelerate_config.json"));
  } else {
    const auto text = files.read(path, limits::kConfigBytesMax);
    if (!text.ok()) return text.status();
    out.origin = path;
    document = TROUPE_TRY(parse_document(*text, path));
  }
  out.prefix = kPrefix;
  const ShownName shown = [](const std::string& key) { return kPrefix + key; };
  TROUPE_RETURN_IF_ERROR(check_accelerate_names(document.values, out.origin));
  TROUPE_RETURN_IF_ERROR(accelerate_keys().check(document.values, shown));
  TROUPE_RETURN_IF_ERROR(read_settings(document.values, out));
  find_deepspeed_file(path, files, out);
  for (auto& notice : accelerate_keys().notices(document.values, shown))
    out.notes.push_back(std::move(notice));
  auto described = document.values;
  if (out.fsdp) described.erase("fsdp_config");
  for (auto& fact : accelerate_keys().describe(described, shown, out.origin)) {
    out.facts.push_back(std::move(fact));
  }
  return out;
}

void merge_launch(const AccelerateSettings& settings, LaunchEnvironment& launch,
                  Problems& problems) {
  const auto merge = [&](auto& ours, const auto& theirs, const char* variable) {
    if (!theirs) return;
    if (ours && *ours != theirs->value) {
      problems.add_named(
          Code::kInvalidArgument, "troupe.accelerate_config",
          fmt::format("{}={} and {}={} disagree about the launch; make them agree, or leave one of "
                      "them out",
                      theirs->key, theirs->value, variable, *ours));
    } else {
      ours = theirs->value;
    }
  };
  const bool ranked = launch.nnodes.has_value();
  merge(launch.nnodes, settings.machines, "NNODES");
  merge(launch.master_addr, settings.main_address, "MASTER_ADDR");
  merge(launch.master_port, settings.main_port, "MASTER_PORT");
  merge(launch.visible_gpus, settings.gpu_ids, "CUDA_VISIBLE_DEVICES");
  if (settings.gpu_ids) launch.gpu_ids_key = settings.gpu_ids->key;
  std::optional<std::int64_t> rank;
  // NODE_RANK counts where there are nodes; machine_rank: 0 stands in every file.
  if (ranked || launch.node_rank != 0) rank = launch.node_rank;
  if (settings.machine_rank && (!rank || settings.machine_rank->value != 0)) {
    merge(rank, settings.machine_rank, "NODE_RANK");
    launch.node_rank = *rank;
    launch.node_rank_given = true;
  }
  if (settings.processes && settings.processes->value % launch.node_count() == 0) {
    const Sourced<std::int64_t> per_node{settings.processes->value / launch.node_count(),
                                         settings.processes->key};
    merge(launch.nproc_per_node, std::optional(per_node), "NPROC_PER_NODE");
    launch.processes_from = settings.processes->key;
  } else if (settings.processes) {
    problems.add_named(
        Code::kInvalidArgument, "troupe.accelerate_config",
        fmt::format("{}={} and NNODES={} disagree about the launch: every machine has equally many "
                    "trainers",
                    settings.processes->key, settings.processes->value, launch.node_count()));
  }
}

}  // namespace troupe::train
