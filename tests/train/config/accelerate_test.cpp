// accelerate's launch files and variables.

#include "train/config/accelerate.h"

#include <random>

#include "tests/train/config/load_helpers.h"

namespace troupe::train {
namespace {

using namespace tests;

// A run with an accelerate file of these lines.
Result<LoadedConfig> with_file(std::string file, std::string_view lines = "",
                               std::vector<std::string> arguments = {}, Variables variables = {},
                               std::map<std::string, std::string> more = {}) {
  more["a/acc.yaml"] = std::move(file);
  arguments.insert(arguments.begin(), "troupe.accelerate_config=a/acc.yaml");
  return load_with(lines, std::move(arguments), std::move(variables), std::move(more));
}

std::string refused_file(std::string file, std::string_view lines = "", Variables variables = {}) {
  return refusal(with_file(std::move(file), lines, {}, std::move(variables)));
}

constexpr const char* kFsdp = R"(distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: false
)";

TEST_CASE("a text that is a mapping is what a file would hold") {
  const auto loaded = accepted(load_with(
      "", {R"(troupe.accelerate_config="{\"distributed_type\":\"FSDP\",\"num_processes\":4}")"}));
  CHECK(loaded.world_size.value == 4);
  CHECK(loaded.world_size.from == "troupe.accelerate_config.num_processes");
  CHECK(loaded.config.sharding.strategy == "zero3");
  CHECK(contains(refusal(load_with("", {R"(troupe.accelerate_config="{\"debug\":true}")"})),
                 "A `distributed_type` must be specified"));
}

TEST_CASE("names that are not accelerate's, and machines that are another's") {
  const auto text = refused_file("distributed_type: NO\nnum_procesess: 2\nzebra: 1\n");
  CHECK(contains(text,
                 "The config file at a/acc.yaml had unknown keys (['num_procesess', 'zebra']), "
                 "please try upgrading your `accelerate` version or fix (and potentially remove) "
                 "these keys from your config file; did you mean 'num_processes'?"));
  CHECK(contains(refused_file("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n"
                              "iam_role_name: x\n"),
                 "troupe.accelerate_config.compute_environment=AMAZON_SAGEMAKER is not supported"));
  CHECK(contains(refused_file("distributed_type: MULTI_CPU\nnum_processes: 2\n"
                              "mpirun_config: {mpirun_hostfile: /h}\n"),
                 "troupe.accelerate_config.mpirun_config"));
  CHECK(accepted(with_file("distributed_type: NO\nmpirun_config: {}\n")).world_size.value == 1);
}

TEST_CASE("a file gives strategy, precision and size") {
  const auto loaded = accepted(with_file(kFsdp));
  CHECK(loaded.config.sharding.strategy == "shard_grad_op");
  CHECK(loaded.config.model.compute == Precision::kBfloat16);
  // A deviation: accelerate reduces in bf16.
  CHECK(loaded.config.model.reduce == Precision::kFloat32);
  REQUIRE(loaded.warnings.size() == 1);
  CHECK(contains(loaded.warnings[0], "troupe.reduce_dtype=bfloat16"));
  CHECK(loaded.world_size.value == 4);
  CHECK(loaded.world_size.from == "troupe.accelerate_config.num_processes");
  CHECK(loaded.config.launch.accelerate_config == "a/acc.yaml");
  CHECK(accepted(with_file(kFsdp, "", {"troupe.workers=3"})).world_size.value == 3);
  CHECK(accepted(with_file(kFsdp, "bf16: true")).config.model.compute == Precision::kBfloat16);
  CHECK(accepted(with_file("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: no"))
            .config.model.compute == Precision::kFloat32);
  CHECK(accepted(with_file("distributed_type: NO\n")).world_size.value == 1);
  CHECK(accepted(with_file("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}"))
            .config.sharding.strategy == "zero3");
  CHECK(accepted(with_file("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, "
                           "fsdp_reshard_after_forward: false, fsdp_sharding_strategy: 2}"))
            .config.sharding.strategy == "shard_grad_op");
  const auto plain =
      accepted(with_file("distributed_type: MULTI_CPU\nmixed_precision: 'no'", "bf16: true"));
  CHECK(plain.config.model.compute == Precision::kBfloat16);
  CHECK(contains(plain.warnings.at(0), "bf16=true counts"));
}

TEST_CASE("several machines") {
  const char* file = R"(distributed_type: MULTI_GPU
machine_rank: 1
main_process_ip: 192.168.0.1
main_process_port: 29500
num_machines: 2
num_processes: 16
)";
  const auto launch = accepted(with_file(file)).launch;
  CHECK(launch.node_count() == 2);
  CHECK(launch.node_rank == 1);
  CHECK(launch.nproc_per_node == 8);
  CHECK(launch.master_addr == "192.168.0.1");
  CHECK(launch.master_port == 29500);
  CHECK(accepted(with_file(file, "", {}, {{"NNODES", "2"}, {"NODE_RANK", "1"}})).launch.node_rank ==
        1);
  CHECK(contains(refused_file(file, "", {{"NNODES", "4"}, {"NODE_RANK", "1"}}),
                 "troupe.accelerate_config.num_machines=2 and NNODES=4 disagree about the launch"));
  CHECK(
      contains(refused_file(file, "", {{"MASTER_PORT", "1234"}}), "and MASTER_PORT=1234 disagree"));
  CHECK(
      contains(refused_file(file, "", {{"NPROC_PER_NODE", "3"}}), "and NPROC_PER_NODE=3 disagree"));
  CHECK(contains(refused_file(file, "ray_num_workers: 2"),
                 "ray_num_workers=2 and troupe.accelerate_config.num_processes=16 disagree"));
  CHECK(contains(refused_file("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 3"),
                 "3 processes on 2 machines"));
  CHECK(contains(refused_file("distributed_type: MULTI_GPU\nnum_machines: 2\nmachine_rank: 2"),
                 "2 is not below troupe.accelerate_config.num_machines"));
  // machine_rank: 0 stands in every file; NODE_RANK says which machine this is.
  CHECK(accepted(with_file("distributed_type: MULTI_GPU\nnum_processes: 4\nmachine_rank: 0", "", {},
                           {{"NNODES", "2"}, {"NODE_RANK", "1"}}))
            .launch.node_rank == 1);
}

TEST_CASE("DeepSpeed by a file") {
  const auto stage = accepted(with_file(R"(distributed_type: DEEPSPEED
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: auto
  gradient_clipping: 0.5
  offload_optimizer_device: none
  zero3_init_flag: true
)"));
  CHECK(stage.config.sharding.strategy == "zero3");
  CHECK(stage.config.training.max_grad_norm == 0.5);
  CHECK(stage.config.training.gradient_accumulation_steps == 4);
  CHECK(stage.config.sharding.param_persistence_threshold == 100'000);
  CHECK(json::write(*stage.config.deepspeed.if_contains("gradient_clipping")) == "5E-1");
  CHECK(accepted(with_file("distributed_type: DEEPSPEED")).config.sharding.strategy == "zero2");
  const auto named = accepted(
      with_file("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: d.json}",
                "", {}, {}, {{"a/d.json", R"({"train_micro_batch_size_per_gpu": "auto",
                        "gradient_accumulation_steps": "auto",
                        "zero_optimization": {"stage": 1}})"}}));
  CHECK(named.config.sharding.strategy == "zero1");
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, "
                              "gradient_accumulation_steps: 1}"),
                 "troupe.accelerate_config.deepspeed_config.gradient_accumulation_steps=1 and "
                 "gradient_accumulation_steps=4 disagree about gradient_accumulation_steps"));
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, "
                              "deepspeed_config_file: d.json}"),
                 "zero_stage is not read where"));
  const auto offloaded =
      accepted(with_file("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, "
                         "offload_optimizer_device: cpu, offload_param_device: cpu}"));
  CHECK(offloaded.config.sharding.offload == OffloadChoice::kParameters);
  CHECK(contains(offloaded.resolved_from.at("troupe.offload"),
                 "deepspeed_config.offload_param_device"));
  CHECK(accepted(with_file("distributed_type: DEEPSPEED\ndeepspeed_config: "
                           "{offload_optimizer_device: cpu, offload_param_device: none}"))
            .config.sharding.offload == OffloadChoice::kOptimizer);
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: "
                              "{offload_optimizer_device: nvme}"),
                 "deepspeed_config.offload_optimizer_device=nvme is not supported: nothing is "
                 "offloaded to a disk"));
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: "
                              "{offload_optimizer_device: cpu, deepspeed_config_file: d.json}"),
                 "offload_optimizer_device is not read where"));
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 4}"),
                 "4 is not between 0 and 3"));
  CHECK(contains(refused_file("distributed_type: DEEPSPEED\ndeepspeed_config: "
                              "{deepspeed_config_file: none.json}"),
                 "none.json"));
}

