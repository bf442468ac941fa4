// torchrun's command line, as torch/distributed/run.py (2.8.0) reads it.

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/launchers/flag_parser.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/hostfile.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"
#include "tools/launchers/slurm.h"

namespace troupe::tools {
namespace {

constexpr std::uint16_t kC10dPort = 29400;
constexpr std::uint16_t kStaticPort = 29500;
constexpr std::size_t kHostfileBytesMax = 1u << 20;

struct TorchrunFlags {
  std::string nnodes = "1:1", nproc_per_node = "1", rdzv_backend = "static", rdzv_endpoint;
  std::string rdzv_id = "none", rdzv_conf, max_restarts = "0", role = "default", log_dir;
  std::string redirects = "0", tee = "0", local_ranks_filter, node_rank = "0";
  std::string master_addr = "127.0.0.1", master_port = std::to_string(kStaticPort);
  bool standalone = false, module = false, no_python = false;
};

Result<std::int64_t> number_of(const char* flag, const std::string& text, std::int64_t least,
                               std::int64_t most) {
  const auto value = parse_integer<std::int64_t>(text);
  if (!value) {
    return error(Code::kInvalidArgument, "error: argument {}: invalid int value: '{}'", flag, text);
  }
  if (*value < least || *value > most) {
    return error(Code::kInvalidArgument, "{} is {}: from {} to {}", flag, *value, least, most);
  }
  return *value;
}

// "k=v,k=v"
Result<std::map<std::string, std::string>> rendezvous_settings(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (const std::string& part : split_words(text, ',')) {
    const std::string entry(trim(part));
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    const std::string key(trim(entry.substr(0, equals)));
    const std::string value =
        equals == std::string::npos ? std::string() : std::string(trim(entry.substr(equals + 1)));
    if (value.empty()) {
      return error(Code::kInvalidArgument,
                   "The rendezvous configuration option '{}' must have a value specified.", key);
    }
    settings[key] = value;
  }
  return settings;
}

// HOST[:PORT], with an IPv6 address in brackets.
Status set_endpoint(const std::string& text, std::uint16_t port_otherwise, RunOptions& options) {
  std::string host = text, port;
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : std::string::npos;
  const std::size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (bracket != std::string::npos) host = text.substr(1, bracket - 1);
  options.head_host = host;
  options.head_port = port_otherwise;
  if (!port.empty()) {
    options.head_port =
        static_cast<std::uint16_t>(TROUPE_TRY(number_of("--rdzv-endpoint", port, 1, 65535)));
  }
  return {};
}

Status set_rendezvous(const TorchrunFlags& flags, bool address_given, bool port_given,
                      std::vector<std::string>& notices, RunOptions& options) {
  const auto settings = TROUPE_TRY(rendezvous_settings(flags.rdzv_conf));
  const auto seconds = [&](const char* key, Duration& into) -> Status {
    const auto found = settings.find(key);
    if (found == settings.end()) return {};
    into = std::chrono::seconds(TROUPE_TRY(number_of(key, found->second, 1, 86400 * 365)));
    return {};
  };
  const bool dynamic = flags.standalone || flags.rdzv_backend == "c10d";
  if (!dynamic && flags.rdzv_backend != "static") {
    if (flags.rdzv_backend.starts_with("etcd")) {
      return error(Code::kUnsupported, "--rdzv-backend={}: use c10d; no etcd is needed",
                   flags.rdzv_backend);
    }
    return error(
        Code::kInvalidArgument,
        "The rendezvous backend '{}' is not registered. Did you forget to call `register`? "
        "There are static and c10d",
        flags.rdzv_backend);
  }
  options.rendezvous = dynamic ? Rendezvous::kDynamic : Rendezvous::kStatic;
  options.join_timeout = dynamic ? std::chrono::seconds(600) : std::chrono::seconds(900);
  TROUPE_RETURN_IF_ERROR(seconds(dynamic ? "join_timeout" : "timeout", options.join_timeout));
  TROUPE_RETURN_IF_ERROR(seconds("last_call_timeout", options.last_call));
  if (options.nodes_max == 1) {
    if (port_given && !dynamic) {
      options.head_port = static_cast<std::uint16_t>(
          TROUPE_TRY(number_of("--master-port", flags.master_port, 1, 65535)));
    }
    return {};
  }
  if (flags.standalone) {
    return error(Code::kInvalidArgument,
                 "--standalone is one node, and --nnodes is {}: leave one of them out",
                 flags.nnodes);
  }
  if (!flags.rdzv_endpoint.empty()) {
    return set_endpoint(flags.rdzv_endpoint, dynamic ? kC10dPort : kStaticPort, options);
  }
  if (dynamic && address_given) {
    notices.push_back(
        "--master-addr and --master-port have no effect with --rdzv-backend=c10d in torchrun; "
        "without --rdzv-endpoint they name the first node here");
  }
  options.head_host = flags.master_addr;
  options.head_port = static_cast<std::uint16_t>(
      TROUPE_TRY(number_of("--master-port", flags.master_port, 1, 65535)));
  return {};
}

// What LLaMA-Factory's launcher would have set for the training.
std::map<std::string, std::string> training_environment(const TorchrunFlags& flags,
                                                        const RunOptions& options) {
  std::map<std::string, std::string> variables{{"FORCE_TORCHRUN", "1"},
                                               {"NPROC_PER_NODE", options.processes},
                                               {"MAX_RESTARTS", flags.max_restarts}};
  if (options.nodes_max > 1) {
    if (options.nodes_min < options.nodes_max) {
      variables["MIN_NNODES"] = std::to_string(options.nodes_min);
      variables["MAX_NNODES"] = std::to_string(options.nodes_max);
    } else {
      variables["NNODES"] = std::to_string(options.nodes_max);
    }
    if (options.rendezvous == Rendezvous::kDynamic) {
      variables["RDZV_ID"] = flags.rdzv_id;
    } else {
      variables["NODE_RANK"] = flags.node_rank;
    }
    variables["MASTER_ADDR"] = options.head_host;
    variables["MASTER_PORT"] = std::to_string(options.head_port.value_or(kStaticPort));
  }
  return variables;
}

// What --rdzv-conf says of the timeouts that a training has keys for, as these.
Result<std::vector<std::string>> training_timeouts(const TorchrunFlags& flags,
                                                   const RunOptions& options) {
  std::vector<std::string> keys;
  const bool dynamic = options.rendezvous == Rendezvous::kDynamic;
  const auto settings = TROUPE_TRY(rendezvous_settings(flags.rdzv_conf));
  for (const auto& [name, key] :
       {std::pair(dynamic ? "join_timeout" : "timeout", "troupe.join_timeout_s"),
        std::pair("last_call_timeout", "troupe.last_call_s")}) {
    if (const auto found = settings.find(name); found != settings.end())
      keys.push_back(fmt::format("{}={}", key, found->second));
  }
  return keys;
}

// The machines of `troupe run --hostfile`.
struct HostFlags {
  std::string hostfile, include, exclude, ssh_port;
};

Status set_hosts(const HostFlags& flags, const FlagParser& parser, bool address_given,
                 const LauncherContext& context, RunOptions& options) {
  if (flags.hostfile.empty()) {
    for (const char* other : {"include", "exclude", "ssh_port"}) {
      if (!parser.given(other)) continue;
      return error(Code::kInvalidArgument, "--{} needs --hostfile FILE", other);
    }
    return {};
  }
  for (const char* other : {"nnodes", "node_rank", "rdzv_endpoint", "rdzv_backend", "standalone"}) {
    if (!parser.given(other)) continue;
    return error(Code::kInvalidArgument, "--hostfile says which machines there are: leave --{} out",
                 other);
  }
  if (address_given) {
    return Status(Code::kInvalidArgument, "--hostfile and --address exclude each other");
  }
  options.hosts = TROUPE_TRY(filter_hosts(
      TROUPE_TRY(parse_hostfile(TROUPE_TRY(context.files.read(flags.hostfile, kHostfileBytesMax)))),
      flags.include, flags.exclude));
  std::erase_if(options.hosts, [](const RunHost& host) { return host.slots.empty(); });
  if (options.hosts.empty()) {
    return error(Code::kInvalidArgument, "{}: no host has a slot", flags.hostfile);
  }
  options.slots_are_gpus = !parser.given("nproc_per_node");
  if (parser.given("nproc_per_node")) {
    const int processes = TROUPE_TRY(processes_of_node(options.processes, 1, 1));
    for (RunHost& host : options.hosts) {
      host.slots.clear();
      for (int slot = 0; slot < processes; ++slot) host.slots.push_back(slot);
    }
  }
  options.processes = std::to_string(options.hosts.front().slots.size());
  options.nodes_min = options.nodes_max = static_cast<int>(options.hosts.size());
  options.starts_hosts = true;
  options.head_host = parser.given("master_addr") ? options.head_host : std::string();
  options.head_port = parser.given("master_port") ? options.head_port : std::nullopt;
  if (!flags.ssh_port.empty()) {
    const auto port = TROUPE_TRY(number_of("--ssh-port", flags.ssh_port, 1, 65535));
    options.ssh_arguments = {"-p", std::to_string(port)};
  }
  return {};
}

// What a step of SLURM's says of the machines. `all`: which there are, and their ranks, too.
void set_step(const SlurmTask& task, bool all, const FlagParser& parser,
              std::vector<std::string>& notices, RunOptions& options) {
  options.head_gets_signals = true;
  if (!all) {
    if (options.rendezvous != Rendezvous::kStatic || options.nodes_max == 1) return;
    if (auto notice = expanded_node_rank(task, options.node_rank, options.nodes_max);
        !notice.empty() && parser.given("node_rank")) {
      notices.push_back(std::move(notice));
      options.node_rank = task.node;
    }
    return;
  }
  options.machines_from_slurm = true;
  options.nodes_min = options.nodes_max = task.nodes_count();
  options.rendezvous = Rendezvous::kStatic;
  options.node_rank = task.node;
  options.head_host = task.nodes.front();
  options.head_port = static_cast<std::uint16_t>(task.port());
  if (!parser.given("nproc_per_node")) options.processes = std::to_string(task.tasks_here());
}

// The flags of `troupe run` besides torchrun's.
struct OwnFlags {
  std::optional<std::string> address, standby_after;
  HostFlags machines;
  bool no_standby = false;
};

void declare_own(FlagParser& parser, OwnFlags& flags) {
  parser.section("Machines, besides torchrun's ways")
      .value("address", flags.address, "HOST:PORT",
             "start the ranks on nodes of this running cluster")
      .value(
          "hostfile", flags.machines.hostfile, "FILE",
          "a file with hosts, which are started over ssh with a rank for each slot: lines of the "
          "form 'worker-1 slots=4'")
      .value("include", flags.machines.include, "HOSTS",
             "only these of the hostfile's hosts and slots: 'worker-1@worker-2:0,2'")
      .value("exclude", flags.machines.exclude, "HOSTS",
             "all of the hostfile's hosts and slots but these")
      .value("ssh-port", flags.machines.ssh_port, "PORT",
             "the port of the hosts' ssh servers (default: that of ssh's configuration)")
      .section("Restarts, besides torchrun's flags")
      .toggle("no-standby", flags.no_standby,
              "keep no Python interpreters ready that have done the script's imports, for restarts")
      .value("standby-after", flags.standby_after, "SECONDS",
             "how long after the ranks' start those interpreters are started (default: 5)");
}

void declare(FlagParser& parser, TorchrunFlags& flags) {
  parser.section("Nodes and ranks")
      .value("nnodes", flags.nnodes, "N|MIN:MAX", "the number of nodes")
      .value("nproc-per-node", flags.nproc_per_node, "N|auto|cpu|gpu",
             "the number of ranks on each node")
      .value("node-rank", flags.node_rank, "N", "this node's number, with --rdzv-backend static")
      .toggle("standalone", flags.standalone, "run on this node alone, at a free port")
      .section("How nodes find each other")
      .value("rdzv-backend", flags.rdzv_backend, "static|c10d",
             "static: every node has its --node-rank; c10d: nodes may come in any order")
      .value("rdzv-endpoint", flags.rdzv_endpoint, "HOST[:PORT]", "the address of the first node")
      .value("master-addr", flags.master_addr, "HOST", "the address of the first node, with static")
      .value("master-port", flags.master_port, "PORT", "the port of the first node, with static")
      .value("rdzv-id", flags.rdzv_id, "TEXT", "the run's name, the same on every node")
      .value("rdzv-conf", flags.rdzv_conf, "K=V,K=V",
             "timeouts in seconds: join_timeout, last_call_timeout, timeout")
      .section("The script")
      .toggle("module|m", flags.module, "SCRIPT is a module's name, as for python -m")
      .toggle("no-python", flags.no_python, "SCRIPT is a program that is started without Python")
      .value("role", flags.role, "TEXT", "the ranks' role, which they find in their environment")
      .section("Failures and output")
      .value("max-restarts", flags.max_restarts, "N", "how often all ranks may be started again")
      .value("log-dir", flags.log_dir, "DIR",
             "the directory that keeps the ranks' output files (default: a temporary one)")
      .value("redirects|r", flags.redirects, "0|1|2|3|RANK:N,…",
             "write to files: 0 nothing, 1 standard output, 2 standard error, 3 both")
      .value("tee|t", flags.tee, "0|1|2|3|RANK:N,…", "write the same to files and to the console")
      .value("local-ranks-filter", flags.local_ranks_filter, "N,N",
             "the local ranks whose output the console shows (default: all)")
      .inert("run-path", false)
      .inert("monitor-interval", true)
      .inert("start-method", true)
      .inert("event-log-handler", true)
      .inert("local-addr", true)
      .refused("logs-specs", true,
               "plug-ins of Python's are not loaded; use --log-dir, "
               "--redirects and --tee");
}

Result<Invocation> read(std::span<const std::string> words, const LauncherContext& context,
                        bool ours) {
  TorchrunFlags flags;
  OwnFlags own;
  FlagParser parser("");
  parser.about(
      "torchrun [flags] SCRIPT [its arguments]",
      "Runs a Python script, or a program, in ranks on one machine or several. Where the script is "
      "LLaMA-Factory's or Axolotl's, Troupe trains in its place.",
      {"torchrun --nproc-per-node 4 train.py --lr 0.1",
       "torchrun --standalone --nproc-per-node auto --max-restarts 3 train.py",
       "torchrun --nnodes 2 --node-rank 1 --master-addr 10.0.0.2 --master-port 29500 train.py",
       "torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint 10.0.0.2:29400 train.py"});
  if (ours) declare_own(parser, own);
  declare(parser, flags);
  TROUPE_RETURN_IF_ERROR(parser.read_environment("PET_", context.environment));
  auto rest = TROUPE_TRY(parser.parse(words));
  if (auto told = information(parser)) {
    // The help of our own command has its examples and notes, too.
    if (ours && parser.help_wanted()) told->what = TroupeCommand{{"help", "run"}, {}};
    return std::move(*told);
  }
  if (rest.empty()) {
    return Status(Code::kInvalidArgument,
                  "error: the following arguments are required: training_script");
  }
  if (flags.no_python && flags.module) {
    return Status(
        Code::kInvalidArgument,
        "Don't use both the '--no-python' flag and the '--module' flag at the same time.");
  }
  Invocation invocation;
  RunOptions options;
  const auto nodes = TROUPE_TRY(parse_nodes(flags.nnodes));
  options.nodes_min = nodes.first;
  options.nodes_max = nodes.second;
  options.processes = flags.nproc_per_node;
  TROUPE_RETURN_IF_ERROR(processes_of_node(options.processes, 1, 1).status());
  options.node_rank =
      static_cast<int>(TROUPE_TRY(number_of("--node-rank", flags.node_rank, 0, 1 << 16)));
  const bool address_given = parser.given("master_addr") || parser.given("master_port");
  TROUPE_RETURN_IF_ERROR(set_rendezvous(flags, address_given, parser.given("master_port"),
                                        invocation.notices, options));
  // On a running cluster the nodes are the cluster's, and may become more or fewer.
  const auto of_job = context.environment.get("TROUPE_ADDRESS");
  const bool on_cluster = own.address || (of_job && !of_job->empty());
  if (on_cluster && !parser.given("rdzv_backend")) options.rendezvous = Rendezvous::kDynamic;
  if (options.rendezvous == Rendezvous::kStatic && options.nodes_min != options.nodes_max) {
    return error(Code::kInvalidArgument,
                 "--nnodes={} needs --rdzv-backend=c10d: with static every node has its "
                 "number",
                 flags.nnodes);
  }
  if (options.rendezvous == Rendezvous::kStatic && options.node_rank >= options.nodes_max) {
    return error(Code::kInvalidArgument, "--node-rank={} of {} nodes, which count from 0",
                 options.node_rank, options.nodes_max);
  }
  if (ours) {
    TROUPE_RETURN_IF_ERROR(
        set_hosts(own.machines, parser, own.address.has_value(), context, options));
  }
  if (const auto task = TROUPE_TRY(read_slurm_task(context.environment));
      task && !own.address && !options.starts_hosts) {
    set_step(*task, ours && !parser.given("nnodes"), parser, invocation.notices, options);
  }
  Script script{.name = rest.front(),
                .module = flags.module,
                .no_python = flags.no_python,
                .arguments = {rest.begin() + 1, rest.end()}};
  if (ours && find_launcher(script.name) != nullptr) {
    return error(Code::kInvalidArgument,
                 "{0} has flags of its own for nodes and processes: troupe run -- {0} …",
                 script.name);
  }
  // "-" is a script that Python reads from standard input.
  if (ours && !script.module && !script.name.ends_with(".py") && script.name != "-") {
    script.no_python = true;
  }
  if (auto training = TROUPE_TRY(own_training(script, context))) {
    TroupeCommand command{.words = {"train"}, .environment = training_environment(flags, options)};
    if (options.starts_hosts) {
      command.environment = {{"FORCE_TORCHRUN", "1"}, {"NPROC_PER_NODE", options.processes}};
      add_hosts(options, context, command.words, command.environment);
    }
    command.words.insert(command.words.end(), training->arguments.begin(),
                         training->arguments.end());
    for (std::string& key : TROUPE_TRY(training_timeouts(flags, options))) {
      const std::string name = key.substr(0, key.find('=') + 1);
      const auto given = [&](const std::string& word) { return word.starts_with(name); };
      if (std::ranges::none_of(training->arguments, given)) command.words.push_back(std::move(key));
    }
    invocation.notices.insert(invocation.notices.end(), training->notices.begin(),
                              training->notices.end());
    invocation.what = std::move(command);
    return invocation;
  }
  options.program = program_of(script, context);
  options.run_id = flags.rdzv_id;
  options.role = flags.role;
  options.max_restarts =
      static_cast<int>(TROUPE_TRY(number_of("--max-restarts", flags.max_restarts, 0, 1 << 20)));
  options.redirects = TROUPE_TRY(StreamsByRank::parse(flags.redirects));
  options.tee = TROUPE_TRY(StreamsByRank::parse(flags.tee));
  for (const std::string& rank : split_words(flags.local_ranks_filter, ',')) {
    options.console_ranks.push_back(
        static_cast<int>(TROUPE_TRY(number_of("--local-ranks-filter", rank, 0, 1 << 16))));
  }
  options.log_dir = flags.log_dir;
  options.ends_with_ranks_code = ours;
  options.standbys = !own.no_standby;
  if (own.standby_after) {
    options.standby_after = std::chrono::seconds(
        TROUPE_TRY(number_of("--standby-after", *own.standby_after, 0, 86400)));
  }
  if (!context.environment.get("OMP_NUM_THREADS") && options.processes != "1") {
    invocation.notices.push_back(
        "OMP_NUM_THREADS is 1 in every rank, so that they do not slow each other down: set it to "
        "what is best for the program");
  }
  invocation.what = RankCommand{std::move(options), std::move(own.address)};
  return invocation;
}

}  // namespace

Result<Invocation> torchrun(std::span<const std::string> words, const LauncherContext& context) {
  auto invocation = read(words, context, false);
  if (!invocation.ok()) return invocation.status().prefixed("torchrun");
  return invocation;
}

std::string troupe_run_flags() {
  TorchrunFlags flags;
  OwnFlags own;
  FlagParser parser("");
  declare_own(parser, own);
  declare(parser, flags);
  return parser.flags_help();
}

Result<Invocation> troupe_run(std::span<const std::string> words, const LauncherContext& context) {
  return read(words, context, true);
}

}  // namespace troupe::tools
