// Keys of LLaMA-Factory's optimizers beside `optim`, its loggers, and Megatron's parallelism.
#include <cmath>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/foreign_keys.h"
#include "train/config/key_builder.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train {
namespace {

bool uses_galore(const TrainConfig& config) { return config.optimizer.use_galore; }
bool uses_apollo(const TrainConfig& config) { return config.optimizer.use_apollo; }
bool uses_badam(const TrainConfig& config) { return config.optimizer.use_badam; }

void add_projection_keys(KeyTable& t) {
  const char* galore_only = "it belongs to use_galore: true";
  const char* apollo_only = "it belongs to use_apollo: true";
  t.boolean("use_galore", false)
      .implemented("GaLore: AdamW on gradients in a few dimensions",
                   TROUPE_FIELD(optimizer.use_galore));
  t.list("galore_target", "all")
      .implemented("GaLore: words of the names of linear layers; all: those of all layers",
                   TROUPE_FIELD(optimizer.galore_target))
      .only_where(uses_galore, galore_only);
  t.integer("galore_rank", 16)
      .implemented("GaLore: dimensions", TROUPE_FIELD(optimizer.galore_rank))
      .at_least(1)
      .only_where(uses_galore, galore_only);
  t.integer("galore_update_interval", 200)
      .implemented("GaLore: steps with one projection",
                   TROUPE_FIELD(optimizer.galore_update_interval))
      .at_least(1)
      .only_where(uses_galore, galore_only);
  t.number("galore_scale", 2.0)
      .implemented("GaLore: what steps are multiplied with", TROUPE_FIELD(optimizer.galore_scale))
      .only_where(uses_galore, galore_only);
  t.choice("galore_proj_type", "std", "std|reverse_std|right|left|full")
      .implemented("GaLore: which side of a matrix is projected",
                   TROUPE_FIELD(optimizer.galore_proj_type))
      .only_where(uses_galore, galore_only);
  t.boolean("galore_layerwise", false)
      .implemented("GaLore: no clipping and no accumulation, as where each layer is updated alone",
                   TROUPE_FIELD(optimizer.galore_layerwise))
      .only_where(uses_galore, galore_only);

  t.boolean("use_apollo", false)
      .implemented("APOLLO: gradients scaled as AdamW scales a projection of them",
                   TROUPE_FIELD(optimizer.use_apollo));
  t.list("apollo_target", "all")
      .implemented("APOLLO: words of the names of linear layers; all: those of all layers",
                   TROUPE_FIELD(optimizer.apollo_target))
      .only_where(uses_apollo, apollo_only);
  t.integer("apollo_rank", 16)
      .implemented("APOLLO: dimensions", TROUPE_FIELD(optimizer.apollo_rank))
      .at_least(1)
      .only_where(uses_apollo, apollo_only);
  t.integer("apollo_update_interval", 200)
      .implemented("APOLLO: steps with one projection",
                   TROUPE_FIELD(optimizer.apollo_update_interval))
      .at_least(1)
      .only_where(uses_apollo, apollo_only);
  t.number("apollo_scale", 32.0)
      .implemented("APOLLO: steps are multiplied with its root",
                   TROUPE_FIELD(optimizer.apollo_scale))
      .at_least(0)
      .only_where(uses_apollo, apollo_only);
  t.choice("apollo_proj", "random", "random|svd")
      .implemented("APOLLO: what projections are made of", TROUPE_FIELD(optimizer.apollo_proj))
      .only_where(uses_apollo, apollo_only);
  t.choice("apollo_proj_type", "std", "std|right|left")
      .implemented("APOLLO: which side of a matrix is projected",
                   TROUPE_FIELD(optimizer.apollo_proj_type))
      .refuses("right|left", "rows or columns are scaled along the side that std leaves",
               "use apollo_proj_type: std")
      .only_where(uses_apollo, apollo_only);
  t.choice("apollo_scale_type", "channel", "channel|tensor")
      .implemented("APOLLO: a factor for each row or column, or for the tensor",
                   TROUPE_FIELD(optimizer.apollo_scale_type))
      .only_where(uses_apollo, apollo_only);
  t.boolean("apollo_layerwise", false)
      .implemented("APOLLO: no clipping and no accumulation, as where each layer is updated alone",
                   TROUPE_FIELD(optimizer.apollo_layerwise))
      .only_where(uses_apollo, apollo_only);
  t.boolean("apollo_scale_front", false)
      .implemented("APOLLO: scale before the growth of steps is limited",
                   TROUPE_FIELD(optimizer.apollo_scale_front))
      .only_where(uses_apollo, apollo_only);
}

void add_block_keys(KeyTable& t) {
  const char* badam_only = "it belongs to use_badam: true";
  t.boolean("use_badam", false)
      .implemented("BAdam: AdamW on one layer at a time", TROUPE_FIELD(optimizer.use_badam));
  t.choice("badam_mode", "layer", "layer|ratio")
      .implemented("BAdam: by layers", TROUPE_FIELD(optimizer.badam_mode))
      .refuses("ratio", "parameters are not updated by shares of a tensor", "use badam_mode: layer")
      .only_where(uses_badam, badam_only);
  t.optional("badam_start_block", ValueType::kInteger)
      .implemented(
          "BAdam: the layer that is trained first (default: the first one, with "
          "descending the last one)",
          TROUPE_FIELD(optimizer.badam_start_block))
      .at_least(0)
      .only_where(uses_badam, badam_only);
  t.choice("badam_switch_mode", "ascending", "ascending|descending|random|fixed")
      .implemented("BAdam: which layer is next", TROUPE_FIELD(optimizer.badam_switch_mode))
      .only_where(uses_badam, badam_only);
  t.integer("badam_switch_interval", 50)
      .implemented("BAdam: steps of a layer; the first one has a step less, −1: one step each",
                   TROUPE_FIELD(optimizer.badam_switch_interval))
      .at_least(-1)
      .only_where(uses_badam, badam_only);
  for (const auto* name : {"badam_update_ratio", "badam_mask_mode"})
    t.optional(name, ValueType::kAny).inert("BAdam: by ratio", "it belongs to badam_mode: ratio");
  t.optional("badam_verbose", ValueType::kAny).inert("BAdam: what it prints", "nothing is printed");
}

}  // namespace

