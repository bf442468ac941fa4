#include "train/config/sources.h"

#include <algorithm>
#include <utility>

#include "train/config/accelerate.h"
#include "train/config/claims.h"
#include "train/config/deepspeed.h"
#include "train/config/deepspeed_keys.h"
#include "train/config/fsdp.h"
#include "train/config/launch.h"
#include "train/config/launch_variables.h"
#include "train/config/mesh.h"
#include "train/config/ray_settings.h"
#include "train/config/resolve.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr const char* kDevice = "where trainers compute";
constexpr const char* kGpuShare = "a trainer's share of a GPU";
constexpr const char* kStrategy = "the strategy";
constexpr const char* kMesh = "the mesh";
constexpr const char* kPrecision = "the precision";
constexpr const char* kReduce = "what gradients travel in";
constexpr const char* kFormat = "the form of checkpoints";
constexpr const char* kOffload = "what is offloaded";

json::Value mesh_value(const MeshAxes& mesh) { return json::Array{mesh.replicate, mesh.shard}; }

// The names of a limit: ours after "troupe.", DeepSpeed's after "zero_optimization.stage3_".
struct LimitName {
  const char* name;
  std::int64_t DeepSpeedLimits::*theirs;
};
constexpr LimitName kLimits[] = {
    {"max_live_parameters", &DeepSpeedLimits::max_live_parameters},
    {"max_reuse_distance", &DeepSpeedLimits::max_reuse_distance},
    {"prefetch_bucket_size", &DeepSpeedLimits::prefetch_bucket_size},
    {"param_persistence_threshold", &DeepSpeedLimits::param_persistence_threshold},
};

class SourceResolver {
 public:
  SourceResolver(LoadedConfig& loaded, const json::Object& values, FileSystem& files,
                 std::int64_t gpu_count, Problems& problems)
      : loaded_(loaded),
        config_(loaded.config),
        values_(values),
        files_(files),
        gpu_count_(gpu_count),
        problems_(problems) {}

  void resolve(const Environment& environment) {
    read_accelerate(environment);
    for (const auto& settings : accelerate_) {
      merge(settings);
      claim_steps(settings);
      for (const auto& fact : settings.facts) loaded_.facts.push_back(fact);
      for (const auto& note : settings.notes) loaded_.warnings.push_back(note);
    }
    settle_steps();
    settle_precision();
    claim_resources();
    settle_device();
    settle_wait();
    check_ray();
    check_world();
    if (given("ray_num_workers") && !config_.troupe.workers && !environment.enabled("USE_RAY"))
      loaded_.notices.push_back(
          "ray_num_workers counts here without USE_RAY=1, too; LLaMA-Factory takes it with that "
          "alone");
    claim_ours();
    claim_fsdp();
    claim_deepspeed();
    settle_mesh();
    settle_strategy();
    settle_offload();
    settle_limits();
    settle_rest();
  }

 private:
  const json::Value* given(std::string_view key) const {
    const auto* value = values_.if_contains({key.data(), key.size()});
    return value && !value->is_null() ? value : nullptr;
  }
  std::string origin_of(std::string_view key) const {
    return loaded_.source.origin_of(key).to_string();
  }
  void disagree(const std::string& key, const std::string& message) {
    problems_.add_named(Code::kInvalidArgument, key, message);
  }
  // Remembers for --explain where a key's value is from that was not given itself.
  void resolved(const char* key, const std::string& from) {
    if (!given(key)) loaded_.resolved_from[key] = from;
  }

  void read_accelerate(const Environment& environment) {
    constexpr const char* kFile = "troupe.accelerate_config";
    if (const auto* path = given(kFile)) {
      auto settings = read_accelerate_file(value_text(*path), files_);
      if (settings.ok()) {
        accelerate_.push_back(std::move(*settings));
      } else if (settings.status().message().starts_with(kFile)) {
        problems_.add_named(settings.status().code(), kFile, settings.status().message());
      } else {
        problems_.add(kFile, settings.status());
      }
    }
    if (auto settings = read_accelerate_environment(environment, problems_)) {
      accelerate_.push_back(std::move(*settings));
    }
  }

