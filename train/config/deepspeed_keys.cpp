#include "train/config/deepspeed_keys.h"

#include <algorithm>
#include <map>

#include "train/config/keys.h"
#include "train/config/suggest.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

enum class Kind {
  kUsed,     // read by resolve_deepspeed
  kInert,    // how DeepSpeed does something; no effect on the results
  kRefused,  // only the listed values, which ask for nothing
  kSection,  // a mapping with rows of its own
};

struct Row {
  Kind kind;
  std::string nothing;  // kRefused: values that ask for nothing, "a|b"
  std::string why;      // kRefused
};

constexpr const char* kLater = "sharding comes later; use troupe.strategy=ddp";
constexpr const char* kSingle = "training is in fp32 for now";
constexpr const char* kService = "no outside service is contacted; leave it out";

// Dotted path → row. Names and defaults: DeepSpeed's configuration reference.
const std::map<std::string, Row, std::less<>>& rows() {
  static const auto table = [] {
    std::map<std::string, Row, std::less<>> t;
    const auto add = [&](Kind kind, std::string_view names, std::string_view nothing = {},
                         std::string_view why = {}) {
      for (const auto& name : split_words(names)) {
        t[name] = Row{kind, std::string(nothing), std::string(why)};
      }
    };
    add(Kind::kUsed,
        "train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|"
        "gradient_clipping|zero_optimization.stage|optimizer.type|optimizer.params.lr|"
        "optimizer.params.betas|optimizer.params.eps|optimizer.params.weight_decay");
    add(Kind::kSection,
        "zero_optimization|fp16|bf16|amp|optimizer|optimizer.params|checkpoint|data_types|"
        "activation_checkpointing|tensorboard|wandb|csv_monitor|comet|flops_profiler|"
        "comms_logger|zero_optimization.offload_optimizer|zero_optimization.offload_param|aio|"
        "elasticity|tensor_parallel|torch_autocast|fp8|compile|autotuning");
    add(Kind::kInert,
        "steps_per_print|wall_clock_breakdown|dump_state|memory_breakdown|"
        "zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|disable_allgather|"
        "dataloader_drop_last|"
        "zero_optimization.contiguous_gradients|zero_optimization.reduce_scatter|"
        "zero_optimization.allgather_partitions|zero_optimization.reduce_bucket_size|"
        "zero_optimization.allgather_bucket_size|zero_optimization.overlap_comm|"
        "zero_optimization.round_robin_gradients|zero_optimization.sub_group_size|"
        "zero_optimization.stage3_max_live_parameters|"
        "zero_optimization.stage3_max_reuse_distance|"
        "zero_optimization.stage3_prefetch_bucket_size|"
        "zero_optimization.stage3_param_persistence_threshold|"
        "zero_optimization.stage3_model_persistence_threshold|"
        "zero_optimization.stage3_gather_16bit_weights_on_model_save|"
        "zero_optimization.stage3_gather_fp16_weights_on_model_save|"
        "zero_optimization.ignore_unused_parameters|zero_optimization.load_from_fp32_weights|"
        "zero_optimization.elastic_checkpoint|zero_optimization.memory_efficient_linear|"
        "fp16.loss_scale|fp16.loss_scale_window|fp16.initial_scale_power|fp16.hysteresis|"
        "fp16.consecutive_hysteresis|fp16.min_loss_scale|fp16.auto_cast|fp16.opt_level|"
        "bf16.check_grad_overflow|bf16.immediate_grad_update|amp.opt_level|"
        "checkpoint.tag_validation|checkpoint.use_node_local_storage|"
        "optimizer.params.torch_adam|optimizer.params.adam_w_mode|"
        "activation_checkpointing.partition_activations|"
        "activation_checkpointing.cpu_checkpointing|"
        "activation_checkpointing.contiguous_memory_optimization|"
        "activation_checkpointing.number_checkpoints|"
        "activation_checkpointing.synchronize_checkpoint_boundary|"
        "activation_checkpointing.profile");
    add(Kind::kRefused, "prescale_gradients", "false", "gradients are summed unscaled");
    add(Kind::kRefused, "gradient_predivide_factor", "1|1.0", "gradients are summed unscaled");
    add(Kind::kRefused, "sparse_gradients", "false", "gradients are dense");
    add(Kind::kRefused, "checkpoint.load_universal", "false",
        "checkpoints of Troupe load at any world size already");
    add(Kind::kRefused, "data_types.grad_accum_dtype|communication_data_type", "null|fp32",
        kSingle);
    add(Kind::kUsed, "bf16.enabled");
    add(Kind::kRefused, "fp16.enabled", "false|auto",
        "fp16 and its loss scale are not there; use bf16: true");
    add(Kind::kRefused, "amp.enabled|fp8.enabled|torch_autocast.enabled", "false", kSingle);
    add(Kind::kRefused, "tensorboard.enabled|wandb.enabled|csv_monitor.enabled|comet.enabled",
        "false", kService);
    add(Kind::kRefused, "flops_profiler.enabled|comms_logger.enabled|autotuning.enabled", "false",
        "DeepSpeed's own tools are not there; leave it out");
    add(Kind::kRefused, "compile.deepcompile", "false", "the model is compiled code already");
    add(Kind::kRefused, "elasticity.enabled", "false",
        "the size of a run is troupe.workers; leave it out");
    add(Kind::kRefused, "tensor_parallel.autotp_size", "0|1",
        "data parallelism is the only kind there is");
    add(Kind::kRefused,
        "zero_optimization.offload_optimizer.device|zero_optimization.offload_param.device", "none",
        "offload comes later; use device none");
    add(Kind::kRefused,
        "zero_optimization.cpu_offload|zero_optimization.cpu_offload_params|"
        "zero_optimization.cpu_offload_param",
        "false", "offload comes later; leave it out");
    add(Kind::kRefused,
        "zero_optimization.zero_quantized_weights|zero_optimization.zero_quantized_gradients|"
        "zero_optimization.zero_quantized_nontrainable_weights",
        "false", "nothing is quantised");
    add(Kind::kRefused, "zero_optimization.zero_hpz_partition_size", "1", kLater);
    add(Kind::kRefused, "zero_optimization.mics_shard_size", "-1", kLater);
    add(Kind::kRefused, "zero_optimization.mics_hierarchical_params_gather", "false", kLater);
    add(Kind::kRefused, "scheduler", "",
        "leave it out and use lr_scheduler_type of the training configuration");
    return t;
  }();
  return table;
}

