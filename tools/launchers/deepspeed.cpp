// deepspeed's command line, as deepspeed/launcher/runner.py reads it.
#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/launchers/flag_parser.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/hostfile.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kFileBytesMax = 1u << 20;
constexpr std::uint16_t kMasterPort = 29500;
constexpr int kElasticRestarts = 100;
constexpr const char* kThisMachine = "localhost";

struct DeepspeedFlags {
  std::string hostfile = "/job/hostfile", include, exclude, num_nodes = "-1", num_gpus = "-1";
  std::string master_addr, master_port = std::to_string(kMasterPort), node_rank = "-1";
  std::string min_nodes = "-1", max_nodes = "-1", launcher = "pdsh", launcher_args, ssh_port;
  std::string log_dir;
  bool module = false, no_python = false, no_local_rank = false, no_ssh = false, elastic = false;
};

Result<int> number_of(const char* flag, const std::string& text) {
  if (const auto value = parse_integer<int>(text)) return *value;
  return error(Code::kInvalidArgument, "deepspeed: error: argument {}: invalid int value: '{}'",
               flag, text);
}

Result<std::uint16_t> port_of(const char* flag, const std::string& text) {
  const int port = TROUPE_TRY(number_of(flag, text));
  if (port < 1 || port > 65535) {
    return error(Code::kInvalidArgument, "deepspeed: {} is {}: from 1 to 65535", flag, port);
  }
  return static_cast<std::uint16_t>(port);
}

void declare(FlagParser& parser, DeepspeedFlags& flags) {
  parser
      .about("deepspeed [flags] SCRIPT [its arguments]",
             "Runs a Python script in ranks, a rank for each slot of the hosts, which are started "
             "over ssh. Where the script is LLaMA-Factory's or Axolotl's, Troupe trains in its "
             "place.",
             {"deepspeed --num_gpus 4 train.py --deepspeed ds_config.json",
              "deepspeed --hostfile hosts --include worker-1@worker-2:0,2 train.py",
              "deepspeed --hostfile hosts --node_rank 0 --no_ssh --master_addr 10.0.0.2 train.py"})
      .section("Hosts and slots")
      .value("hostfile|H", flags.hostfile, "FILE", "lines of the form 'worker-1 slots=4'")
      .value("include|i", flags.include, "HOSTS", "these alone: 'worker-1@worker-2:0,2'")
      .value("exclude|e", flags.exclude, "HOSTS", "all but these")
      .value("num_nodes", flags.num_nodes, "N", "the first N hosts; -1: all")
      .value("num_gpus", flags.num_gpus, "N", "the first N slots of each; -1: all")
      .value("num_accelerators", flags.num_gpus, "N", "the same")
      .section("How hosts are started, and find each other")
      .value("master_addr", flags.master_addr, "HOST", "the first host, where it is not found out")
      .value("master_port", flags.master_port, "PORT", "its port")
      .toggle("no_ssh", flags.no_ssh, "the command is given on every host by hand")
      .value("node_rank", flags.node_rank, "N", "this host, with --no_ssh")
      .value("launcher", flags.launcher, "NAME", "taken; it is ssh, whatever it says")
      .value("launcher_args", flags.launcher_args, "TEXT", "more flags of ssh")
      .value("ssh_port", flags.ssh_port, "PORT", "of the hosts' ssh servers")
      .section("Restarts")
      .toggle("elastic_training", flags.elastic, "all ranks begin again when one fails")
      .value("min_elastic_nodes", flags.min_nodes, "N", "hosts at least")
      .value("max_elastic_nodes", flags.max_nodes, "N", "hosts at most")
      .section("The script")
      .toggle("module", flags.module, "it is a module's name, as for python -m")
      .toggle("no_python", flags.no_python, "it is a program of its own")
      .toggle("no_local_rank", flags.no_local_rank, "it gets no --local_rank=N")
      .value("enable_each_rank_log", flags.log_dir, "DIR", "every rank's output to files there")
      .inert("no_ssh_check", false)
      .inert("force_multi", false)
      .inert("save_pid", false)
      .inert("bind_cores_to_rank", false)
      .inert("bind_core_list", true)
      .inert("log_level", true)
      .inert("quiet|q", false)
      .refused("autotuning", true, "nothing is tried out by itself; 'troupe plan' says what fits")
      .refused("venv_script", true, "activate the environment before the command, on every host");
}