  void merge(const AccelerateSettings& settings) {
    const auto before = loaded_.launch;
    merge_launch(settings, loaded_.launch, problems_);
    const auto note = [&](const char* name, bool was_set, const auto& source) {
      if (!was_set && source) loaded_.resolved_from[name] = source->key;
    };
    note("NNODES", before.nnodes.has_value(), settings.machines);
    note("NODE_RANK", before.nnodes.has_value(), settings.machine_rank);
    note("NPROC_PER_NODE", before.nproc_per_node.has_value(), settings.processes);
    note("MASTER_ADDR", before.master_addr.has_value(), settings.main_address);
    note("MASTER_PORT", before.master_port.has_value(), settings.main_port);
  }

  // gradient_accumulation_steps and max_grad_norm: accelerate's count where ours are not given.
  void claim_steps(const AccelerateSettings& settings) {
    if (const auto& steps = settings.gradient_accumulation_steps) {
      claims_.add("gradient_accumulation_steps", {steps->key, steps->value, {}});
    }
    if (const auto& norm = settings.gradient_clipping) {
      claims_.add("max_grad_norm", {norm->key, norm->value, {}});
    }
  }
  void settle_steps() {
    for (const auto* key : {"gradient_accumulation_steps", "max_grad_norm"}) {
      if (const auto* value = given(key)) claims_.add(key, {key, *value, {}});
    }
    if (const auto* claim = claims_.settle("gradient_accumulation_steps", problems_)) {
      config_.training.gradient_accumulation_steps = claim->value.to_number<std::int64_t>();
      resolved("gradient_accumulation_steps", claim->key);
    }
    if (const auto* claim = claims_.settle("max_grad_norm", problems_)) {
      config_.training.max_grad_norm = claim->value.to_number<double>();
      resolved("max_grad_norm", claim->key);
    }
  }

  void settle_precision() {
    const auto claimed = [&](std::string_view name) {
      return std::ranges::any_of(accelerate_, [&](const AccelerateSettings& settings) {
        return settings.mixed_precision && settings.mixed_precision->value == name;
      });
    };
    const auto on = [&](const char* key) {
      const auto* value = given(key);
      return value && value->is_bool() && value->get_bool();
    };
    for (const auto& [key, other] : {std::pair("bf16", "fp16"), std::pair("fp16", "bf16")}) {
      const auto* value = given(key);
      if (!value || !value->is_bool()) continue;
      if (value->get_bool()) {
        claims_.add(kPrecision, {key, key, "true"});
      } else if (!on(other) && !claimed(other)) {
        // That it is not one of the two says nothing against the other.
        claims_.add(kPrecision, {key, "fp32", "false"});
      }
      // That it cannot be both is said elsewhere.
      if (on(other)) break;
    }
    for (const auto& settings : accelerate_) {
      const auto& precision = settings.mixed_precision;
      if (!precision) continue;
      if (precision->value != "no") {
        claims_.add(kPrecision, {precision->key, to_value(precision->value), precision->value});
      } else if (config_.model.compute != Precision::kFloat32) {
        // "no" stands in every file that accelerate writes; transformers' own key wins over it.
        const char* type = config_.model.compute == Precision::kBfloat16 ? "bf16" : "fp16";
        loaded_.warnings.push_back(fmt::format(
            "training computes in {}: {}=true counts, and not {}=no", type, type, precision->key));
      }
    }
    if (const auto* claim = claims_.settle(kPrecision, problems_)) {
      const bool fp16 = claim->value == "fp16";
      config_.model.compute = fp16                     ? Precision::kFloat16
                              : claim->value == "bf16" ? Precision::kBfloat16
                                                       : Precision::kFloat32;
      resolved(fp16 ? "fp16" : "bf16", claim->key);
    }
    resolve_precision(loaded_, values_, problems_);
  }