std::string optimizer_choice(const TrainConfig& config) {
  const OptimizerMethodSection& method = config.optimizer;
  // LLaMA-Factory's order.
  if (method.use_galore) return "galore";
  if (method.use_apollo) return "apollo";
  if (config.finetuning.loraplus_lr_ratio) return config.training.optim;
  if (method.use_badam) return "badam";
  if (method.use_adam_mini) return "adam_mini";
  if (method.use_muon) return "muon";
  if (const json::Value* own = config.deepspeed.if_contains("optimizer")) {
    const auto type = json::find_string(*own, "type").value_or("");
    const json::Value* params = json::find(*own, "params");
    const json::Value* decoupled = params ? json::find(*params, "adam_w_mode") : nullptr;
    if (type == "Lion") return "lion_32bit";
    if (type == "Adam" && decoupled && !read_bool(*decoupled).value_or(true)) return "adam";
  }
  return config.training.optim;
}

Result<std::optional<ProjectionSettings>> transformers_projection(const TrainConfig& config) {
  const bool apollo = config.training.optim == "apollo_adamw";
  const OptimizerMethodSection& method = config.optimizer;
  const std::string& optim = config.training.optim;
  if ((optim != "galore_adamw" && !apollo) || optimizer_choice(config) != optim)
    return std::optional<ProjectionSettings>();
  const auto wrong = [](std::string_view key, std::string_view what) {
    return error(Code::kInvalidArgument, "{}", what).with("key", std::string(key));
  };
  ProjectionSettings settings{
      .rank = 128, .scale = apollo ? 1.0 : 0.25, .scales_gradient = apollo, .random = apollo};
  settings.target.clear();
  for (std::string word : method.optim_target_modules) {
    if (word == "all-linear" || word == "all_linear") word = "_proj lm_head";
    // A name with anything before and behind it.
    if (word.starts_with(".*")) word.erase(0, word.starts_with(".*.") ? 3 : 2);
    if (word.ends_with(".*")) word.erase(word.size() - 2);
    if (word.empty() || word.find_first_of("*+?[](){}|^$\\") != word.npos)
      return wrong("optim_target_modules",
                   "expected words of the names of linear layers (.*WORD.*), or all-linear");
    settings.target += (settings.target.empty() ? "" : " ") + word;
  }
  if (settings.target.empty())
    return wrong("optim_target_modules",
                 fmt::format("You need to define `optim_target_modules` to use {} optimizers",
                             config.training.optim));
  for (const std::string& part : split_words(method.optim_args, ',')) {
    const auto equals = part.find('=');
    const std::string key(trim(part.substr(0, equals)));
    const std::string value(equals == part.npos ? ""
                                                : trim(std::string_view(part).substr(equals + 1)));
    const auto number = read_number(json::Value(value));
    const bool positive = number.ok() && *number > 0;
    const bool whole = positive && *number < 1e9 && *number == std::floor(*number);
    const auto is = [&](std::string_view one, std::string_view other) {
      return value == one || value == other;
    };
    bool good = false;
    if (key == "rank" && (good = whole)) settings.rank = static_cast<std::int64_t>(*number);
    if (key == "update_proj_gap" && (good = whole))
      settings.interval = static_cast<std::int64_t>(*number);
    if (key == "scale" && (good = positive)) settings.scale = *number;
    if (key == "proj_type" && !apollo)
      for (const char* type : {"std", "reverse_std", "right", "left", "full"})
        if (value == type) settings.type = type, good = true;
    if (key == "proj_type" && apollo) good = value == "std";
    if (key == "proj" && apollo && (good = is("random", "svd")))
      settings.random = value == "random";
    if (key == "scale_type" && apollo && (good = is("channel", "tensor")))
      settings.by_tensor = value == "tensor";
    if (!good)
      return wrong("optim_args", fmt::format("'{}' is no argument of {} here", trim(part),
                                             config.training.optim));
  }
  return std::optional(settings);
}

