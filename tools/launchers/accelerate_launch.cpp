// `accelerate launch`, as commands/launch.py (accelerate 1.11) reads its command line.
#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "tools/launchers/accelerate_settings.h"
#include "tools/launchers/flag_parser.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/overlay_environment.h"
#include "tools/launchers/script.h"
#include "train/config/keys.h"

namespace troupe::tools {
namespace {

constexpr std::string_view kName = "accelerate launch";
constexpr int kPort = 29500;

// A flag that the file has a key for: the flag's name is the key's.
struct KeyFlag {
  const char* name;
  const char* type;  // "": a switch
  const char* help;
};
// The flags of one section of the file.
struct KeySection {
  const char* title;
  const char* prefix;  // of their paths
  std::span<const KeyFlag> flags;
};
constexpr std::array kTopFlags{
    KeyFlag{"num_processes", "N", "ranks on all machines together"},
    KeyFlag{"num_machines", "N", "machines"},
    KeyFlag{"machine_rank", "N", "this machine"},
    KeyFlag{"main_process_ip", "HOST", "the first machine"},
    KeyFlag{"main_process_port", "PORT", "its port"},
    KeyFlag{"gpu_ids", "N,N|all", "the GPUs of this machine that may be used"},
    KeyFlag{"mixed_precision", "no|fp16|bf16", "what Accelerator() computes in"},
    KeyFlag{"debug", "", "ACCELERATE_DEBUG_MODE in the ranks"},
    KeyFlag{"same_network", "", "taken; machines are reached by their addresses"},
    KeyFlag{"enable_cpu_affinity", "", "ACCELERATE_CPU_AFFINITY in the ranks"},
};
constexpr std::array kDeepSpeedFlags{
    KeyFlag{"deepspeed_config_file", "FILE", "DeepSpeed's own file"},
    KeyFlag{"zero_stage", "0|1|2|3", "what is sharded"},
    KeyFlag{"offload_optimizer_device", "none|cpu", "where optimizer state lies"},
    KeyFlag{"offload_param_device", "none|cpu", "where parameters lie"},
    KeyFlag{"offload_optimizer_nvme_path", "DIR", "for scripts of one's own"},
    KeyFlag{"offload_param_nvme_path", "DIR", "for scripts of one's own"},
    KeyFlag{"gradient_accumulation_steps", "N", "micro-batches of a step"},
    KeyFlag{"gradient_clipping", "X", "the norm that gradients are clipped to"},
    KeyFlag{"zero3_init_flag", "true|false", "for scripts of one's own"},
    KeyFlag{"zero3_save_16bit_model", "true|false", "for scripts of one's own"},
    KeyFlag{"deepspeed_hostfile", "FILE", "hosts that are started over ssh"},
    KeyFlag{"deepspeed_exclusion_filter", "HOSTS", "of the hostfile all but these"},
    KeyFlag{"deepspeed_inclusion_filter", "HOSTS", "of the hostfile these alone"},
    KeyFlag{"deepspeed_multinode_launcher", "NAME", "standard: no other machine is started"},
    KeyFlag{"deepspeed_moe_layer_cls_names", "NAMES", "for scripts of one's own"},
};
constexpr std::array kFsdpFlags{
    KeyFlag{"fsdp_version", "1|2", "of PyTorch's FSDP"},
    KeyFlag{"fsdp_offload_params", "true|false", "parameters in the host's memory"},
    KeyFlag{"fsdp_min_num_params", "N", "for SIZE_BASED_WRAP"},
    KeyFlag{"fsdp_sharding_strategy", "NAME", "FULL_SHARD, SHARD_GRAD_OP, …: what is sharded"},
    KeyFlag{"fsdp_auto_wrap_policy", "NAME", "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP"},
    KeyFlag{"fsdp_transformer_layer_cls_to_wrap", "NAMES", "layers that are gathered as one"},
    KeyFlag{"fsdp_state_dict_type", "NAME", "how checkpoints are written"},
    KeyFlag{"fsdp_reshard_after_forward", "true|false", "whether parameters are dropped again"},
    KeyFlag{"fsdp_backward_prefetch", "NAME", "for scripts of one's own"},
    KeyFlag{"fsdp_forward_prefetch", "true|false", "for scripts of one's own"},
    KeyFlag{"fsdp_use_orig_params", "true|false", "for scripts of one's own"},
    KeyFlag{"fsdp_cpu_ram_efficient_loading", "true|false", "for scripts of one's own"},
    KeyFlag{"fsdp_sync_module_states", "true|false", "for scripts of one's own"},
    KeyFlag{"fsdp_activation_checkpointing", "true|false",
            "activations are computed again in the backward pass"},
};
constexpr std::array kParallelismFlags{
    KeyFlag{"parallelism_config_dp_replicate_size", "N", "copies of the model"},
    KeyFlag{"parallelism_config_dp_shard_size", "N", "ranks that share one copy"},
    KeyFlag{"parallelism_config_tp_size", "N", "for scripts of one's own"},
    KeyFlag{"parallelism_config_cp_size", "N", "for scripts of one's own"},
    KeyFlag{"parallelism_config_cp_comm_strategy", "NAME", "for scripts of one's own"},
};
constexpr std::array kDynamoFlags{
    KeyFlag{"dynamo_backend", "NAME", "of torch.compile"},
    KeyFlag{"dynamo_mode", "NAME", "of torch.compile"},
    KeyFlag{"dynamo_use_fullgraph", "", "of torch.compile"},
    KeyFlag{"dynamo_use_dynamic", "", "of torch.compile"},
    KeyFlag{"dynamo_use_regional_compilation", "", "of torch.compile"},
};
constexpr std::array kKeySections{
    KeySection{"Machines and ranks", "", kTopFlags},
    KeySection{"DeepSpeed", "deepspeed_config.", kDeepSpeedFlags},
    KeySection{"FSDP", "fsdp_config.", kFsdpFlags},
    KeySection{"Parallelism", "parallelism_config.", kParallelismFlags},
    KeySection{"Compilation, for scripts of one's own", "dynamo_config.", kDynamoFlags},
};

struct LaunchFlags {
  AccelerateFlags settings;
  std::optional<std::string> threads;
  std::string tee = "0", role = "default", rdzv_backend = "static", rdzv_conf, log_dir;
  std::string max_restarts = "0";
  bool module = false, no_python = false;
};

void add_values(FlagParser& parser, LaunchFlags& flags) {
  for (const KeySection& section : kKeySections) {
    parser.section(section.title);
    for (const KeyFlag& flag : section.flags) {
      const std::string path = std::string(section.prefix) + flag.name;
      if (*flag.type == '\0') {
        parser.toggle(flag.name, flags.settings.switches[path], flag.help);
      } else {
        parser.value(flag.name, flags.settings.values[path], flag.type, flag.help);
      }
    }
  }
}

// The flags of machines and runtimes that are not there are refused by name.
void add_refused(FlagParser& parser) {
  constexpr const char* kTpu = "no TPU is used; leave it out";
  for (const char* name : {"tpu", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo"}) {
    parser.refused(name, false, kTpu);
  }
  for (const char* name : {"vm", "env", "main_training_function"}) {
    parser.refused(name, true, kTpu);
  }
  parser.refused("downcast_bf16", false, kTpu);
  constexpr const char* kMegatron =
      "Megatron is another runtime; use --use_fsdp or --use_deepspeed";
  parser.refused("use_megatron_lm", false, kMegatron);
  for (const char* name :
       {"tp_degree", "pp_degree", "num_micro_batches", "sequence_parallelism",
        "recompute_activations", "use_distributed_optimizer", "gradient_clipping"}) {
    parser.refused(std::string("megatron_lm_") + name, true, kMegatron);
  }
  constexpr const char* kFp8 =
      "accelerate's settings of FP8 are of other packages' recipes; use --mixed_precision bf16, "
      "and for a training fp8: true in its own file";
  parser.refused("fp8_use_autocast_during_eval", false, kFp8);
  for (const char* name : {"backend", "margin", "interval", "format", "amax_history_len",
                           "amax_compute_algo", "override_linear_precision", "opt_level"}) {
    parser.refused(std::string("fp8_") + name, true, kFp8);
  }
  constexpr const char* kAws = "training runs on machines of one's own; leave it out";
  parser.refused("aws_access_key_id", true, kAws).refused("aws_secret_access_key", true, kAws);
  constexpr const char* kMpi = "give --num_processes; ranks are placed without MPI";
  parser.refused("mpirun_hostfile", true, kMpi).refused("mpirun_ccl", true, kMpi);
}

Status check_choice(const AccelerateFlags& flags, const char* path, const char* flag,
                    const std::vector<std::string>& choices) {
  const auto found = flags.values.find(path);
  if (found == flags.values.end() || !found->second) return {};
  if (std::find(choices.begin(), choices.end(), *found->second) != choices.end()) return {};
  return error(Code::kInvalidArgument,
               "{}: error: argument {}: invalid choice: '{}' (choose from {}){}", kName, flag,
               *found->second, join_words(choices), did_you_mean(*found->second, choices));
}

// accelerate's parser reads these as numbers.
Status check_numbers(const AccelerateFlags& flags) {
  for (const char* key : {"num_processes", "num_machines", "machine_rank", "main_process_port"}) {
    const auto& text = flags.values.at(key);
    if (!text || (!text->empty() && text->find_first_not_of("0123456789", *text->begin() == '-') ==
                                        std::string::npos)) {
      continue;
    }
    return error(Code::kInvalidArgument, "{}: error: argument --{}: invalid int value: '{}'", kName,
                 key, *text);
  }
  return {};
}

// A training of ours: the file as it stands, or what file and flags say together.
Invocation train_here(const AccelerateSettings& settings, OwnTraining training,
                      const LauncherContext& context) {
  TroupeCommand command{.words = {"train"}, .environment = {}};
  command.words.insert(command.words.end(), training.arguments.begin(), training.arguments.end());
  if (settings.changed) {
    json::Object values = settings.values;
    // A path from the file's own folder would be looked for from here.
    const std::string named = settings.text("deepspeed_config.deepspeed_config_file", "");
    const auto slash = settings.file.rfind('/');
    if (!named.empty() && slash != std::string::npos && !context.files.exists(named)) {
      const std::string beside = join_path(settings.file.substr(0, slash), named);
      if (context.files.exists(beside)) {
        values["deepspeed_config"].as_object()["deepspeed_config_file"] = beside;
      }
    }
    // In quotes: a text that holds a mapping, no mapping.
    command.words.push_back("troupe.accelerate_config=" +
                            json::write(json::Value(json::write(values))));
  } else if (!settings.file.empty()) {
    command.words.push_back("troupe.accelerate_config=" + settings.file);
  }
  return Invocation{std::move(command), std::move(training.notices)};
}

std::vector<std::string> deepspeed_words(const AccelerateSettings& settings,
                                         const LaunchFlags& flags) {
  const std::string at = "deepspeed_config.deepspeed_";
  const std::string launcher = settings.text(at + "multinode_launcher", "pdsh");
  std::vector<std::string> words{"--hostfile", settings.text(at + "hostfile", "")};
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (launcher == "nossh") {
    add({"--node_rank", std::to_string(settings.machine_rank), "--no_ssh"});
  } else {
    add({"--no_local_rank", "--launcher", launcher});
  }
  if (settings.find(at + "exclusion_filter")) {
    add({"--exclude", settings.text(at + "exclusion_filter", "")});
  } else if (settings.find(at + "inclusion_filter")) {
    add({"--include", settings.text(at + "inclusion_filter", "")});
  } else {
    add({"--num_gpus", std::to_string(settings.processes / settings.machines)});
  }
  add({"--master_addr", settings.text("main_process_ip", ""), "--master_port",
       settings.text("main_process_port", std::to_string(kPort))});
  if (flags.module) add({"--module"});
  if (flags.no_python) add({"--no_python"});
  return words;
}

std::vector<std::string> torchrun_words(const AccelerateSettings& settings,
                                        const LaunchFlags& flags) {
  const int local = settings.processes / settings.machines;
  std::vector<std::string> words{fmt::format("--nnodes={}", settings.machines),
                                 fmt::format("--nproc-per-node={}", local),
                                 "--rdzv-backend=" + flags.rdzv_backend,
                                 "--rdzv-conf=" + flags.rdzv_conf,
                                 "--max-restarts=" + flags.max_restarts,
                                 "--role=" + flags.role,
                                 "--tee=" + flags.tee,
                                 "--log-dir=" + flags.log_dir};
  if (settings.machines > 1) {
    const std::string host = settings.text("main_process_ip", "");
    std::string port = settings.text("main_process_port", std::to_string(kPort));
    if (port == "0") port = std::to_string(kPort);
    if (flags.rdzv_backend != "static") {
      const bool ipv6 = host.find(':') != std::string::npos;
      words.push_back(fmt::format("--rdzv-endpoint={}:{}", ipv6 ? "[" + host + "]" : host, port));
    } else {
      words.push_back("--master-addr=" + host);
      words.push_back("--master-port=" + port);
      words.push_back(fmt::format("--node-rank={}", settings.machine_rank));
    }
  }
  if (flags.module) words.emplace_back("--module");
  if (flags.no_python) words.emplace_back("--no-python");
  return words;
}

// Scripts are told of the sections that their distributed_type reads, and of no others. (A training
// of ours says the same of its file.)
void note_idle_sections(AccelerateSettings& settings) {
  const std::string type = settings.text("distributed_type", "NO");
  const std::pair<const char*, const char*> sections[] = {{"deepspeed_config", "DEEPSPEED"},
                                                          {"fsdp_config", "FSDP"}};
  for (const auto& [section, reader] : sections) {
    const auto* value = settings.find(section);
    if (type == reader || value == nullptr || !value->is_object() || value->get_object().empty()) {
      continue;
    }
    settings.notices.push_back(
        fmt::format("{} has no effect: it belongs to distributed_type: {}, and this is {}", section,
                    reader, type));
  }
}

// A program of the user's, with the variables that Accelerator() reads.
Result<Invocation> start_ranks(const AccelerateSettings& settings, const LaunchFlags& flags,
                               const std::vector<std::string>& script,
                               const LauncherContext& context) {
  auto variables = TROUPE_TRY(accelerate_variables(settings, flags.threads, context));
  const bool by_deepspeed =
      settings.kind == AccelerateKind::kDeepSpeed && settings.machines > 1 &&
      settings.text("deepspeed_config.deepspeed_multinode_launcher", "pdsh") != "standard";
  const bool has_hosts = settings.find("deepspeed_config.deepspeed_hostfile") != nullptr;
  const OverlayEnvironment environment(context.environment, variables);
  const LauncherContext with_variables{
      .environment = environment, .files = context.files, .gpus_here = context.gpus_here};
  Interpreter launcher = torchrun;
  std::vector<std::string> words;
  std::vector<std::string> notices;
  if (by_deepspeed && has_hosts) {
    launcher = find_launcher("deepspeed");
    if (launcher == nullptr) {
      return Status(Code::kUnsupported,
                    "deepspeed_config.deepspeed_hostfile is not supported: leave it out, set "
                    "deepspeed_multinode_launcher: standard, and give the command on each machine");
    }
    words = deepspeed_words(settings, flags);
  } else {
    words = torchrun_words(settings, flags);
    if (by_deepspeed) {
      notices.push_back(
          "there is no deepspeed_hostfile, so no other machine is started from here: give this "
          "command on each of them (deepspeed_multinode_launcher: standard)");
    }
  }
  words.insert(words.end(), script.begin(), script.end());
  Invocation invocation = TROUPE_TRY(launcher(words, with_variables));
  if (auto* ranks = std::get_if<RankCommand>(&invocation.what)) {
    ranks->options.environment.merge(variables);
    ranks->options.alone = settings.kind == AccelerateKind::kSimple && settings.processes == 1 &&
                           settings.machines == 1;
  }
  invocation.notices.insert(invocation.notices.begin(), notices.begin(), notices.end());
  return invocation;
}

}  // namespace

Result<Invocation> accelerate_launch(std::span<const std::string> words,
                                     const LauncherContext& context) {
  LaunchFlags flags;
  // Beginnings of names are none there.
  FlagParser parser{std::string(kName), false};
  bool quiet = false;
  parser
      .about("accelerate launch [flags] SCRIPT [its arguments]",
             "Runs a script in ranks, as accelerate's flags and its file say. Where the script is "
             "LLaMA-Factory's or Axolotl's, Troupe trains in its place.",
             {"accelerate launch --num_processes 2 train.py",
              "accelerate launch --config_file fsdp.yaml train.py --lr 0.1",
              "accelerate launch --cpu --num_processes 4 -m package.train"})
      .section("What decides")
      .value("config_file", flags.settings.config_file, "FILE",
             "of `accelerate config`; flags count before it")
      .toggle("cpu", flags.settings.cpu, "on CPUs")
      .toggle("multi_gpu", flags.settings.multi_gpu, "a rank on each GPU")
      .toggle("use_deepspeed", flags.settings.use_deepspeed, "the section DeepSpeed counts")
      .toggle("use_fsdp", flags.settings.use_fsdp, "the section FSDP counts")
      .toggle("use_parallelism_config", flags.settings.use_parallelism_config,
              "the section Parallelism counts")
      .inert("use_xpu", false)
      .section("The script")
      .toggle("module|m", flags.module, "it is a module's name, as for python -m")
      .toggle("no_python", flags.no_python, "it is a program of its own")
      .value("num_cpu_threads_per_process", flags.threads, "N", "OMP_NUM_THREADS of each rank")
      .section("Failures and output")
      .value("max_restarts", flags.max_restarts, "N", "how often all ranks begin again")
      .value("log_dir", flags.log_dir, "DIR", "where the ranks' files go")
      .value("tee|t", flags.tee, "0|1|2|3", "1 standard output, 2 standard error, 3 both")
      .value("role", flags.role, "TEXT", "of the ranks, in their environment")
      .value("rdzv_backend", flags.rdzv_backend, "static|c10d", "how machines find each other")
      .value("rdzv_conf", flags.rdzv_conf, "K=V,K=V", "its settings")
      .toggle("quiet|q", quiet, "what is done otherwise than there is not said")
      .inert("monitor_interval", true);
  add_values(parser, flags);
  add_refused(parser);
  const auto rest = TROUPE_TRY(parser.parse(words));
  if (auto told = information(parser)) return std::move(*told);
  if (rest.empty()) {
    return error(Code::kInvalidArgument,
                 "{}: error: the following arguments are required: training_script", kName);
  }
  if (flags.module && flags.no_python) {
    return Status(Code::kInvalidArgument, "--module and --no_python cannot be used together");
  }
  TROUPE_RETURN_IF_ERROR(check_numbers(flags.settings));
  TROUPE_RETURN_IF_ERROR(check_choice(flags.settings, "mixed_precision", "--mixed_precision",
                                      {"no", "fp16", "bf16", "fp8"}));
  TROUPE_RETURN_IF_ERROR(
      check_choice(flags.settings, "fsdp_config.fsdp_version", "--fsdp_version", {"1", "2"}));
  const Script script{.name = rest.front(),
                      .module = flags.module,
                      .no_python = flags.no_python,
                      .arguments = {rest.begin() + 1, rest.end()}};
  auto settings = TROUPE_TRY(settle_accelerate(flags.settings, context));
  auto training = TROUPE_TRY(own_training(script, context));
  if (!training) note_idle_sections(settings);
  Invocation invocation = training ? train_here(settings, std::move(*training), context)
                                   : TROUPE_TRY(start_ranks(settings, flags, rest, context));
  if (!quiet) {
    invocation.notices.insert(invocation.notices.begin(), settings.notices.begin(),
                              settings.notices.end());
  }
  return invocation;
}

}  // namespace troupe::tools