  // resources_per_worker, where our own keys leave it open.
  void claim_resources() {
    constexpr const char* kKey = "resources_per_worker";
    const auto resources = worker_resources(config_);
    if (!resources.ok()) return problems_.add(kKey, resources.status());
    if (resources->cpus.value_or(0) > kThreadsPerTrainerMax) {
      return problems_.add(
          kKey, error(Code::kInvalidArgument, "CPU: {:g} is more than a trainer may have ({})",
                      *resources->cpus, kThreadsPerTrainerMax));
    }
    if (resources->cpus && !config_.troupe.threads_per_worker) {
      config_.troupe.threads_per_worker =
          std::max<std::int64_t>(1, static_cast<std::int64_t>(*resources->cpus));
      resolved("troupe.threads_per_worker", "resources_per_worker.CPU");
    }
    if (!resources->gpus) return;
    const auto shown = fmt::format("{:g}", *resources->gpus);
    if (*resources->gpus == 0) {
      claims_.add(kDevice, {"resources_per_worker.GPU", "cpu", shown});
      return;
    }
    if (given("troupe.gpus_per_worker")) {
      claims_.add(kGpuShare, {"troupe.gpus_per_worker", config_.troupe.gpus_per_worker, {}});
    }
    claims_.add(kGpuShare, {"resources_per_worker.GPU", *resources->gpus, shown});
    if (const auto* claim = claims_.settle(kGpuShare, problems_)) {
      config_.troupe.gpus_per_worker = claim->value.to_number<double>();
      resolved("troupe.gpus_per_worker", claim->key);
    }
  }

  // What asks for CPUs; `false` stands in files that ask for nothing.
  void settle_device() {
    if (const auto* value = given("troupe.device"); value && *value != "auto") {
      claims_.add(kDevice, {"troupe.device", *value, {}});
    }
    if (config_.launch.use_cpu) claims_.add(kDevice, {"use_cpu", "cpu", "true"});
    for (const auto& settings : accelerate_) {
      if (settings.use_cpu_key.empty()) continue;
      claims_.add(kDevice, {settings.use_cpu_key, "cpu", "true"});
    }
    if (const auto* claim = claims_.settle(kDevice, problems_)) {
      config_.troupe.device = value_text(claim->value);
      resolved("troupe.device", claim->key);
    }
  }

  void settle_wait() {
    if (!loaded_.launch.wait_timeout_s || given("ddp_timeout")) return;
    config_.training.ddp_timeout_s = *loaded_.launch.wait_timeout_s;
    resolved("ddp_timeout", "AXOLOTL_NCCL_TIMEOUT");
  }

  void check_ray() {
    const auto shown = [](const std::string& path) { return "ray_init_kwargs." + path; };
    const auto& settings = config_.launch.ray_init_kwargs;
    if (const auto checked = check_ray_settings(settings, shown); !checked.ok()) {
      problems_.add_named(checked.code(), "ray_init_kwargs", checked.message());
      return;
    }
    for (auto& fact : ray_keys().describe(settings, shown, origin_of("ray_init_kwargs")))
      loaded_.facts.push_back(std::move(fact));
    for (auto& notice : ray_keys().notices(settings, shown))
      loaded_.notices.push_back(std::move(notice));
    for (const auto& [name, value] : config_.launch.trainer_variables) {
      loaded_.facts.push_back({shown("runtime_env.env_vars." + name), "(hidden)",
                               origin_of("ray_init_kwargs"), Treatment::kImplemented,
                               "a variable of every trainer"});
    }
  }

  // ray_num_workers and accelerate's number of processes.
  void check_world() {
    const auto& workers = config_.launch.ray_num_workers;
    if (config_.troupe.workers || !workers) return;
    for (const auto& settings : accelerate_) {
      if (!settings.processes || settings.processes->value == *workers) continue;
      disagree("ray_num_workers",
               fmt::format("ray_num_workers={} and {}={} disagree about the number of trainers; "
                           "leave one of them out",
                           *workers, settings.processes->key, settings.processes->value));
    }
  }