TEST_CASE("what a file asks for in vain is refused_file by name") {
  CHECK(contains(refused_file("distributed_type: MULTI_GPU\nmixed_precision: fp8"),
                 "fp8: true in the run's own file"));
  CHECK(contains(refused_file("distributed_type: MULTI_GPU\nmixed_precision: bf61"),
                 "no valid value"));
  CHECK(contains(refused_file("distributed_type: MULTI_XPU"), "distributed_type=MULTI_XPU is not"));
  CHECK(contains(refused_file("distributed_type: MULTI"), "one of NO, MULTI_GPU"));
  CHECK(contains(refused_file("num_processes: 2"), "A `distributed_type` must be specified"));
  CHECK(contains(refused_file("distributed_type: NO\ncompute_environment: AMAZON_SAGEMAKER"),
                 "compute_environment=AMAZON_SAGEMAKER is not supported"));
  CHECK(contains(refused_file("distributed_type: NO\nnum_proceses: 2"),
                 "did you mean 'num_processes'?"));
  CHECK(contains(refused_file("distributed_type: NO\nmegatron_lm_config: {a: 1}"), "Megatron"));
  CHECK(accepted(with_file("distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}"))
            .config.sharding.offload == OffloadChoice::kParameters);
  CHECK(contains(refused_file("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, "
                              "fsdp_sharding_strategy: NO_SHARD}"),
                 "belongs to FSDP1"));
  CHECK(contains(refused_file("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, "
                              "fsdp_reshard_after_forward: false}"),
                 "belongs to FSDP2"));
  CHECK(contains(refused_file("distributed_type: FSDP\nparallelism_config: "
                              "{parallelism_config_tp_size: 2}"),
                 "parallelism_config_tp_size=2 is not supported: tensor parallelism"));
  CHECK(contains(refused_file("- 1"), "acc.yaml:1: the file must hold settings"));
  CHECK(contains(refusal(load_with("troupe: {accelerate_config: none.yaml}")), "none.yaml"));
  const auto other = accepted(
      with_file("distributed_type: NO\ndeepspeed_config: {deepspeed_config_file: passed/over}\n"
                "fsdp_config: {fsdp_offload_params: true}"));
  CHECK(other.config.sharding.strategy == "ddp");
  CHECK(other.warnings.size() == 2);
}

