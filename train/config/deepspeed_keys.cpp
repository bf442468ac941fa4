#include "train/config/deepspeed_keys.h"

#include "runtime/base/text.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr const char* kBatch = "sequences of a step";
constexpr const char* kBuckets =
    "gradients and parameters move unit by unit; buckets and overlap do not change the results";
constexpr const char* kOtherAlgorithm = "gradients are summed unscaled in fp32; leave it out";
constexpr const char* kQuantised = "nothing is quantised on its way; use false";

// "a|b" → "zero_optimization.a|zero_optimization.b"
std::string zero(std::string_view names) {
  std::string out;
  for (const auto& name : split_words(names))
    out += (out.empty() ? "zero_optimization." : "|zero_optimization.") + name;
  return out;
}

// A stage that is wrong is said by its reader.
ForeignKeys::Condition from_stage(std::int64_t least) {
  return [least](const json::Object& config) {
    const auto* section = config.if_contains("zero_optimization");
    const auto* stage = section ? json::find(*section, "stage") : nullptr;
    return (stage ? read_integer(*stage).value_or(0) : 0) >= least;
  };
}

void add_batch_keys(ForeignKeys& t) {
  t.used("train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps", kBatch)
      .used("gradient_clipping",
            "global norm that gradients are clipped to; agrees with "
            "max_grad_norm")
      .section("optimizer|optimizer.params")
      .used("optimizer.type", "Adam, AdamW or Lion")
      .used(
          "optimizer.params.lr|optimizer.params.betas|optimizer.params.eps|"
          "optimizer.params.weight_decay",
          "agrees with the training configuration")
      .used("optimizer.params.adam_w_mode", "decoupled weight decay, or in the gradient")
      .inert("optimizer.params.torch_adam", "there is one implementation of Adam")
      .section("scheduler")
      .open("scheduler.params", "the schedule's own, checked with it")
      .used("scheduler.type", "the schedule, in place of lr_scheduler_type");
}