  void claim_ours() {
    if (const auto* value = given("troupe.strategy")) {
      claims_.add(kStrategy,
                  {"troupe.strategy", to_value(config_.sharding.strategy), value_text(*value)});
    }
    for (const auto* key : {"troupe.mesh", "parallelism_config"}) {
      const auto* value = given(key);
      if (!value) continue;
      // What cannot be read is a problem already.
      const auto mesh = read_mesh(*value);
      if (mesh.ok() && mesh->shard > 0) {
        claims_.add(kMesh, {key, mesh_value(*mesh), value_text(mesh_value(*mesh))});
      }
    }
    for (const auto& settings : accelerate_) {
      if (!settings.mesh) continue;
      const auto value = mesh_value(settings.mesh->value);
      claims_.add(kMesh, {settings.mesh->key, value, value_text(value)});
    }
    if (given("troupe.offload")) {
      claims_.add(kOffload, {"troupe.offload", to_value(config_.sharding.offload), {}});
    }
    if (given("troupe.reduce_dtype")) {
      claims_.add(kReduce, {"troupe.reduce_dtype", to_value(config_.model.reduce), {}});
    }
    if (given("troupe.checkpoint_format")) {
      claims_.add(kFormat,
                  {"troupe.checkpoint_format", to_value(config_.training.checkpoint_format), {}});
    }
  }

  void claim_fsdp() {
    if (const auto* value = given("fsdp")) claim_fsdp_keys(*value);
    for (const auto& settings : accelerate_) {
      if (settings.fsdp) claim(*settings.fsdp);
    }
  }

  void claim_fsdp_keys(const json::Value& value) {
    auto words = read_fsdp_words(value);
    if (!words.ok()) {
      problems_.add_named(words.status().code(), "fsdp", words.status().message());
      return;
    }
    if (!*words) return;
    const FsdpSource source{
        .shown =
            [](const std::string& name) { return name.empty() ? "fsdp" : "fsdp_config." + name; },
        .origin = origin_of("fsdp_config"),
        .words = **words,
        .from_environment = false};
    const auto settings = read_fsdp(config_.fsdp_config, source, loaded_.facts);
    if (!settings.ok()) return problems_.add("fsdp_config", settings.status());
    claim(*settings);
  }

  void claim(const FsdpSettings& settings) {
    fsdp_claims_.push_back(settings.strategy);
    if (settings.checkpoint_format) claims_.add(kFormat, *settings.checkpoint_format);
    if (settings.offload) claims_.add(kOffload, *settings.offload);
    if (!settings.activation_checkpointing_key.empty()) {
      fsdp_checkpointing_key_ = settings.activation_checkpointing_key;
    }
  }

  void claim_deepspeed() {
    const auto* ours = given("deepspeed");
    if (ours && !(ours->is_string() && ours->get_string().empty())) {
      resolve_one(*ours, "deepspeed", "deepspeed.", "");
    }
    for (const auto& settings : accelerate_) {
      if (!settings.deepspeed) continue;
      const auto& source = *settings.deepspeed;
      resolve_one(source.value, source.key, source.value.is_object() ? "" : source.key + ": ",
                  settings.offload_key);
    }
  }