// "KEY=VALUE" lines of .deepspeed_env in the home folder, then in the working directory.
Status read_exports(const LauncherContext& context, RunOptions& options) {
  const auto named = context.environment.get("DS_ENV_FILE");
  const std::string name = named && !named->empty() ? *named : ".deepspeed_env";
  for (const std::string& folder : {context.environment.get("HOME").value_or(""), std::string()}) {
    const std::string path = join_path(folder, name);
    if (!context.files.exists(path)) continue;
    for (const std::string& whole :
         split_words(TROUPE_TRY(context.files.read(path, kFileBytesMax)), '\n')) {
      const std::string_view line = trim(whole);
      if (line.empty() || line.starts_with('#')) continue;
      const std::size_t equals = line.find('=');
      if (equals == std::string_view::npos || equals == 0) {
        return error(Code::kInvalidArgument, "{}: '{}' is no line of the form KEY=VALUE", path,
                     line);
      }
      options.environment[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    }
  }
  return {};
}

// This machine's slots where there is no hostfile: its GPUs, or ranks on its CPUs.
Result<std::vector<RunHost>> local_slots(const DeepspeedFlags& flags, int num_gpus,
                                         const LauncherContext& context,
                                         std::vector<std::string>& notices) {
  RunHost here{.name = kThisMachine, .slots = {}};
  int count = context.gpus_here();
  if (count == 0) {
    count = std::max({1, num_gpus, 1 + TROUPE_TRY(largest_slot(flags.include)),
                      1 + TROUPE_TRY(largest_slot(flags.exclude))});
    notices.push_back("there is no GPU here: every slot is a rank on the CPU");
  } else if (num_gpus > count) {
    notices.push_back(fmt::format(
        "--num_gpus={}, and there are {}: ranks beyond them find no device", num_gpus, count));
    count = num_gpus;
  }
  for (int slot = 0; slot < count; ++slot) here.slots.push_back(slot);
  return std::vector{std::move(here)};
}

// The machines and their slots that the flags leave.
Result<std::vector<RunHost>> active_hosts(DeepspeedFlags& flags, const LauncherContext& context,
                                          std::vector<std::string>& notices) {
  const int num_nodes = TROUPE_TRY(number_of("--num_nodes", flags.num_nodes));
  const int num_gpus = TROUPE_TRY(number_of("--num_gpus", flags.num_gpus));
  if (num_nodes >= 0 || num_gpus >= 0) {
    if (!flags.include.empty() || !flags.exclude.empty()) {
      return Status(Code::kInvalidArgument, "Cannot specify num_nodes/gpus with include/exclude");
    }
    if (num_nodes == 0 || num_gpus == 0) {
      return Status(Code::kInvalidArgument, "deepspeed: --num_nodes and --num_gpus begin at 1");
    }
  }
  std::vector<RunHost> hosts;
  if (context.files.exists(flags.hostfile)) {
    hosts =
        TROUPE_TRY(parse_hostfile(TROUPE_TRY(context.files.read(flags.hostfile, kFileBytesMax))));
  } else {
    if (flags.hostfile != DeepspeedFlags().hostfile) {
      notices.emplace_back(
          "Unable to find hostfile, will proceed with training with local resources only.");
    }
    if (num_nodes > 1) {
      return Status(Code::kInvalidArgument,
                    "Num nodes is >1 but no extra nodes available via hostfile");
    }
    const auto visible = context.environment.get("CUDA_VISIBLE_DEVICES");
    if (visible && !visible->empty()) {
      if (flags.include.empty() && flags.exclude.empty() && num_gpus < 0 && num_nodes < 0) {
        flags.include = fmt::format("{}:{}", kThisMachine, *visible);
        notices.push_back(fmt::format("Detected VISIBLE_DEVICES={}: setting --include={}", *visible,
                                      flags.include));
      } else {
        notices.push_back(
            fmt::format("Detected VISIBLE_DEVICES={} but ignoring it because one or several of "
                        "--include/--exclude/--num_gpus/--num_nodes cl args were used.",
                        *visible));
      }
    }
    hosts = TROUPE_TRY(local_slots(flags, num_gpus, context, notices));
  }
  hosts = TROUPE_TRY(filter_hosts(std::move(hosts), flags.include, flags.exclude));
  std::erase_if(hosts, [](const RunHost& host) { return host.slots.empty(); });
  if (num_nodes > static_cast<int>(hosts.size())) {
    return error(Code::kInvalidArgument, "--num_nodes={}, and {} has {} hosts", num_nodes,
                 flags.hostfile, hosts.size());
  }
  if (num_nodes > 0) hosts.resize(static_cast<std::size_t>(num_nodes));
  if (num_gpus > 0) {
    for (RunHost& host : hosts) {
      host.slots.clear();
      for (int slot = 0; slot < num_gpus; ++slot) host.slots.push_back(slot);
    }
  }
  if (hosts.empty()) return Status(Code::kInvalidArgument, "no host has a slot");
  return hosts;
}

Status set_machines(const DeepspeedFlags& flags, RunOptions& options,
                    std::vector<std::string>& notices) {
  const int node_rank = TROUPE_TRY(number_of("--node_rank", flags.node_rank));
  const std::uint16_t master_port = TROUPE_TRY(port_of("--master_port", flags.master_port));
  const auto nodes = static_cast<int>(options.hosts.size());
  options.nodes_min = options.nodes_max = nodes;
  const auto& slots = options.hosts.front().slots;
  options.processes = std::to_string(slots.size());
  if (nodes == 1) return {};
  if (flags.no_ssh) {
    if (node_rank < 0 || node_rank >= nodes) {
      return error(Code::kInvalidArgument,
                   "--no_ssh needs --node_rank, from 0 to {}, on every host (--node_rank is {})",
                   nodes - 1, node_rank);
    }
    options.node_rank = node_rank;
    options.processes =
        std::to_string(options.hosts[static_cast<std::size_t>(node_rank)].slots.size());
    options.head_host = flags.master_addr.empty() ? options.hosts.front().name : flags.master_addr;
    options.head_port = master_port;
    return {};
  }
  if (flags.elastic) {
    return Status(Code::kUnsupported,
                  "deepspeed: --elastic_training on several hosts: 'troupe run --nnodes MIN:MAX' "
                  "on each machine takes those that come");
  }
  options.starts_hosts = true;
  options.head_host = flags.master_addr;
  if (flags.launcher != "pdsh") {
    notices.push_back(fmt::format(
        "--launcher={}: the other hosts are reached over ssh, and nothing else is needed",
        flags.launcher));
  }
  for (const std::string& word : split_words(flags.launcher_args, ' ')) {
    if (!word.empty()) options.ssh_arguments.push_back(word);
  }
  if (!flags.ssh_port.empty()) {
    const int port = TROUPE_TRY(port_of("--ssh_port", flags.ssh_port));
    options.ssh_arguments.insert(options.ssh_arguments.end(), {"-p", std::to_string(port)});
  }
  return {};
}

// The variables and words of `troupe train` besides the script's own arguments.
Result<TroupeCommand> training(const DeepspeedFlags& flags, const RunOptions& options,
                               const OwnTraining& own, const LauncherContext& context) {
  TROUPE_RETURN_IF_ERROR(check_equal_slots(options.hosts));
  TroupeCommand command{.words = {"train"}, .environment = {}};
  command.words.insert(command.words.end(), own.arguments.begin(), own.arguments.end());
  command.environment = {{"FORCE_TORCHRUN", "1"}, {"NPROC_PER_NODE", options.processes}};
  if (options.starts_hosts) {
    add_hosts(options, context, command.words, command.environment);
  } else if (options.nodes_max > 1) {
    command.environment["NNODES"] = std::to_string(options.nodes_max);
    command.environment["NODE_RANK"] = flags.node_rank;
    command.environment["MASTER_ADDR"] = options.head_host;
    command.environment["MASTER_PORT"] = flags.master_port;
  }
  if (options.slots_are_gpus) {
    const auto& slots = options.hosts[static_cast<std::size_t>(options.node_rank)].slots;
    command.environment["CUDA_VISIBLE_DEVICES"] = join_numbers(slots, ",");
  }
  return command;
}

}  // namespace