void add_zero_keys(ForeignKeys& t) {
  t.section("zero_optimization")
      .used(zero("stage"), "what is sharded over the trainers")
      .used(zero("stage3_max_live_parameters|max_live_parameters"),
            "gathered parameters at a time, in elements")
      .used(zero("stage3_max_reuse_distance|max_reuse_distance"),
            "a unit used again within so many elements stays gathered")
      .used(zero("stage3_prefetch_bucket_size|prefetch_bucket_size"), "elements gathered ahead")
      .used(zero("stage3_param_persistence_threshold|param_persistence_threshold"),
            "units up to so many elements stay gathered")
      .only_where(zero("stage3_max_live_parameters|max_live_parameters|"
                       "stage3_max_reuse_distance|max_reuse_distance|"
                       "stage3_prefetch_bucket_size|prefetch_bucket_size|"
                       "stage3_param_persistence_threshold|param_persistence_threshold"),
                  from_stage(3), "parameters are gathered with ZeRO stage 3")
      .inert(zero("stage3_model_persistence_threshold|model_persistence_threshold"),
             "what stays gathered does not change the results; max_live_parameters limits it")
      .inert(zero("contiguous_gradients|reduce_scatter|allgather_partitions|reduce_bucket_size|"
                  "allgather_bucket_size|overlap_comm|round_robin_gradients|"
                  "use_multi_rank_bucket_allreduce|stage3_use_all_reduce_for_fetch_params|"
                  "stage3_module_granularity_threshold|module_granularity_threshold|"
                  "use_all_reduce_for_fetch_params|log_trace_cache_warnings"),
             kBuckets)
      .inert(zero("sub_group_size"), "the update runs tile by tile; the results are the same")
      .inert(zero("stage3_gather_16bit_weights_on_model_save|"
                  "stage3_gather_fp16_weights_on_model_save|gather_16bit_weights_on_model_save"),
             "the weights are always saved whole")
      .inert(zero("ignore_unused_parameters|load_from_fp32_weights|elastic_checkpoint|"
                  "pipeline_loading_checkpoint|memory_efficient_linear"),
             "how DeepSpeed loads and computes; the results are the same")
      .section(zero("offload_optimizer|offload_param"))
      .used(zero("offload_optimizer.device|cpu_offload"),
            "optimizer state in the host's memory, updated there (troupe.offload)")
      .used(zero("offload_param.device|cpu_offload_params|cpu_offload_param"),
            "sharded parameters in the host's memory (troupe.offload)")
      .one_of(zero("offload_optimizer.device"), "none|cpu|nvme")
      .one_of(zero("offload_param.device"), "none|cpu|nvme")
      .only_where(zero("offload_optimizer.device|cpu_offload"), from_stage(1),
                  "optimizer state is offloaded with ZeRO stages 1, 2 and 3")
      .only_where(zero("offload_param.device|cpu_offload_params|cpu_offload_param"), from_stage(3),
                  "parameters are offloaded with ZeRO stage 3")
      .inert(zero("offload_optimizer.pin_memory|offload_param.pin_memory|"
                  "cpu_offload_use_pin_memory"),
             "what is copied is always pinned")
      .inert(zero("offload_optimizer.nvme_path|offload_param.nvme_path|"
                  "offload_optimizer.buffer_count|offload_param.buffer_count|"
                  "offload_param.buffer_size|offload_param.max_in_cpu|offload_optimizer.fast_init"),
             "DeepSpeed's own of offload to a disk; no effect with device cpu or none")
      .inert(zero("offload_optimizer.pipeline_read|offload_optimizer.pipeline_write|"
                  "offload_optimizer.pipeline"),
             "gradients, updates and parameters always overlap piece by piece")
      .inert(zero("offload_optimizer.ratio"),
             "all of the optimizer state is offloaded; the results are the same")
      .refused(zero("zero_quantized_weights|zero_quantized_gradients|"
                    "zero_quantized_nontrainable_weights"),
               "false", kQuantised)
      .refused(zero("zero_hpz_partition_size"), "1",
               "secondary shards come later; use 1, or troupe.strategy=hsdp for shards within "
               "groups")
      .refused(zero("mics_shard_size"), "-1|0",
               "use troupe.strategy=hsdp with troupe.mesh=REPLICATE,SHARD for shards within groups")
      .refused(zero("mics_hierarchical_params_gather"), "false", "leave it out")
      .refused(zero("legacy_stage1"), "false", "there is one ZeRO-1; leave it out");
  for (const char* name : {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                           "param_persistence_threshold", "model_persistence_threshold",
                           "module_granularity_threshold", "use_all_reduce_for_fetch_params"})
    t.same(zero(fmt::format("stage3_{}|{}", name, name)));
  t.same(zero("stage3_gather_16bit_weights_on_model_save|"
              "stage3_gather_fp16_weights_on_model_save|gather_16bit_weights_on_model_save"))
      .same(zero("cpu_offload_param|cpu_offload_params"));
}

