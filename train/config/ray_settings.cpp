#include "train/config/ray_settings.h"

#include <cmath>

#include "train/config/values.h"

namespace troupe::train {
namespace {

// A trainer's environment travels with its options.
constexpr std::size_t kVariablesBytesMax = 60 * 1024;
// Amounts are multiples of this part of a unit.
constexpr double kUnitParts = 10'000;

ForeignKeys build_ray_keys() {
  ForeignKeys t;
  t.refused("address", "local",
            "it is the address of a Ray cluster; leave it out, and give the HOST:PORT that 'troupe "
            "head' prints as troupe.address")
      .refused("local_mode", "false", "trainers are processes of their own; leave it out")
      .used("resources", "resources of this machine, for resources_per_worker")
      .inert("num_cpus",
             "threads are counted: troupe.threads_per_worker says how many a trainer has")
      .inert("num_gpus",
             "every GPU of the machine is offered; CUDA_VISIBLE_DEVICES says which are there")
      .inert("labels|namespace|_node_name|_node_ip_address",
             "the run's own head and node have names of their own")
      .inert(
          "object_store_memory|_memory|_plasma_directory|_object_store_memory|_temp_dir|storage|"
          "object_spilling_directory|_redis_max_memory|_redis_password|_redis_username|"
          "_driver_object_store_memory|_enable_object_reconstruction",
          "there is no object store: what trainers share is in the node's memory")
      .inert(
          "ignore_reinit_error|allow_multiple|job_config|_system_config|_tracing_startup_hook|"
          "enable_resource_isolation|system_reserved_cpu|system_reserved_memory|cgroup_path|"
          "proxy_server_url",
          "Troupe's own head and nodes are used, not Ray's")
      .inert(
          "include_dashboard|dashboard_host|dashboard_port|_metrics_export_port|"
          "configure_logging|logging_level|logging_format|logging_config|log_to_driver",
          "output_dir has the run's logs; 'troupe status', 'troupe logs' and 'troupe why' show it")
      .section("runtime_env")
      .used("runtime_env.env_vars", "variables of every trainer")
      .inert("runtime_env.working_dir|runtime_env.excludes",
             "paths are those of the command's folder, which every node must see")
      .inert(
          "runtime_env.py_modules|runtime_env.py_executable|runtime_env.pip|runtime_env.conda|"
          "runtime_env.uv|runtime_env.java_jars|runtime_env.worker_process_setup_hook|"
          "runtime_env.config|runtime_env.nsight|runtime_env.rocprof-sys|runtime_env.mpi",
          "trainers are this program, and no Python")
      .refused("runtime_env.container|runtime_env.image_uri", "",
               "trainers run where their node does; start 'troupe worker' in that container");
  for (const auto& path : t.paths())
    if (t.treated(path).treatment == Treatment::kInert) t.said(path);
  return t;
}

Result<double> amount_of(const json::Value& value) {
  const auto amount = TROUPE_TRY(read_number(value));
  constexpr double kAmountMax = 1e15;  // a petabyte of memory
  if (!(amount >= 0) || amount > kAmountMax) {
    return error(Code::kInvalidArgument, "{} is no amount", value_text(value));
  }
  const double parts = amount * kUnitParts;
  if (std::abs(parts - std::round(parts)) > 1e-6 * std::max(1.0, parts)) {
    return error(Code::kInvalidArgument, "{} is no multiple of 1/10,000", value_text(value));
  }
  return amount;
}

Result<std::map<std::string, double>> amounts_of(const json::Object& given) {
  std::map<std::string, double> out;
  for (const auto& member : given) {
    const std::string name(member.key());
    auto amount = amount_of(member.value());
    if (!amount.ok()) return amount.status().prefixed(name);
    out[name] = *amount;
  }
  return out;
}

}  // namespace

const ForeignKeys& ray_keys() {
  static const ForeignKeys table = build_ray_keys();
  return table;
}

Status store_ray_settings(TrainConfig& config, const json::Value& value) {
  auto settings = value.is_null() ? json::Object() : TROUPE_TRY(read_object(value));
  auto* environment = settings.if_contains("runtime_env");
  auto* variables = environment && environment->is_object()
                        ? environment->get_object().if_contains("env_vars")
                        : nullptr;
  if (variables && !variables->is_null()) {
    if (!variables->is_object()) {
      return error(Code::kInvalidArgument, "runtime_env.env_vars: expected names and values");
    }
    std::size_t bytes = 0;
    for (const auto& member : variables->get_object()) {
      const std::string name(member.key());
      if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos) {
        return error(Code::kInvalidArgument, "runtime_env.env_vars: '{}' is no variable's name",
                     name);
      }
      auto text = read_text(member.value());
      if (!text.ok()) return text.status().prefixed("runtime_env.env_vars." + name);
      bytes += name.size() + text->size() + 2;
      config.launch.trainer_variables[name] = std::move(*text);
    }
    if (bytes > kVariablesBytesMax) {
      return error(Code::kInvalidArgument, "runtime_env.env_vars: {} bytes are more than {}", bytes,
                   kVariablesBytesMax);
    }
    environment->get_object().erase("env_vars");
    if (environment->get_object().empty()) settings.erase("runtime_env");
  }
  config.launch.ray_init_kwargs = std::move(settings);
  return {};
}

Status check_ray_settings(const json::Object& settings, const ShownName& shown) {
  TROUPE_RETURN_IF_ERROR(ray_keys().check(settings, shown));
  if (const auto* resources = settings.if_contains("resources");
      resources && !resources->is_null()) {
    if (!resources->is_object()) {
      return error(Code::kInvalidArgument, "{}: expected names and amounts", shown("resources"));
    }
    const auto amounts = amounts_of(resources->get_object());
    if (!amounts.ok()) return amounts.status().prefixed(shown("resources"));
  }
  return {};
}

Result<WorkerResources> worker_resources(const TrainConfig& config) {
  WorkerResources out;
  out.others = TROUPE_TRY(amounts_of(config.launch.resources_per_worker));
  const auto take = [&](const char* name) -> std::optional<double> {
    const auto found = out.others.find(name);
    if (found == out.others.end()) return std::nullopt;
    const double amount = found->second;
    out.others.erase(found);
    return amount;
  };
  out.cpus = take("CPU");
  out.gpus = take("GPU");
  out.memory_bytes = take("memory").value_or(0);
  if (out.gpus && *out.gpus > 1) {
    return error(Code::kUnsupported,
                 "GPU: {:g} is not supported: a trainer computes on one GPU; use GPU: 1, and as "
                 "many workers as GPUs",
                 *out.gpus);
  }
  if (take("object_store_memory").value_or(0) > 0) {
    return error(Code::kUnsupported,
                 "object_store_memory is not supported: there is no object store; use memory");
  }
  return out;
}

double cpus_per_trainer(const TrainConfig& config, std::int64_t threads) {
  const auto resources = worker_resources(config);
  return resources.ok() && resources->cpus ? *resources->cpus : static_cast<double>(threads);
}

std::map<std::string, double> own_resources(const TrainConfig& config) {
  const auto* resources = config.launch.ray_init_kwargs.if_contains("resources");
  if (!resources || !resources->is_object()) return {};
  return amounts_of(resources->get_object()).value_or({});
}

}  // namespace troupe::train
