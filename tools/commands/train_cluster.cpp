#include "tools/commands/train_cluster.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/suggest.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/token.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/host_addresses.h"
#include "tools/commands/node_flags.h"
#include "tools/commands/run_leave.h"
#include "tools/commands/train_flags.h"
#include "tools/commands/worker.h"
#include "tools/launchers/hostfile.h"
#include "train/config/ray_settings.h"
#include "train/trainer/run_access.h"
#include "train/trainer/trainer_messages.h"

namespace troupe::tools {
namespace {

// How often the head is asked which nodes have come. It pushes to nodes and owners, not to tools.
constexpr Duration kLookAgain = std::chrono::milliseconds(100);
constexpr std::size_t kHostfileBytesMax = 1u << 20;
// A host's trainers may take so long to end when it leaves.
constexpr Duration kLeaveGrace = std::chrono::seconds(2);
// A machine that leaves: the head may be ending as well, and nothing is lost where it hears
// nothing.
constexpr double kLeaveTellS = 2;
constexpr Duration kTellAgain = std::chrono::seconds(10);
// The label of the machine that leads a run: what the others' launch variables have to say, too.
constexpr const char* kVariablesLabel = "troupe-run-variables";

Result<std::int64_t> cpus_here(CommandContext& context) {
  return whole_cpus(TROUPE_TRY(node_resources(context, {}, {})));
}

// Nodes that can take trainers, the CPUs of the smallest, and what the one with least memory offers
// where it is known how many trainers it will have. With NNODES those are the machines with a
// NODE_RANK, each of which gets its share of the ranks, as torchrun deals them out: `missing` gets
// the numbers of those that are not there.
Status measure(train::TrainingCluster& cluster, std::set<int>* missing = nullptr) {
  const auto nodes = TROUPE_TRY(cluster.cluster.nodes());
  std::set<int> there;
  cluster.node_count = 0;
  cluster.cores_per_node = 0;
  cluster.gpus = 0;
  cluster.memory.reset();
  const bool deal_out = cluster.machines > 0;
  for (const auto& node : nodes) {
    if (node.state != wire::NodeState::kAlive) continue;
    if (deal_out) {
      const auto machine = machine_of(node, cluster.machines);
      if (!machine || !there.insert(*machine).second) continue;
    }
    ++cluster.node_count;
    const std::int64_t cpus = whole_cpus(node.total);
    cluster.cores_per_node =
        cluster.cores_per_node == 0 ? cpus : std::min(cluster.cores_per_node, cpus);
    cluster.gpus += whole_gpus(node.total);
    const std::int64_t memory =
        scheduler::amount_of(node.total, scheduler::kMemory) / wire::kResourceUnit;
    if (memory > 0 && (!cluster.memory || memory < cluster.memory->available_bytes)) {
      cluster.memory =
          train::NodeMemory{.available_bytes = memory,
                            .total_bytes = memory,
                            .limit = fmt::format("what node {} offers", node.node_id.brief())};
    }
  }
  cluster.machines_there.assign(there.begin(), there.end());
  if (missing) {
    missing->clear();
    for (int rank = 0; rank < cluster.machines; ++rank) {
      if (!there.contains(rank)) missing->insert(rank);
    }
  }
  // Where the head packs the trainers is not known beforehand.
  if (!deal_out && cluster.node_count > 1) cluster.memory.reset();
  // Machines with a NODE_RANK are waited for.
  if (cluster.node_count == 0 && !deal_out) {
    return error(
        Code::kResourceExhausted,
        "the cluster has no worker node: start one with 'troupe worker --address HOST:PORT'");
  }
  return {};
}

// Until a machine is there for every NODE_RANK. Who is awaited is said at once, when one comes, and
// every ten seconds.
Status wait_for_machines(train::TrainingCluster& cluster, const train::LoadedConfig& loaded,
                         int interrupt_fd, train::ProgressOutput& output,
                         const RemoteHosts* started) {
  const Duration timeout = std::chrono::seconds(loaded.config.troupe.join_timeout_s);
  const bool numbered = loaded.launch.numbered_on_arrival();
  const SystemClock clock;
  const TimePoint began = clock.now();
  const auto seconds = [](Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  const auto least = loaded.launch.nodes_min;
  const Duration last_call = std::chrono::seconds(loaded.config.troupe.last_call_s);
  std::optional<TimePoint> enough_at;
  std::optional<TimePoint> told_at;
  std::set<int> told;
  for (;;) {
    if (started) TROUPE_RETURN_IF_ERROR(started->failure());
    std::set<int> missing;
    TROUPE_RETURN_IF_ERROR(measure(cluster, &missing));
    const TimePoint now = clock.now();
    const std::vector<int> numbers(missing.begin(), missing.end());
    if (missing.empty()) {
      output.write(fmt::format("{0} of {0} nodes are there\n", cluster.machines));
      return {};
    }
    const std::string which = numbered ? fmt::format("{} more", numbers.size())
                                       : fmt::format("NODE_RANK={}", join_numbers(numbers));
    if (least) {
      if (std::ssize(cluster.machines_there) < *least)
        enough_at.reset();
      else if (!enough_at)
        enough_at = now;
      if (enough_at && now - *enough_at >= last_call) {
        output.write(
            fmt::format("{} of {} nodes are there, MIN_NNODES={} are enough: the run begins, "
                        "others may join it\n",
                        cluster.machines_there.size(), cluster.machines, *least));
        return {};
      }
    }
    if (now - began >= timeout && !enough_at) {
      return error(Code::kDeadlineExceeded,
                   "{} of {} nodes are missing after {} s (troupe.join_timeout_s): start the same "
                   "command{} on the machines that lack it, with the same MASTER_ADDR and "
                   "MASTER_PORT",
                   missing.size(), cluster.machines, seconds(timeout),
                   numbered ? "" : " with " + which);
    }
    if (!told_at || told != missing || now - *told_at >= kTellAgain) {
      output.write(
          enough_at
              ? fmt::format("{} of {} nodes are there, MIN_NNODES={} are enough: the run begins in "
                            "{} s (troupe.last_call_s), or when all are there\n",
                            cluster.machines_there.size(), cluster.machines, *least,
                            seconds(last_call - (now - *enough_at)))
              : fmt::format("{} of {} nodes are there; waiting for {}, for {} s of {} "
                            "(troupe.join_timeout_s)\n",
                            cluster.node_count, cluster.machines, which, seconds(now - began),
                            seconds(timeout)));
      told_at = now;
      told = std::move(missing);
    }
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::min<Duration>(kLookAgain, began + timeout - now));
    pollfd interrupt{interrupt_fd, POLLIN, 0};
    if (::poll(&interrupt, 1, static_cast<int>(pause.count()) + 1) > 0) {
      return error(Code::kCancelled, "interrupted while {} of {} nodes were missing",
                   numbers.size(), cluster.machines);
    }
  }
}

// The launch variables that must be equal on all machines of a run.
std::string common_variables(const train::LaunchEnvironment& launch) {
  std::string text = launch.elastic() ? fmt::format("MIN_NNODES={} MAX_NNODES={}",
                                                    *launch.nodes_min, launch.node_count())
                                      : fmt::format("NNODES={}", launch.node_count());
  if (launch.rendezvous) text += " RDZV_ID=" + *launch.rendezvous;
  return text;
}

// Whether a machine with `own` resources has room for as many trainers as another one of the run's.
Status check_room(const std::vector<wire::ActorInfo>& actors, const wire::Resources& own) {
  std::map<NodeId, wire::Resources> taken;
  for (const wire::ActorInfo& actor : actors) {
    if (actor.rank < 0 || actor.node_id.empty()) continue;
    scheduler::add(taken[actor.node_id], actor.resources);
  }
  for (const auto& [node, need] : taken) {
    if (scheduler::fits(need, own)) return {};
  }
  if (taken.empty()) return {};
  return error(
      Code::kResourceExhausted,
      "this machine offers {}, and the run's trainers on a machine take {}: a machine with "
      "less cannot take part",
      scheduler::format_resources(own), scheduler::format_resources(taken.begin()->second));
}

// Whether the machine that leads the run of that head was started with the same variables, and this
// one has room for trainers of it. What cannot be found out is none of a machine's faults.
Status check_joiner(CommandContext& context, const std::string& address,
                    const train::LaunchEnvironment& launch) {
  const auto found =
      connect_cluster(context, {.address = address, .timeout_s = kLeaveTellS}, "troupe train");
  if (!found.ok()) return {};
  const auto nodes = (*found)->head->nodes((*found)->deadline);
  if (!nodes.ok()) return {};
  for (const wire::NodeInfo& node : *nodes) {
    const auto label = node.labels.find(kVariablesLabel);
    if (label == node.labels.end() || node.state == wire::NodeState::kDead) continue;
    if (label->second == common_variables(launch)) {
      const auto actors = (*found)->head->actors(false, (*found)->deadline);
      return actors.ok() ? check_room(*actors, TROUPE_TRY(node_resources(context, {}, {})))
                         : Status();
    }
    return error(Code::kInvalidArgument,
                 "the run at {} was begun with {}, and this machine has {}: give the same command "
                 "and variables on all machines",
                 address, label->second, common_variables(launch));
  }
  return {};
}

OnOutput into(train::ProgressOutput& output) {
  return [&output](const std::string& actor, std::string_view line) {
    output.write(fmt::format("[{}] {}\n", actor, line));
  };
}

EmbeddedOptions embedded_options(const train::LoadedConfig& loaded, train::ProgressOutput& output) {
  EmbeddedOptions options;
  options.resources = train::own_resources(loaded.config);
  options.job_name = "troupe train";
  options.on_output = into(output);
  return options;
}

// One machine: everything comes up here and goes down with the run.
Result<train::TrainingCluster> alone(CommandContext& context, const train::LoadedConfig& loaded,
                                     int trainers, train::ProgressOutput& output) {
  const std::int64_t cores = TROUPE_TRY(cpus_here(context));
  const std::int64_t threads =
      train::resolve_threads_per_worker(loaded.config, cores, std::max(1, trainers));
  EmbeddedOptions options = embedded_options(loaded, output);
  // More trainers than cores are allowed here, and said.
  options.num_cpus = std::max(static_cast<double>(cores),
                              trainers * train::cpus_per_trainer(loaded.config, threads));
  train::TrainingCluster result{.cluster = TROUPE_TRY(Cluster::start_embedded(options)),
                                .embedded = true};
  TROUPE_RETURN_IF_ERROR(measure(result));
  result.cores_per_node = cores;
  // This machine's memory is checked beforehand.
  result.memory.reset();
  return result;
}

// Node 0 of several: head, worker and driver in one, where the others find it.
Result<train::TrainingCluster> first_of_several(CommandContext& context,
                                                const train::LoadedConfig& loaded, int interrupt_fd,
                                                train::ProgressOutput& output) {
  const auto& launch = loaded.launch;
  net::SystemNetwork network(context.files);
  net::AddressOverride wanted;
  if (launch.master_addr) {
    wanted.address = TROUPE_TRY(own_address_of(context, *launch.master_addr));
    if (wanted.address.empty() && !TROUPE_TRY(is_this_machine(context, *launch.master_addr))) {
      return error(Code::kInvalidArgument,
                   "NODE_RANK=0, and MASTER_ADDR={} is no address of this machine: start node 0 "
                   "there, and this one with its own NODE_RANK",
                   *launch.master_addr);
    }
  }
  const auto choice = TROUPE_TRY(net::choose_address(TROUPE_TRY(network.read()), wanted));
  const auto token = TROUPE_TRY(load_or_make_token(context, {}));
  EmbeddedOptions options = embedded_options(loaded, output);
  options.host = choice.address;
  options.port = static_cast<std::uint16_t>(launch.master_port.value_or(0));
  options.token = token.token;
  options.labels[train::kNodeRankLabel] = "0";
  options.labels[kVariablesLabel] = common_variables(launch);
  auto cluster = TROUPE_TRY(Cluster::start_embedded(options));
  const auto& address = cluster.head_address();
  const std::string numbers = launch.numbered_on_arrival()
                                  ? std::string()
                                  : fmt::format(" and NODE_RANK=1…{}", launch.node_count() - 1);
  output.write(fmt::format(
      "{}\nnode 0 of {}: the others run the same command with MASTER_ADDR={} MASTER_PORT={}{}, "
      "and the same {}\n",
      choice.notice(), launch.node_count(), address.host, address.port, numbers, token.file));
  train::TrainingCluster result{.cluster = std::move(cluster),
                                .embedded = true,
                                .machines = static_cast<int>(launch.node_count()),
                                .machines_min = static_cast<int>(launch.nodes_min.value_or(0))};
  TROUPE_RETURN_IF_ERROR(wait_for_machines(result, loaded, interrupt_fd, output, nullptr));
  return result;
}

// The first of the hosts, or none of them, which starts the others.
Result<train::TrainingCluster> first_of_hosts(CommandContext& context,
                                              const train::LoadedConfig& loaded, int interrupt_fd,
                                              train::ProgressOutput& output, HostsOfRun& hosts) {
  const auto token = net::make_token(context.random);
  EmbeddedOptions options = embedded_options(loaded, output);
  options.host = hosts.address;
  options.token = token;
  // Without a number this machine gets no trainers.
  if (hosts.own) options.labels[train::kNodeRankLabel] = std::to_string(*hosts.own);
  train::TrainingCluster result{.cluster = TROUPE_TRY(Cluster::start_embedded(options)),
                                .embedded = true,
                                .machines = static_cast<int>(loaded.launch.node_count())};
  hosts.remote = TROUPE_TRY(start_other_hosts(
      context, hosts.hosts, hosts.own, std::vector<std::vector<std::string>>(hosts.hosts.size()),
      {}, result.cluster.head_address(), token, kLeaveGrace));
  TROUPE_RETURN_IF_ERROR(
      wait_for_machines(result, loaded, interrupt_fd, output, hosts.remote.get()));
  return result;
}

Result<train::TrainingCluster> running(CommandContext& context, const std::string& address,
                                       train::ProgressOutput& output) {
  const auto place = TROUPE_TRY(find_cluster(context, address, {}));
  ConnectOptions options{.host = place.address.host,
                         .port = place.address.port,
                         .token = place.token.token,
                         .job_name = "troupe train",
                         .on_output = into(output),
                         .environment = &context.environment};
  train::TrainingCluster result{.cluster = TROUPE_TRY(Cluster::connect(options)),
                                .embedded = false};
  TROUPE_RETURN_IF_ERROR(measure(result));
  return result;
}

// The value of a flag that stands at most once, "--name V" or "--name=V", taken out.
Result<std::optional<std::string>> take_flag(std::vector<std::string>& arguments,
                                             const std::string& flag) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i].starts_with(flag + "=")) {
      auto value = arguments[i].substr(flag.size() + 1);
      arguments.erase(at);
      return std::optional(std::move(value));
    }
    if (arguments[i] != flag) continue;
    if (i + 1 == arguments.size()) {
      return error(Code::kInvalidArgument, "{} needs a value", flag);
    }
    auto value = arguments[i + 1];
    arguments.erase(at, at + 2);
    return std::optional(std::move(value));
  }
  return std::optional<std::string>();
}

}  // namespace

