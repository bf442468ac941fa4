// The keys of accelerate's file. Names: accelerate's ClusterConfig and the questions of
// `accelerate config`.
#include "runtime/base/text.h"
#include "train/config/accelerate.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

ForeignKeys::Condition of_distributed_type(const char* type) {
  return [type](const json::Object& document) {
    const auto* given = document.if_contains("distributed_type");
    return given && upper_case(value_text(*given)) == type;
  };
}
// Whether what is offloaded is sharded so: accelerate's default is stage 2.
ForeignKeys::Condition of_zero_stage(std::int64_t least) {
  return [least](const json::Object& document) {
    const auto* section = document.if_contains("deepspeed_config");
    const auto* file = section ? json::find(*section, "deepspeed_config_file") : nullptr;
    if (file && !file->is_null()) return true;  // they do not go together, which is said there
    const auto* stage = section ? json::find(*section, "zero_stage") : nullptr;
    return (stage ? read_integer(*stage).value_or(2) : 2) >= least;
  };
}

ForeignKeys build_accelerate_keys() {
  constexpr const char* kNoTpu = "no TPU is used";
  ForeignKeys t;
  t.refused("compute_environment", "local_machine",
            "training runs on machines of one's own; use LOCAL_MACHINE")
      .used("distributed_type", "which of the sections below counts")
      .used("mixed_precision",
            "bf16 computes in bf16; gradients are reduced in fp32 unless "
            "troupe.reduce_dtype says otherwise")
      .used("num_processes", "trainers, unless troupe.workers is given")
      .used("num_machines", "machines of the run (NNODES)")
      .used("machine_rank", "this machine (NODE_RANK)")
      .used("main_process_ip", "address of machine 0 (MASTER_ADDR)")
      .used("main_process_port", "port of machine 0 (MASTER_PORT)")
      .inert("rdzv_backend|same_network|main_training_function|enable_cpu_affinity|debug",
             "trainers are started and brought together by Troupe")
      .one_of("rdzv_backend", "static|c10d|etcd|etcd-v2")
      .used("use_cpu", "true: trainers compute on CPUs (troupe.device=cpu)")
      .used("gpu_ids", "the GPUs of this machine that trainers may use; all: every one")
      .refused("mpirun_config", "",
               "ranks are placed without MPI; leave it out, and give the command on each machine, "
               "or its hostfile to troupe run --hostfile")
      .open("dynamo_config|ipex_config", "the model is compiled code already")
      .inert("dynamo_backend", "the model is compiled code already")
      .open("fp8_config", "no effect unless mixed_precision is fp8")
      .inert("downcast_bf16|tpu_env|tpu_vm|tpu_name|tpu_zone|command_file|commands", kNoTpu)
      .refused("tpu_use_cluster|tpu_use_sudo", "false", "no TPU is used; use false")
      .used("fp16", "mixed_precision: fp16, as older files say it")
      .refused("megatron_lm_config", "", "Megatron is another runtime; leave it out")
      .open("fsdp_config", "read by its own table")
      .section("deepspeed_config|parallelism_config")
      .only_where("fsdp_config", of_distributed_type("FSDP"),
                  "it belongs to distributed_type: FSDP")
      .only_where("deepspeed_config", of_distributed_type("DEEPSPEED"),
                  "it belongs to distributed_type: DEEPSPEED")
      .used("deepspeed_config.deepspeed_config_file|deepspeed_config.zero_stage",
            "what is sharded over the trainers")
      .used("deepspeed_config.gradient_accumulation_steps",
            "micro-batches of a step, where the training configuration does not say")
      .used("deepspeed_config.gradient_clipping",
            "global norm that gradients are clipped to, where max_grad_norm is not given")
      .inert("deepspeed_config.zero3_init_flag", "every trainer maps the files of the model")
      .inert("deepspeed_config.zero3_save_16bit_model", "the weights are always saved whole")
      .inert("deepspeed_config.deepspeed_multinode_launcher|deepspeed_config.deepspeed_hostfile",
             "trainers are started by Troupe; give the command on each machine")
      .inert(
          "deepspeed_config.offload_optimizer_nvme_path|"
          "deepspeed_config.offload_param_nvme_path",
          "nothing is offloaded to a disk; no effect with device cpu or none")
      .used("deepspeed_config.offload_optimizer_device|deepspeed_config.offload_param_device",
            "optimizer state, and with ZeRO-3 parameters, in the host's memory (troupe.offload)")
      .only_where("deepspeed_config.offload_optimizer_device", of_zero_stage(1),
                  "optimizer state is offloaded with ZeRO stages 1, 2 and 3")
      .only_where("deepspeed_config.offload_param_device", of_zero_stage(3),
                  "parameters are offloaded with ZeRO stage 3")
      .refused(
          "deepspeed_config.deepspeed_exclusion_filter|"
          "deepspeed_config.deepspeed_inclusion_filter",
          "none", "give the command on the machines that are meant; leave it out")
      .refused("deepspeed_config.deepspeed_moe_layer_cls_names", "none",
               "mixtures of experts are not supported; leave it out")
      .used(
          "parallelism_config.parallelism_config_dp_replicate_size|"
          "parallelism_config.parallelism_config_dp_shard_size",
          "the mesh (troupe.mesh)")
      .refused("parallelism_config.parallelism_config_tp_size", "1",
               "tensor parallelism comes later; use 1 and more trainers on dp_shard")
      .refused("parallelism_config.parallelism_config_cp_size", "1",
               "context parallelism comes later; use 1 and more trainers on dp_shard")
      .refused("parallelism_config.parallelism_config_sp_size", "1",
               "sequence parallelism comes later; use 1 and more trainers on dp_shard")
      .inert(
          "parallelism_config.parallelism_config_cp_backend|"
          "parallelism_config.parallelism_config_cp_comm_strategy|"
          "parallelism_config.parallelism_config_sp_backend|"
          "parallelism_config.parallelism_config_sp_seq_length|"
          "parallelism_config.parallelism_config_sp_seq_length_is_variable|"
          "parallelism_config.parallelism_config_sp_attn_implementation",
          "no effect without context or sequence parallelism")
      .typed(ValueType::kBool,
             "same_network|enable_cpu_affinity|debug|use_cpu|downcast_bf16|"
             "deepspeed_config.zero3_init_flag|deepspeed_config.zero3_save_16bit_model")
      .typed(ValueType::kText,
             "rdzv_backend|main_training_function|dynamo_backend|main_process_ip|tpu_name|"
             "tpu_zone|deepspeed_config.deepspeed_config_file|"
             "deepspeed_config.deepspeed_multinode_launcher|deepspeed_config.deepspeed_hostfile|"
             "deepspeed_config.offload_optimizer_nvme_path|"
             "deepspeed_config.offload_param_nvme_path");
  return t;
}

}  // namespace

const ForeignKeys& accelerate_keys() {
  static const ForeignKeys table = build_accelerate_keys();
  return table;
}

}  // namespace troupe::train