  // `prefix` stands before a path of DeepSpeed's; empty: the path's meaning is the key's, and
  // `offload_key` is what asks for offload.
  void resolve_one(const json::Value& source, const std::string& key, const std::string& prefix,
                   const std::string& offload_key) {
    const auto config = read_deepspeed(source, files_);
    if (!config.ok()) return problems_.add(key, config.status());
    DeepSpeedContext context;
    context.training = config_.training;
    context.world_size = resolve_world_size(config_, loaded_.launch, gpu_count_).value;
    context.hidden_size = read_hidden_size(config_.model.model_name_or_path, files_);
    context.bf16 = config_.model.compute == Precision::kBfloat16;
    context.fp16 = config_.model.compute == Precision::kFloat16;
    auto deepspeed = resolve_deepspeed(*config, context);
    if (!deepspeed.ok()) return problems_.add(key, deepspeed.status());
    for (const auto& note : deepspeed->notes) loaded_.warnings.push_back("deepspeed: " + note);
    const auto shown = [&](const std::string& path) {
      return prefix.empty() ? key : prefix + path;
    };
    claims_.add(kStrategy, {shown("zero_optimization.stage"), to_value(deepspeed->strategy),
                            std::to_string(deepspeed->zero_stage)});
    if (deepspeed->reduce) {
      claims_.add(kReduce, {shown("communication_data_type"), to_value(*deepspeed->reduce), {}});
    }
    if (deepspeed->offload != OffloadChoice::kNone) {
      claims_.add(kOffload, {prefix.empty() ? offload_key : shown(deepspeed->offload_path),
                             to_value(deepspeed->offload), "cpu"});
    }
    claim_limits(*deepspeed, shown);
    if (!prefix.empty()) {
      const auto origin = source.is_string() ? value_text(source) : origin_of(key);
      for (auto& fact : deepspeed_keys().describe(deepspeed->values, shown, origin)) {
        loaded_.facts.push_back(std::move(fact));
      }
    }
    if (config_.deepspeed.empty()) config_.deepspeed = std::move(deepspeed->values);
  }

  // Limits that stand there; the others are DeepSpeed's defaults.
  void claim_limits(const ResolvedDeepSpeed& deepspeed, const ShownName& shown) {
    if (!deepspeed.limits) return;
    deepspeed_limits_ = deepspeed.limits;
    const auto* zero = deepspeed.values.if_contains("zero_optimization");
    for (const auto& limit : kLimits) {
      const auto long_name = std::string("stage3_") + limit.name;
      const bool is_long = zero && json::find(*zero, long_name);
      if (!is_long && !(zero && json::find(*zero, limit.name))) continue;
      claims_.add(limit.name,
                  {shown("zero_optimization." + (is_long ? long_name : std::string(limit.name))),
                   (*deepspeed.limits).*(limit.theirs),
                   {}});
    }
  }

  void settle_mesh() {
    const auto* claim = claims_.settle(kMesh, problems_);
    if (!claim) return;
    const auto& axes = claim->value.get_array();
    mesh_ = MeshAxes{axes[0].to_number<std::int64_t>(), axes[1].to_number<std::int64_t>()};
    mesh_key_ = claim->key;
    config_.sharding.mesh_replicate = mesh_.replicate;
    config_.sharding.mesh_shard = mesh_.shard;
    resolved("troupe.mesh", claim->key);
    const auto world = resolve_world_size(config_, loaded_.launch, gpu_count_);
    if (mesh_.replicate * mesh_.shard != world.value) {
      disagree(claim->key,
               fmt::format("{}={} has {} places, the run has {} trainers ({}): their product must "
                           "be the number of trainers",
                           claim->key, claim->shown, mesh_.replicate * mesh_.shard, world.value,
                           world.from));
    }
  }

  void settle_strategy() {
    for (auto claim : fsdp_claims_) {
      claim.value = to_value(fsdp_strategy_on(mesh_, value_text(claim.value)));
      claims_.add(kStrategy, std::move(claim));
    }
    auto& strategy = config_.sharding.strategy;
    if (const auto* claim = claims_.settle(kStrategy, problems_)) {
      strategy = value_text(claim->value);
      resolved("troupe.strategy", claim->key);
      check_mesh(*claim);
    } else if (!mesh_key_.empty()) {
      strategy = strategy_of_mesh(mesh_);
      resolved("troupe.strategy", mesh_key_);
    }
  }