Result<std::unique_ptr<HostsOfRun>> take_hosts(CommandContext& context,
                                               std::vector<std::string>& arguments) {
  const auto listed = TROUPE_TRY(take_flag(arguments, train_flags::kHosts.name));
  const auto file = TROUPE_TRY(take_flag(arguments, train_flags::kHostfile.name));
  const auto include = TROUPE_TRY(take_flag(arguments, train_flags::kInclude.name));
  const auto exclude = TROUPE_TRY(take_flag(arguments, train_flags::kExclude.name));
  auto run = std::make_unique<HostsOfRun>();
  if (listed) {
    run->hosts = TROUPE_TRY(parse_hosts(*listed));
  } else if (file) {
    run->hosts = TROUPE_TRY(filter_hosts(
        TROUPE_TRY(parse_hostfile(TROUPE_TRY(context.files.read(*file, kHostfileBytesMax)))),
        include.value_or(""), exclude.value_or("")));
    std::erase_if(run->hosts, [](const RunHost& host) { return host.slots.empty(); });
  } else if (include || exclude) {
    return Status(Code::kInvalidArgument, "--include and --exclude need --hostfile FILE");
  }
  if (run->hosts.empty()) return std::unique_ptr<HostsOfRun>();
  TROUPE_RETURN_IF_ERROR(check_equal_slots(run->hosts));
  run->own = TROUPE_TRY(own_host(context, run->hosts));
  if (run->own) {
    const auto first = run->hosts.begin();
    std::rotate(first, first + static_cast<std::ptrdiff_t>(*run->own),
                first + static_cast<std::ptrdiff_t>(*run->own) + 1);
    run->own = 0;
  }
  if (run->starts_others()) {
    run->address = TROUPE_TRY(address_towards(context, {}, run->hosts, run->own));
  }
  return run;
}