// Sections whose further keys say nothing while the section is off.
constexpr std::string_view kOpenSections[] = {"tensorboard.",
                                              "wandb.",
                                              "csv_monitor.",
                                              "comet.",
                                              "aio.",
                                              "flops_profiler.",
                                              "comms_logger.",
                                              "autotuning.",
                                              "elasticity.",
                                              "zero_optimization.offload_optimizer.",
                                              "zero_optimization.offload_param.",
                                              "tensor_parallel.",
                                              "torch_autocast.",
                                              "fp8.",
                                              "compile.",
                                              "amp."};

std::vector<std::string> names_under(std::string_view prefix) {
  std::vector<std::string> out;
  for (const auto& [path, row] : rows()) {
    if (!path.starts_with(prefix)) continue;
    const auto rest = std::string_view(path).substr(prefix.size());
    if (rest.find('.') == std::string_view::npos) out.emplace_back(rest);
  }
  return out;
}

bool asks_for_nothing(const Row& row, const json::Value& value) {
  if (value.is_null() || (value.is_object() && value.get_object().empty())) return true;
  const auto nothing = split_words(row.nothing);
  auto text = value_text(value);
  if (const auto flag = read_bool(value); value.is_string() && flag.ok()) {
    text = *flag ? "true" : "false";
  }
  if (std::find(nothing.begin(), nothing.end(), text) != nothing.end()) return true;
  const auto number = read_number(value);
  return number.ok() && std::any_of(nothing.begin(), nothing.end(), [&](const auto& word) {
           const auto other = read_number(json::Value(boost::json::string(word)));
           return other.ok() && *other == *number;
         });
}

Status check_level(const json::Object& level, const std::string& prefix) {
  for (const auto& member : level) {
    const std::string name(member.key());
    const std::string path = prefix + name;
    if (name.starts_with('_')) continue;
    const auto found = rows().find(path);
    if (found == rows().end()) {
      const bool open = std::any_of(std::begin(kOpenSections), std::end(kOpenSections),
                                    [&](auto section) { return prefix == section; });
      if (open) continue;
      return error(Code::kInvalidArgument, "unknown key '{}'{}", path,
                   did_you_mean(name, names_under(prefix)));
    }
    const Row& row = found->second;
    if (row.kind == Kind::kSection) {
      if (member.value().is_null()) continue;
      if (!member.value().is_object()) {
        return error(Code::kInvalidArgument, "'{}': expected a mapping, found {}", path,
                     json::write(member.value()));
      }
      TROUPE_RETURN_IF_ERROR(check_level(member.value().get_object(), path + "."));
    } else if (row.kind == Kind::kRefused && !asks_for_nothing(row, member.value())) {
      return error(Code::kUnsupported, "{}={} is not supported: {}", path,
                   value_text(member.value()).substr(0, 80), row.why);
    }
  }
  return {};
}

}  // namespace

Status check_deepspeed_keys(const json::Object& config) { return check_level(config, ""); }

}  // namespace troupe::train