bool updates_layerwise(const TrainConfig& config) {
  const OptimizerMethodSection& method = config.optimizer;
  return (method.use_galore && method.galore_layerwise) ||
         (method.use_apollo && method.apollo_layerwise);
}

void add_optimizer_method_keys(KeyTable& t) {
  add_projection_keys(t);
  add_block_keys(t);
  t.boolean("use_adam_mini", false)
      .implemented("Adam-mini: a second moment for each head, row or tensor",
                   TROUPE_FIELD(optimizer.use_adam_mini));
  t.boolean("use_muon", false)
      .implemented("Muon for matrices within layers, AdamW for the rest",
                   TROUPE_FIELD(optimizer.use_muon));

  t.boolean("use_swanlab", false).inert("log to SwanLab", kOwnLog).said();
  for (const auto* name : {"swanlab_project", "swanlab_workspace", "swanlab_run_name",
                           "swanlab_mode", "swanlab_logdir", "swanlab_lark_webhook_url"}) {
    t.optional(name, ValueType::kText).inert("SwanLab", "no effect without use_swanlab");
  }
  for (const auto* name : {"swanlab_api_key", "swanlab_lark_secret"}) {
    t.optional(name, ValueType::kText).inert("SwanLab", "no effect without use_swanlab").secret();
  }

  const char* reason = "tensor, pipeline and context parallelism come later";
  t.boolean("use_mca", false).refused("Megatron core", reason, "leave use_mca out");
  for (const auto* name :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
        "context_parallel_size", "virtual_pipeline_model_parallel_size"}) {
    t.integer(name, 1)
        .refused("Megatron: parallel size", reason, "use 1 and more workers")
        .at_least(1);
  }
  for (const auto* name : {"sequence_parallel", "use_distributed_optimizer", "overlap_param_gather",
                           "overlap_grad_reduce", "bias_activation_fusion", "apply_rope_fusion",
                           "moe_grouped_gemm", "recompute_granularity", "moe_token_dispatcher_type",
                           "moe_router_dtype", "use_packed_sequences", "transformer_impl"}) {
    t.optional(name, ValueType::kAny).refused("Megatron: setting", reason, "leave the key out");
  }
}

}  // namespace troupe::train