std::map<std::string, std::string> launch_variables(const HostsOfRun& hosts) {
  std::map<std::string, std::string> variables{
      {"FORCE_TORCHRUN", "1"},
      {"NPROC_PER_NODE", std::to_string(hosts.hosts.front().slots.size())}};
  if (hosts.starts_others()) {
    variables["NNODES"] = std::to_string(hosts.hosts.size());
    variables["NODE_RANK"] = "0";
    variables["MASTER_ADDR"] = hosts.address;
  }
  return variables;
}

Result<train::TrainingCluster> make_training_cluster(CommandContext& context,
                                                     const train::LoadedConfig& loaded,
                                                     int trainers, int interrupt_fd,
                                                     train::ProgressOutput& output,
                                                     HostsOfRun* hosts) {
  if (hosts) return first_of_hosts(context, loaded, interrupt_fd, output, *hosts);
  if (const auto address = train::resolve_address(loaded.config, loaded.launch)) {
    return running(context, *address, output);
  }
  if (loaded.launch.node_count() > 1)
    return first_of_several(context, loaded, interrupt_fd, output);
  return alone(context, loaded, trainers, output);
}

Result<bool> joins_another(CommandContext& context, const train::LoadedConfig& loaded) {
  const auto& launch = loaded.launch;
  if (!launch.numbered_on_arrival()) return launch.node_rank > 0;
  if (train::resolve_address(loaded.config, launch) || !launch.master_addr) return false;
  return !TROUPE_TRY(is_this_machine(context, *launch.master_addr));
}