// DeepSpeed checks the types of keys whose values have no effect, too.
void add_deepspeed_types(ForeignKeys& t) {
  t.word_for_default("auto")
      .typed(ValueType::kInteger,
             "train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps")
      .typed(ValueType::kNumber,
             "gradient_clipping|optimizer.params.lr|optimizer.params.eps|"
             "optimizer.params.weight_decay|steps_per_print|fp16.loss_scale|"
             "fp16.loss_scale_window|fp16.initial_scale_power|fp16.hysteresis|fp16.min_loss_scale")
      .typed(ValueType::kText,
             "optimizer.type|scheduler.type|communication_data_type|"
             "seq_parallel_communication_data_type|fp16.opt_level|checkpoint.tag_validation")
      .typed(ValueType::kBool,
             "optimizer.params.adam_w_mode|optimizer.params.torch_adam|bf16.enabled|fp16.enabled|"
             "bf16.check_grad_overflow|bf16.immediate_grad_update|fp16.auto_cast|"
             "fp16.consecutive_hysteresis|fp16.fp16_master_weights_and_grads|"
             "wall_clock_breakdown|dump_state|memory_breakdown|zero_allow_untested_optimizer|"
             "zero_force_ds_cpu_optimizer|disable_allgather|dataloader_drop_last|"
             "tensorboard.enabled|wandb.enabled|csv_monitor.enabled|comet.enabled|"
             "checkpoint.use_node_local_storage|activation_checkpointing.partition_activations|"
             "activation_checkpointing.cpu_checkpointing|"
             "activation_checkpointing.contiguous_memory_optimization|"
             "activation_checkpointing.synchronize_checkpoint_boundary|"
             "activation_checkpointing.profile")
      .typed(ValueType::kInteger, "activation_checkpointing.number_checkpoints")
      .typed(ValueType::kObject, "checkpoint.parallel_write|checkpoint.writer")
      .typed(ValueType::kInteger,
             zero("stage|stage3_max_live_parameters|max_live_parameters|"
                  "stage3_max_reuse_distance|max_reuse_distance|stage3_prefetch_bucket_size|"
                  "prefetch_bucket_size|stage3_param_persistence_threshold|"
                  "param_persistence_threshold|stage3_model_persistence_threshold|"
                  "model_persistence_threshold|reduce_bucket_size|allgather_bucket_size|"
                  "stage3_module_granularity_threshold|module_granularity_threshold|"
                  "sub_group_size|offload_optimizer.buffer_count|offload_param.buffer_count|"
                  "offload_param.buffer_size|offload_param.max_in_cpu"))
      .typed(ValueType::kNumber, zero("offload_optimizer.ratio"))
      .typed(ValueType::kText, zero("offload_optimizer.device|offload_param.device|"
                                    "offload_optimizer.nvme_path|offload_param.nvme_path"))
      .typed(ValueType::kBool,
             zero("contiguous_gradients|reduce_scatter|allgather_partitions|overlap_comm|"
                  "round_robin_gradients|use_multi_rank_bucket_allreduce|"
                  "stage3_use_all_reduce_for_fetch_params|use_all_reduce_for_fetch_params|"
                  "log_trace_cache_warnings|stage3_gather_16bit_weights_on_model_save|"
                  "stage3_gather_fp16_weights_on_model_save|gather_16bit_weights_on_model_save|"
                  "ignore_unused_parameters|load_from_fp32_weights|elastic_checkpoint|"
                  "pipeline_loading_checkpoint|memory_efficient_linear|cpu_offload|"
                  "cpu_offload_params|cpu_offload_param|cpu_offload_use_pin_memory|"
                  "offload_optimizer.pin_memory|offload_param.pin_memory|"
                  "offload_optimizer.fast_init|offload_optimizer.pipeline_read|"
                  "offload_optimizer.pipeline_write|offload_optimizer.pipeline"));
}

void add_precision_keys(ForeignKeys& t) {
  t.section("bf16|fp16|data_types")
      .used("bf16.enabled", "compute in bf16; agrees with bf16")
      .inert("bf16.check_grad_overflow", "gradients are always checked for NaN and Inf")
      .inert("bf16.immediate_grad_update", "when gradients are added does not change the results")
      .refused("bf16.bf16_master_weights_and_grads|bf16.bf16_optimizer_states", "false",
               "use pure_bf16: true for bf16 parameters and optimizer state")
      .used("fp16.enabled", "compute in fp16; agrees with fp16")
      .used("fp16.loss_scale|fp16.initial_scale_power", "the loss scale, or its begin")
      .used(
          "fp16.loss_scale_window|fp16.hysteresis|fp16.consecutive_hysteresis|"
          "fp16.min_loss_scale",
          "how the loss scale follows overflows")
      .inert("fp16.auto_cast|fp16.opt_level", "products alone are in fp16")
      .refused("fp16.fp16_master_weights_and_grads", "false",
               "master weights and gradients are fp32; use false")
      .used("communication_data_type",
            "what gradients travel in between trainers (troupe.reduce_dtype)")
      .one_of("communication_data_type", "fp32|bf16|bfp16|bfloat16|float32|fp16|none")
      .inert("seq_parallel_communication_data_type", "there is no sequence parallelism")
      .refused("data_types.grad_accum_dtype", "fp32|float32|none",
               "gradients are always added in fp32; use fp32")
      .open("amp|fp8|torch_autocast", "the section is off")
      .refused("amp.enabled|fp8.enabled|torch_autocast.enabled", "false",
               "training is in fp32, bf16 or fp16; use bf16: true")
      .refused("prescale_gradients", "false", kOtherAlgorithm)
      .refused("gradient_predivide_factor", "1", kOtherAlgorithm)
      .refused("sparse_gradients", "false", "gradients are dense; leave it out");
}