  // A mesh that the strategy does not have.
  void check_mesh(const Claim& claim) {
    const auto other = other_mesh_of(value_text(claim.value), mesh_);
    if (mesh_key_.empty() || !other) return;
    disagree(mesh_key_, fmt::format("{}={},{} and {}={} disagree: the mesh of {} is {}; use "
                                    "troupe.strategy=hsdp for shard groups that are replicated",
                                    mesh_key_, mesh_.replicate, mesh_.shard, claim.key, claim.shown,
                                    value_text(claim.value), *other));
  }

  void settle_offload() {
    auto& sharding = config_.sharding;
    const auto* claim = claims_.settle(kOffload, problems_);
    if (!claim || !from_value(claim->value, sharding.offload).ok()) return;
    resolved("troupe.offload", claim->key);
    const bool whole = sharding.strategy == "zero1" || sharding.strategy == "zero2";
    if (sharding.offload != OffloadChoice::kParameters || !whole) return;
    disagree(claim->key,
             fmt::format("{}={} and the strategy {} do not go together: every GPU has whole "
                         "parameters there; use troupe.offload=optimizer, or troupe.strategy=zero3",
                         claim->key, claim->shown, sharding.strategy));
  }

  void settle_limits() {
    auto& sharding = config_.sharding;
    std::int64_t prefetch = sharding.prefetch_bucket_size.value_or(-1);
    std::int64_t* const fields[] = {&sharding.max_live_parameters, &sharding.max_reuse_distance,
                                    &prefetch, &sharding.param_persistence_threshold};
    for (std::size_t i = 0; i < std::size(kLimits); ++i) {
      const auto key = std::string("troupe.") + kLimits[i].name;
      const bool ours = given(key) != nullptr;
      if (ours) claims_.add(kLimits[i].name, {key, *fields[i], {}});
      if (!ours && deepspeed_limits_) *fields[i] = (*deepspeed_limits_).*(kLimits[i].theirs);
      const auto* claim = claims_.settle(kLimits[i].name, problems_);
      if (claim) *fields[i] = claim->value.to_number<std::int64_t>();
      if (claim || deepspeed_limits_) {
        resolved(key.c_str(), claim ? claim->key : "DeepSpeed's default");
      }
    }
    if (prefetch >= 0) sharding.prefetch_bucket_size = prefetch;
  }

  void settle_rest() {
    if (const auto* claim = claims_.settle(kReduce, problems_)) {
      if (from_value(claim->value, config_.model.reduce).ok()) {
        resolved("troupe.reduce_dtype", claim->key);
      }
    }
    if (const auto* claim = claims_.settle(kFormat, problems_)) {
      if (from_value(claim->value, config_.training.checkpoint_format).ok()) {
        resolved("troupe.checkpoint_format", claim->key);
      }
    }
    resolve_activation_checkpointing(loaded_, values_, fsdp_checkpointing_key_, problems_);
    if (!fsdp_claims_.empty() && config_.model.compute == Precision::kBfloat16 &&
        config_.model.reduce == Precision::kFloat32 && !given("troupe.reduce_dtype")) {
      loaded_.warnings.push_back(
          "gradients are reduced in fp32, where accelerate's FSDP takes bf16; "
          "troupe.reduce_dtype=bfloat16 does as it does");
    }
  }

  LoadedConfig& loaded_;
  TrainConfig& config_;
  const json::Object& values_;
  FileSystem& files_;
  std::int64_t gpu_count_;
  Problems& problems_;

  Claims claims_;
  std::vector<AccelerateSettings> accelerate_;
  std::vector<Claim> fsdp_claims_;
  std::string fsdp_checkpointing_key_;
  MeshAxes mesh_;
  std::string mesh_key_;
  std::optional<DeepSpeedLimits> deepspeed_limits_;
};

}  // namespace

void resolve_sources(LoadedConfig& loaded, const json::Object& values,
                     const Environment& environment, FileSystem& files, std::int64_t gpu_count,
                     Problems& problems) {
  SourceResolver(loaded, values, files, gpu_count, problems).resolve(environment);
}

}  // namespace troupe::train