Result<int> join_as_worker(CommandContext& context, const train::LoadedConfig& loaded,
                           bool head_gets_signals) {
  const auto& launch = loaded.launch;
  if (!launch.master_addr || !launch.master_port) {
    return error(Code::kInvalidArgument,
                 "NODE_RANK={} needs MASTER_ADDR and MASTER_PORT: those that node 0 prints",
                 launch.node_rank);
  }
  const auto timeout_s = static_cast<double>(loaded.config.troupe.join_timeout_s);
  const std::string address = fmt::format("{}:{}", *launch.master_addr, *launch.master_port);
  const auto left = std::make_shared<std::atomic<bool>>(false);
  std::function<Result<bool>(const NodeId&)> on_terminate;
  if (launch.elastic()) {
    on_terminate = [&context, address, left](const NodeId& self) -> Result<bool> {
      const Leaving told = TROUPE_TRY(
          leave_run(context, {.address = address, .timeout_s = kLeaveTellS}, self, "SIGTERM"));
      *left = told != Leaving::kNeeded;
      if (!*left) TROUPE_RETURN_IF_ERROR(save_and_stop_run(context, address));
      return left->load();
    };
  } else if (!head_gets_signals) {
    on_terminate = [&context, address](const NodeId&) -> Result<bool> {
      TROUPE_RETURN_IF_ERROR(save_and_stop_run(context, address));
      return false;
    };
  }
  const auto check = [&] { return check_joiner(context, address, launch); };
  // Where the run goes on already it is not disturbed. A head that is not up yet is asked later.
  TROUPE_RETURN_IF_ERROR(check());
  // Those beyond NNODES get the number of a machine that is lost.
  const std::string number = launch.numbered_on_arrival()
                                 ? fmt::format("first_free({})", launch.node_count())
                                 : std::to_string(launch.node_rank);
  const std::string reason = TROUPE_TRY(
      run_worker(context, {.address = address,
                           .join_timeout_s = timeout_s,
                           .orphan_timeout_s = timeout_s,
                           .labels = {fmt::format("{}={}", train::kNodeRankLabel, number)},
                           .head_gets_signals = head_gets_signals && !launch.elastic(),
                           .passes_signals_on = !head_gets_signals,
                           .on_terminate = on_terminate,
                           .on_joined = check}));
  if (const auto exit_code = exit_code_of_run(reason)) {
    if (*exit_code != 0) {
      context.err << fmt::format(
          "troupe train: the run has ended with code {}: the machine that leads it says why\n",
          *exit_code);
    }
    return *exit_code;
  }
  if (*left) {
    context.err
        << "troupe train: SIGTERM: this machine leaves; a run that has begun goes on without it\n";
    return 128 + SIGTERM;
  }
  if (const auto by = drained_by(reason)) {
    context.err << fmt::format(
        "troupe train: this machine was drained by {}: it has left, and the run goes on without "
        "it\n",
        *by);
    return 0;
  }
  if (const auto signal = signal_that_ended(reason)) {
    context.err << fmt::format(
        "troupe train: {}: this machine has left the run, for which it is lost: the others go on "
        "without it where they can, or wait for it\n",
        signal_name(*signal));
    return 128 + *signal;
  }
  context.err << fmt::format("troupe train: the run was stopped: {}\n", reason);
  return 1;
}

}  // namespace troupe::tools