void add_tool_keys(ForeignKeys& t) {
  t.inert("steps_per_print|wall_clock_breakdown|dump_state|memory_breakdown",
          "DeepSpeed's own log; logging_steps decides")
      .inert(
          "zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|disable_allgather|"
          "dataloader_drop_last",
          "how DeepSpeed does its part; the results are the same")
      .section("checkpoint|activation_checkpointing")
      .inert(
          "checkpoint.tag_validation|checkpoint.use_node_local_storage|"
          "checkpoint.parallel_write|checkpoint.writer",
          "checkpoints are Troupe's own, and always checked")
      .refused("checkpoint.load_universal", "false",
               "checkpoints of Troupe load at any world size already; leave it out")
      .inert(
          "activation_checkpointing.partition_activations|"
          "activation_checkpointing.cpu_checkpointing|"
          "activation_checkpointing.contiguous_memory_optimization|"
          "activation_checkpointing.number_checkpoints|"
          "activation_checkpointing.synchronize_checkpoint_boundary|"
          "activation_checkpointing.profile",
          "troupe.activation_checkpointing decides; the results are the same")
      .open("tensorboard|wandb|csv_monitor|comet|flops_profiler|comms_logger|autotuning|elasticity",
            "the section is off")
      .open("monitor_config|comms_config", "DeepSpeed does not read it either")
      .inert("tensorboard.enabled|wandb.enabled|csv_monitor.enabled|comet.enabled", kOwnLog)
      .said("tensorboard.enabled|wandb.enabled|csv_monitor.enabled|comet.enabled")
      .refused("flops_profiler.enabled|comms_logger.enabled|autotuning.enabled", "false",
               "DeepSpeed's own tools are not there; leave it out")
      .refused("elasticity.enabled", "false", "the size of a run is troupe.workers; leave it out")
      .open("compile", "the model is compiled code already")
      .refused("compile.deepcompile", "false", "the model is compiled code already; leave it out")
      .open("aio", "nothing is offloaded to a disk")
      .open("tensor_parallel", "there is no tensor parallelism")
      .refused("tensor_parallel.autotp_size", "0|1",
               "tensor parallelism comes later; use 1 and more trainers")
      .refused(
          "hybrid_engine|progressive_layer_drop|curriculum_learning|data_efficiency|"
          "compression_training|quantize_training|weight_quantization|eigenvalue|msamp|"
          "zero_optimization.zenflow",
          "", "another method of training; leave it out")
      .refused("nebula", "", "checkpoints are Troupe's own; leave it out")
      .sections_with_switch(
          "hybrid_engine|progressive_layer_drop|curriculum_learning|data_efficiency|"
          "quantize_training|eigenvalue|msamp|nebula")
      .refused("sequence_parallel_size|pipeline", "1|0",
               "pipeline and sequence parallelism come later; leave it out");
}

ForeignKeys build_deepspeed_keys() {
  ForeignKeys table;
  add_batch_keys(table);
  add_zero_keys(table);
  add_precision_keys(table);
  add_tool_keys(table);
  add_deepspeed_types(table);
  return table;
}

}  // namespace

const ForeignKeys& deepspeed_keys() {
  static const ForeignKeys table = build_deepspeed_keys();
  return table;
}

}  // namespace troupe::train
