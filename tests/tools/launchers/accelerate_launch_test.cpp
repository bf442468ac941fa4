// accelerate launch: flags, files, defaults, and the variables that scripts find.

#include "runtime/base/json.h"
#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::accelerate_launch_tests {
namespace {

using namespace tools::tests;

using Variables = std::map<std::string, std::string>;

Words launch(const Words& flags, const Words& script) {
  Words words{"accelerate", "launch"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), script.begin(), script.end());
  return words;
}

Variables dynamo_variables() {
  return {{"ACCELERATE_DYNAMO_BACKEND", "NO"},
          {"ACCELERATE_DYNAMO_MODE", "default"},
          {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
          {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
          {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"}};
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// Reads back the variables that a training is given.
json::Value inline_file(const TroupeCommand& command) {
  const std::string& word = command.words.back();
  constexpr std::string_view kKey = "troupe.accelerate_config=";
  REQUIRE(word.starts_with(kKey));
  const auto quoted = json::parse(std::string_view(word).substr(kKey.size()), "word");
  REQUIRE(quoted.ok());
  REQUIRE(quoted->is_string());
  auto value = json::parse(std::string(quoted->get_string()), "file");
  REQUIRE(value.ok());
  return *value;
}

TEST_CASE("a plain script is one process that is told of no world") {
  LauncherWorld world;
  const std::string script = world.script();
  const auto options = world.ranks(launch({}, {script, "--lr", "1"}));
  CHECK(options.program == Words{"python3", "-u", script, "--lr", "1"});
  CHECK(options.alone);
  CHECK(options.environment ==
        with(dynamo_variables(), {{"ACCELERATE_MIXED_PRECISION", "no"},
                                  {"ACCELERATE_USE_CPU", "False"},
                                  {"KMP_AFFINITY", "granularity=fine,compact,1,0"},
                                  {"KMP_BLOCKTIME", "1"},
                                  {"OMP_NUM_THREADS", "1"}}));
  CHECK(
      world.noticed("The following values were not passed to `accelerate launch` and had defaults "
                    "used instead:\n\t`--num_processes` was set to a value of `0`\n"
                    "\t`--num_machines` was set to a value of `1`\n"
                    "\t`--mixed_precision` was set to a value of `'no'`\n"
                    "\t`--dynamo_backend` was set to a value of `'no'`\nTo avoid this warning"));
  // The same by its other names.
  CHECK(world.ranks({"accelerate-launch", script}).alone);
  CHECK(world.ranks({"python3", "-m", "accelerate.commands.launch", script}).alone);
  CHECK(world.ranks(launch({"-q"}, {script})).alone);
  CHECK(world.notices.empty());
}

TEST_CASE("all GPUs of the machine, where nothing else is said") {
  LauncherWorld world;
  world.gpus = 4;
  const auto options = world.ranks(launch({}, {world.script()}));
  CHECK_FALSE(options.alone);
  CHECK(options.processes == "4");
  CHECK(options.environment ==
        with(dynamo_variables(), {{"ACCELERATE_MIXED_PRECISION", "no"}, {"OMP_NUM_THREADS", "1"}}));
  CHECK(world.noticed("More than one GPU was found, enabling multi-GPU training."));
  const auto two = world.ranks(
      launch({"--multi_gpu", "--num_processes", "2", "--gpu_ids", "1,3"}, {world.script()}));
  CHECK(two.processes == "2");
  CHECK(two.environment.at("CUDA_VISIBLE_DEVICES") == "1,3");
}

TEST_CASE("on CPUs there are as many ranks as were asked for, and that is said") {
  LauncherWorld world;
  const auto options = world.ranks(launch(
      {"--cpu", "--num_processes=3", "--num_cpu_threads_per_process", "2"}, {world.script()}));
  CHECK_FALSE(options.alone);
  CHECK(options.processes == "3");
  CHECK(options.environment.at("ACCELERATE_USE_CPU") == "True");
  CHECK(options.environment.at("OMP_NUM_THREADS") == "2");
  CHECK(options.environment.at("CCL_WORKER_COUNT") == "0");
  CHECK(world.noticed("these are 3 ranks, which meet by gloo"));
}

TEST_CASE("several ranks without a GPU are told to meet on CPUs") {
  LauncherWorld world;
  const auto used = [&](const Words& flags) {
    const auto seen = world.ranks(launch(flags, {world.script()})).environment;
    return seen.contains("ACCELERATE_USE_CPU") ? seen.at("ACCELERATE_USE_CPU") : "not set";
  };
  // Each would take itself for the only one.
  CHECK(used({"--num_processes", "2"}) == "True");
  CHECK(used({"--multi_gpu", "--num_processes", "2"}) == "True");
  CHECK(used({"--use_deepspeed", "--num_processes", "2"}) == "True");
  CHECK(used({"--num_processes", "1"}) == "False");
  world.gpus = 2;
  CHECK(used({"--num_processes", "2"}) == "not set");
  world.gpus = 0;
  world.set("TROUPE_ADDRESS", "10.0.0.2:6379");
  CHECK(used({"--multi_gpu", "--num_processes", "2"}) == "not set");
}

TEST_CASE("FSDP's variables, with launch's own defaults") {
  LauncherWorld world;
  world.gpus = 2;
  const Variables fsdp{{"ACCELERATE_MIXED_PRECISION", "bf16"},
                       {"OMP_NUM_THREADS", "1"},
                       {"ACCELERATE_USE_FSDP", "true"},
                       {"FSDP_VERSION", "1"},
                       {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
                       {"FSDP_RESHARD_AFTER_FORWARD", "true"},
                       {"FSDP_OFFLOAD_PARAMS", "false"},
                       {"FSDP_MIN_NUM_PARAMS", "100000000"},
                       {"FSDP_FORWARD_PREFETCH", "false"},
                       {"FSDP_USE_ORIG_PARAMS", "true"},
                       {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
                       {"FSDP_SYNC_MODULE_STATES", "true"},
                       {"FSDP_ACTIVATION_CHECKPOINTING", "false"}};
  const Words base{"--use_fsdp", "--num_processes", "2", "--mixed_precision", "bf16"};
  CHECK(world.ranks(launch(base, {world.script()})).environment == with(dynamo_variables(), fsdp));
  Words more = base;
  for (const char* word :
       {"--fsdp_version", "2", "--fsdp_offload_params", "True", "--fsdp_auto_wrap_policy",
        "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer",
        "--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--fsdp_min_num_params", "2000",
        "--use_parallelism_config", "--parallelism_config_dp_shard_size", "2"}) {
    more.emplace_back(word);
  }
  CHECK(world.ranks(launch(more, {world.script()})).environment ==
        with(with(dynamo_variables(), fsdp), {{"FSDP_VERSION", "2"},
                                              {"FSDP_OFFLOAD_PARAMS", "true"},
                                              {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                                              {"FSDP_TRANSFORMER_CLS_TO_WRAP", "LlamaDecoderLayer"},
                                              {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"},
                                              {"FSDP_MIN_NUM_PARAMS", "2000"},
                                              {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                                              {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"},
                                              {"PARALLELISM_CONFIG_TP_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_CP_SIZE", "1"}}));
  CHECK(contains(
      world.refusal(launch({"--use_fsdp", "--fsdp_sync_module_states", "false"}, {world.script()})),
      "When using `--fsdp_cpu_ram_efficient_loading` set `--fsdp_sync_module_states` to `True`"));
}

TEST_CASE("DeepSpeed's variables, and the names that came from the file") {
  LauncherWorld world;
  world.gpus = 2;
  world.set("PWD", "/work/here");
  world.set("PYTHONPATH", "/lib/mine");
  const auto file = world.put("ds.yaml", R"(distributed_type: DEEPSPEED
num_processes: 2
mixed_precision: bf16
debug: true
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 8
  offload_optimizer_device: none
  zero3_init_flag: true
)");
  const auto options =
      world.ranks(launch({"--config_file", file, "--gradient_clipping", "1.0", "--zero_stage", "2"},
                         {world.script()}));
  CHECK(options.processes == "2");
  CHECK(
      options.environment ==
      Variables{{"ACCELERATE_MIXED_PRECISION", "bf16"},
                {"ACCELERATE_DEBUG_MODE", "true"},
                {"PYTHONPATH", "/lib/mine:/work/here"},
                {"ACCELERATE_CONFIG_DS_FIELDS",
                 "zero_stage,gradient_accumulation_steps,offload_optimizer_device,zero3_init_flag,"
                 "mixed_precision"},
                {"ACCELERATE_USE_DEEPSPEED", "true"},
                {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"},
                {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"},
                {"ACCELERATE_GRADIENT_CLIPPING", "1.0"},
                {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"},
                {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}});
  CHECK_FALSE(world.noticed("The following values"));
}

TEST_CASE("a flag counts before the file, the file before what is guessed") {
  LauncherWorld world;
  const auto file = world.put("a.yaml", R"(distributed_type: MULTI_GPU
num_processes: 8
num_machines: 2
machine_rank: 1
main_process_ip: 10.0.0.2
main_process_port: 1234
mixed_precision: fp16
max_restarts_are_not_a_key: 1
)");
  CHECK(contains(world.refusal(launch({"--config_file", file}, {world.script()})),
                 "had unknown keys (['max_restarts_are_not_a_key'])"));
  const auto good = world.put("b.yaml", R"(distributed_type: MULTI_GPU
num_processes: 8
num_machines: 2
machine_rank: 1
main_process_ip: 10.0.0.2
main_process_port: 1234
mixed_precision: fp16
rdzv_backend: bogus
)");
  const auto options = world.ranks(launch({"--config_file", good}, {world.script()}));
  CHECK(options.nodes_max == 2);
  CHECK(options.processes == "4");
  CHECK(options.node_rank == 1);
  CHECK(options.head_host == "10.0.0.2");
  CHECK(options.head_port == 1234);
  CHECK(options.rendezvous == Rendezvous::kStatic);  // as there, it is never taken from the file
  CHECK(options.environment.at("ACCELERATE_MIXED_PRECISION") == "fp16");
  const auto flags = world.ranks(launch(
      {"--config_file", good, "--machine_rank", "0", "--num_processes", "4", "--mixed_precision",
       "no", "--max_restarts", "3", "--rdzv_backend", "c10d", "--tee", "3", "--role", "worker"},
      {world.script()}));
  CHECK(flags.node_rank == 0);
  CHECK(flags.processes == "2");
  CHECK(flags.max_restarts == 3);
  CHECK(flags.rendezvous == Rendezvous::kDynamic);
  CHECK(flags.head_host == "10.0.0.2");
  CHECK(flags.head_port == 1234);
  CHECK(flags.role == "worker");
  CHECK(flags.tee.any());
  CHECK(flags.environment.at("ACCELERATE_MIXED_PRECISION") == "no");
}

TEST_CASE("the default file counts where none is named, but not with --cpu") {
  LauncherWorld world;
  const std::string text = "{\"distributed_type\": \"NO\", \"mixed_precision\": \"bf16\"}\n";
  (void)world.put("home/.cache/huggingface/accelerate/default_config.yaml", text);
  CHECK(world.ranks(launch({}, {world.script()})).environment.at("ACCELERATE_MIXED_PRECISION") ==
        "bf16");
  CHECK(world.ranks(launch({"--cpu"}, {world.script()}))
            .environment.at("ACCELERATE_MIXED_PRECISION") == "no");
  world.set("HF_HOME", world.path("elsewhere"));
  CHECK(world.ranks(launch({}, {world.script()})).environment.at("ACCELERATE_MIXED_PRECISION") ==
        "no");
}

TEST_CASE("old keys, bare words and JSON") {
  LauncherWorld world;
  const auto variables = [&](const std::string& name, const std::string& text) {
    const auto file = world.put(name, text);
    return world.ranks(launch({"--config_file", file}, {world.script()})).environment;
  };
  CHECK(
      variables("a.yaml", "distributed_type: NO\nfp16: true\n").at("ACCELERATE_MIXED_PRECISION") ==
      "fp16");
  CHECK(variables("a.yaml", "distributed_type: NO\nmixed_precision: no\n")
            .at("ACCELERATE_MIXED_PRECISION") == "no");
  CHECK(variables("a.yaml", "distributed_type: NO\ndynamo_backend: INDUCTOR\n")
            .at("ACCELERATE_DYNAMO_BACKEND") == "INDUCTOR");
  CHECK(variables("a.yaml",
                  "distributed_type: NO\ndynamo_config: {dynamo_backend: eager, "
                  "dynamo_use_dynamic: true}\n")
            .at("ACCELERATE_DYNAMO_USE_DYNAMIC") == "True");
  CHECK(variables("a.json",
                  R"({"distributed_type": "MULTI_CPU", "use_cpu": true, "num_processes": 2})")
            .at("ACCELERATE_USE_CPU") == "True");
  // Its keys are known with and without their prefix, and a policy of another type counts nothing.
  const auto fsdp =
      variables("a.yaml",
                "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  version: 2\n"
                "  fsdp_offload_params: true\ndeepspeed_config: {zero_stage: 3}\n");
  CHECK(fsdp.at("FSDP_VERSION") == "2");
  CHECK(fsdp.at("FSDP_OFFLOAD_PARAMS") == "true");
  CHECK_FALSE(fsdp.contains("ACCELERATE_DEEPSPEED_ZERO_STAGE"));
}

TEST_CASE("errors in accelerate's words") {
  LauncherWorld world;
  const std::string script = world.script();
  const auto refused = [&](const Words& flags) { return world.refusal(launch(flags, {script})); };
  const auto of_file = [&](const std::string& text) {
    return refused({"--config_file", world.put("x.yaml", text)});
  };
  const std::string one_only =
      "You can only use one of `--cpu`, `--multi_gpu`, `--tpu`, `--use_deepspeed`, `--use_fsdp` at "
      "a time.";
  CHECK(refused({"--cpu", "--multi_gpu"}) == one_only);
  CHECK(refused({"--use_fsdp", "--use_deepspeed"}) == one_only);
  CHECK(refused({"--multi_gpu", "--num_processes", "1"}) ==
        "You need to use at least 2 processes to use `--multi_gpu`.");
  CHECK(refused({"--use_fsdp", "--use_parallelism_config"}) ==
        "You cannot use `--use_parallelism_config` without `--use_fsdp` and `--fsdp_version=2`. ");
  CHECK(refused({"-m", "--no_python"}) == "--module and --no_python cannot be used together");
  CHECK(contains(
      refused({"--config_file", world.path("absent.yaml")}),
      "The passed configuration file `" + world.path("absent.yaml") + "` does not exist."));
  CHECK(contains(of_file("num_processes: 2\n"),
                 "A `distributed_type` must be specified in the config file."));
  CHECK(contains(of_file("distributed_type: FSDP\n"),
                 "You need to manually pass in `--num_processes` using this config yaml."));
  CHECK(of_file("distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\n") ==
        "When using multiple machines, you need to specify the main process IP.");
  CHECK(contains(of_file("distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 1\n"),
                 "Less than two GPU ids were configured"));
  CHECK(contains(of_file("distributed_type: MULTI_GPU\nnum_processes: 5\nnum_machines: 2\n"),
                 "use a multiple of 2"));
  CHECK(contains(
      of_file("distributed_type: NO\nmixed_precision: int3\n"),
      "Unknown mixed_precision mode: int3. Choose between ['no', 'fp8', 'fp16', 'bf16']."));
  CHECK(contains(of_file("distributed_type: MULTI_XPU\nnum_processes: 2\n"),
                 "distributed_type=MULTI_XPU is not supported"));
  CHECK(contains(of_file("distributed_type: MULTI_CPU\nnum_processes: 2\nmpirun_config: "
                         "{mpirun_hostfile: /h}\n"),
                 "mpirun_config.mpirun_hostfile is not supported"));
  CHECK(contains(of_file("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n"
                         "ec2_instance_type: x\n"),
                 "compute_environment=AMAZON_SAGEMAKER is not supported"));
  CHECK(contains(refused({"--mixed_precision", "bf61"}), "invalid choice: 'bf61'"));
  CHECK(contains(refused({"--mixed_precision", "bf61"}), "did you mean 'bf16'?"));
  CHECK(contains(refused({"--num_processes", "two"}), "invalid int value: 'two'"));
  CHECK(contains(refused({"--num_proceses", "2"}), "did you mean '--num_processes'?"));
  CHECK(contains(refused({"--num_proc", "2"}), "unrecognized arguments: --num_proc"));
  CHECK(contains(world.refusal({"accelerate", "launch"}), "are required: training_script"));
  for (const char* flag : {"--tpu", "--use_megatron_lm", "--vm=x", "--fp8_backend=te",
                           "--aws_access_key_id=x", "--mpirun_hostfile=x", "--downcast_bf16"}) {
    CAPTURE(flag);
    const auto result = world.interpret(launch({flag}, {script}));
    CHECK(result.status().code() == Code::kUnsupported);
  }
}

TEST_CASE("a training of ours is given the file, or what file and flags say together") {
  LauncherWorld world;
  const auto file = world.put("a.yaml",
                              "distributed_type: FSDP\nnum_processes: 8\n"
                              "mixed_precision: fp16\nfsdp_config: {version: 2}\n");
  const Words absent{world.path("src/train.py"), "x.yaml", "learning_rate=1"};
  CHECK(world.troupe(launch({"--config_file", file}, absent)).words ==
        Words{"train", "x.yaml", "learning_rate=1", "troupe.accelerate_config=" + file});
  CHECK(world.troupe(launch({}, absent)).words == Words{"train", "x.yaml", "learning_rate=1"});
  const auto both = inline_file(world.troupe(launch(
      {"--config_file", file, "--mixed_precision", "bf16", "--num_processes", "2"}, absent)));
  CHECK(json::find_string(both, "distributed_type") == "FSDP");
  CHECK(json::find_string(both, "mixed_precision") == "bf16");
  CHECK(json::find_integer(both, "num_processes") == 2);
  CHECK(json::find_integer(*json::find(both, "fsdp_config"), "fsdp_version") == 2);
  // A flag that says the same changes nothing.
  CHECK(
      world.troupe(launch({"--config_file", file, "--num_processes", "8"}, absent)).words.back() ==
      "troupe.accelerate_config=" + file);
  const auto cpu = inline_file(world.troupe(launch({"--cpu", "--num_processes", "2"}, absent)));
  CHECK(json::find_string(cpu, "distributed_type") == "MULTI_CPU");
  CHECK(json::find_bool(cpu, "use_cpu") == true);
  const auto stage = inline_file(world.troupe(
      launch({"--use_deepspeed", "--zero_stage", "3", "-m"}, {"axolotl.cli.train", "c.yaml"})));
  CHECK(json::find_string(stage, "distributed_type") == "DEEPSPEED");
  CHECK(json::find_integer(*json::find(stage, "deepspeed_config"), "zero_stage") == 3);
}

TEST_CASE("DeepSpeed's file beside accelerate's is found from elsewhere") {
  LauncherWorld world;
  (void)world.put("conf/ds.json", "{}");
  const auto file = world.put("conf/a.yaml",
                              "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                              "deepspeed_config: {deepspeed_config_file: ds.json}\n");
  const auto values = inline_file(world.troupe(
      launch({"--config_file", file, "--num_processes", "4"}, {world.path("train.py"), "x.yaml"})));
  CHECK(json::find_string(*json::find(values, "deepspeed_config"), "deepspeed_config_file") ==
        world.path("conf/ds.json"));
}

TEST_CASE("DeepSpeed on several machines: each is given the command, unless there is a hostfile") {
  LauncherWorld world;
  const std::string base =
      "distributed_type: DEEPSPEED\nnum_processes: 16\nnum_machines: 2\n"
      "main_process_ip: 10.0.0.2\ndeepspeed_config:\n  zero_stage: 3\n";
  const auto standard = world.put("a.yaml", base + "  deepspeed_multinode_launcher: standard\n");
  const auto options = world.ranks(launch({"--config_file", standard}, {world.script()}));
  CHECK(options.nodes_max == 2);
  CHECK(options.processes == "8");
  CHECK_FALSE(world.noticed("give this command"));
  const auto none = world.put("b.yaml", base);
  CHECK(world.ranks(launch({"--config_file", none}, {world.script()})).nodes_max == 2);
  CHECK(world.noticed("give this command on each of them"));
}

TEST_CASE("sections that the script is not told of are named") {
  LauncherWorld world;
  const Words cpu{"--cpu", "--num_processes", "2"};
  const auto with_flag = [&](const Words& more) {
    Words flags = cpu;
    flags.insert(flags.end(), more.begin(), more.end());
    world.ranks(launch(flags, {world.script()}));
  };
  with_flag({"--zero_stage", "2"});
  CHECK(world.noticed("deepspeed_config has no effect: it belongs to distributed_type: DEEPSPEED"));
  with_flag({"--fsdp_version", "2"});
  CHECK(world.noticed("fsdp_config has no effect: it belongs to distributed_type: FSDP"));
  with_flag({});
  CHECK_FALSE(world.noticed("has no effect"));
}

}  // namespace
}  // namespace troupe::tools::accelerate_launch_tests
