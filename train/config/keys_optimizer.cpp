// Keys of LLaMA-Factory's special optimizers, its loggers, and Megatron's parallelism.
#include "train/config/foreign_keys.h"
#include "train/config/key_builder.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train {
namespace {

constexpr const char* kUseAdamW = "use optim: adamw_torch and leave the key out";

std::string reason() { return "the optimizers here are " + optimizer_names(); }

void refuse(KeyTable& t, const char* family, std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    t.optional(name, ValueType::kAny)
        .refused(fmt::format("{}: setting", family), reason(), kUseAdamW);
  }
}

void add_switch(KeyTable& t, const char* name, const char* family) {
  t.boolean(name, false).refused(fmt::format("{} optimizer", family), reason(), kUseAdamW);
}

}  // namespace

void add_optimizer_method_keys(KeyTable& t) {
  add_switch(t, "use_galore", "GaLore");
  refuse(t, "GaLore",
         {"galore_target", "galore_rank", "galore_update_interval", "galore_scale",
          "galore_proj_type", "galore_layerwise"});
  add_switch(t, "use_apollo", "APOLLO");
  refuse(t, "APOLLO",
         {"apollo_target", "apollo_rank", "apollo_update_interval", "apollo_scale", "apollo_proj",
          "apollo_proj_type", "apollo_scale_type", "apollo_layerwise", "apollo_scale_front"});
  add_switch(t, "use_badam", "BAdam");
  refuse(t, "BAdam",
         {"badam_mode", "badam_start_block", "badam_switch_mode", "badam_switch_interval",
          "badam_update_ratio", "badam_mask_mode", "badam_verbose"});
  add_switch(t, "use_adam_mini", "Adam-mini");
  add_switch(t, "use_muon", "Muon");

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