Result<Invocation> deepspeed(std::span<const std::string> words, const LauncherContext& context) {
  DeepspeedFlags flags;
  FlagParser parser("deepspeed");
  declare(parser, flags);
  const auto rest = TROUPE_TRY(parser.parse(words));
  if (auto told = information(parser)) return std::move(*told);
  if (rest.empty()) {
    return Status(Code::kInvalidArgument,
                  "deepspeed: error: the following arguments are required: user_script");
  }
  Invocation invocation;
  RunOptions options;
  options.hosts = TROUPE_TRY(active_hosts(flags, context, invocation.notices));
  options.variables = RankVariables::kDeepSpeed;
  options.substitutes_local_rank = false;
  options.slots_are_gpus = options.hosts.size() > 1 || context.gpus_here() > 0;
  TROUPE_RETURN_IF_ERROR(set_machines(flags, options, invocation.notices));
  TROUPE_RETURN_IF_ERROR(read_exports(context, options));
  if (flags.elastic) options.max_restarts = kElasticRestarts;
  if (!flags.log_dir.empty()) {
    options.log_dir = flags.log_dir;
    options.redirects = TROUPE_TRY(StreamsByRank::parse("3"));
  }
  const Script script{.name = rest.front(),
                      .module = flags.module,
                      .no_python = flags.no_python,
                      .arguments = {rest.begin() + 1, rest.end()}};
  if (const auto own = TROUPE_TRY(own_training(script, context))) {
    invocation.notices.insert(invocation.notices.end(), own->notices.begin(), own->notices.end());
    invocation.what = TROUPE_TRY(training(flags, options, *own, context));
    return invocation;
  }
  options.program = program_of(script, context);
  if (!flags.no_local_rank) {
    options.local_rank_argument_at = options.program.size() - script.arguments.size();
  }
  invocation.what = RankCommand{std::move(options), std::nullopt};
  return invocation;
}

}  // namespace troupe::tools