TEST_CASE("the variables of accelerate's launcher") {
  // As utils/launch.py writes them for FSDP2.
  const Variables fsdp = {{"ACCELERATE_USE_FSDP", "true"},
                          {"ACCELERATE_MIXED_PRECISION", "bf16"},
                          {"FSDP_VERSION", "2"},
                          {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
                          {"FSDP_RESHARD_AFTER_FORWARD", "false"},
                          {"FSDP_OFFLOAD_PARAMS", "false"},
                          {"FSDP_MIN_NUM_PARAMS", "100000000"},
                          {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                          {"FSDP_BACKWARD_PREFETCH", "None"},
                          {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"},
                          {"FSDP_FORWARD_PREFETCH", "false"},
                          {"FSDP_USE_ORIG_PARAMS", "true"},
                          {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
                          {"FSDP_SYNC_MODULE_STATES", "true"},
                          {"FSDP_ACTIVATION_CHECKPOINTING", "true"}};
  const auto loaded = accepted(load_with("", {}, fsdp));
  CHECK(loaded.config.sharding.strategy == "shard_grad_op");
  CHECK(loaded.config.model.compute == Precision::kBfloat16);
  CHECK(loaded.config.training.checkpoint_format == CheckpointFormat::kSharded);
  auto first = fsdp;
  first["FSDP_VERSION"] = "1";
  CHECK(accepted(load_with("", {}, first)).config.sharding.strategy == "zero3");
  first["FSDP_OFFLOAD_PARAMS"] = "true";
  CHECK(accepted(load_with("", {}, first)).config.sharding.offload == OffloadChoice::kParameters);

  const Variables deepspeed = {{"ACCELERATE_USE_DEEPSPEED", "true"},
                               {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                               {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                               {"ACCELERATE_GRADIENT_CLIPPING", "0.3"},
                               {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"},
                               {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}};
  const auto zero = accepted(load_with("", {}, deepspeed));
  CHECK(zero.config.sharding.strategy == "zero3");
  CHECK(zero.config.training.max_grad_norm == 0.3);
  auto offload = deepspeed;
  offload["ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"] = "cpu";
  CHECK(accepted(load_with("", {}, offload)).config.sharding.offload == OffloadChoice::kParameters);
  offload["ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"] = "nvme";
  CHECK(contains(refusal(load_with("", {}, offload)),
                 "environment ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE=nvme is not supported"));
  CHECK(accepted(load_with("", {},
                           {{"ACCELERATE_USE_DEEPSPEED", "true"},
                            {"ACCELERATE_DEEPSPEED_CONFIG_FILE", "d.json"}},
                           {{"d.json", R"({"train_batch_size": "auto",
                                          "gradient_accumulation_steps": "auto"})"}}))
            .config.sharding.strategy == "ddp");
  CHECK(contains(refusal(load_with("", {}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}})),
                 "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2 and gradient_accumulation_steps=4 "
                 "disagree"));
  CHECK(accepted(load_with("bf16: false", {}, {{"ACCELERATE_MIXED_PRECISION", "fp16"}}))
            .config.model.compute == Precision::kFloat16);
  CHECK(contains(refusal(load_with("fp16: false", {}, {{"ACCELERATE_MIXED_PRECISION", "fp16"}})),
                 "fp16=false (fp32) and ACCELERATE_MIXED_PRECISION=fp16 disagree"));
  CHECK(contains(refusal(load_with("bf16: true", {}, {{"ACCELERATE_MIXED_PRECISION", "fp16"}})),
                 "disagree about the precision"));
  CHECK(contains(refusal(load_with("", {}, {{"ACCELERATE_MIXED_PRECISION", "fp17"}})),
                 "ACCELERATE_MIXED_PRECISION=fp17: no valid value"));
  CHECK(contains(refusal(load_with("bf16: false", {}, {{"ACCELERATE_MIXED_PRECISION", "bf16"}})),
                 "bf16=false (fp32) and ACCELERATE_MIXED_PRECISION=bf16 disagree about the "
                 "precision"));
  CHECK(contains(refusal(load_with("", {}, {{"ACCELERATE_USE_MEGATRON_LM", "true"}})), "Megatron"));
  CHECK(contains(
      refusal(load_with("", {}, {{"ACCELERATE_USE_FSDP", "1"}, {"ACCELERATE_USE_DEEPSPEED", "1"}})),
      "both on"));
}

TEST_CASE("the axes of the environment") {
  const auto with = [](Variables variables, std::vector<std::string> arguments) {
    return load_with("", std::move(arguments), std::move(variables));
  };
  const auto mesh = accepted(with({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                                   {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"},
                                   {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"},
                                   {"PARALLELISM_CONFIG_TP_SIZE", "1"}},
                                  {"troupe.workers=8"}));
  CHECK(mesh.config.sharding.strategy == "hsdp");
  CHECK(mesh.config.sharding.mesh_replicate == 2);
  CHECK(mesh.config.sharding.mesh_shard == 4);
  for (const auto* axis : {"TP", "CP", "SP", "PP", "EP"}) {
    const auto name = fmt::format("PARALLELISM_CONFIG_{}_SIZE", axis);
    CHECK(contains(refusal(with({{name, "2"}}, {})),
                   fmt::format("environment {}=2 is not supported: ", name)));
  }
  CHECK(contains(refusal(with({{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "x"}}, {})), "no size"));
  CHECK(contains(refusal(with({{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}}, {"troupe.workers=4"})),
                 "PARALLELISM_CONFIG_DP_SHARD_SIZE=1,2 has 2 places, the run has 4 trainers "
                 "(troupe.workers)"));
}

TEST_CASE("damaged files never crash") {
  std::mt19937 random(7);
  const std::string bytes = "\n\t :[]{}\"'&*!|>#,-?0x1e.~<";
  for (int round = 0; round < 1500; ++round) {
    std::string text = kFsdp;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      text[random() % text.size()] = bytes[random() % bytes.size()];
    }
    const auto loaded = with_file(text);
    if (!loaded.ok()) CHECK_FALSE(loaded.status().message().empty());
  }
}

}  // namespace
}  // namespace troupe::train
