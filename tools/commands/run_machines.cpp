#include "tools/commands/run_machines.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "runtime/net/interfaces.h"
#include "scheduler/client/cluster_record.h"
#include "scheduler/policy/placement.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/host_addresses.h"
#include "tools/commands/node_flags.h"
#include "tools/commands/worker.h"
#include "train/trainer/trainer_messages.h"

namespace troupe::tools {
namespace {

constexpr Duration kHeadTimeout = std::chrono::seconds(30);
constexpr Duration kLookForNodes = std::chrono::milliseconds(50);
constexpr Duration kSayAgain = std::chrono::seconds(10);
constexpr Duration kNodesTimeout = std::chrono::seconds(10);
// Ranks that write faster than a console reads; beyond that lines are left out.
constexpr std::size_t kOutputBytesMax = 256u << 20;
constexpr Duration kHeadStopTimeout = std::chrono::seconds(5);
// A machine whose head is silent for so long ends its ranks: those of the others cannot go on.
constexpr double kOrphanTimeoutS = 30;

std::optional<int> number_label(const wire::NodeInfo& node, const char* name) {
  const auto label = node.labels.find(name);
  if (label == node.labels.end()) return std::nullopt;
  return parse_integer<int>(label->second);
}

RunMachine machine_from(const wire::NodeInfo& node, int processes) {
  return {.node_id = node.node_id,
          .name = node.name,
          .host = node.endpoint.host,
          .here = false,
          .processes = processes,
          .bundle_index = -1};
}

// A placement group that is asked for, and watched while this lives.
class WatchedGroup {
 public:
  WatchedGroup(scheduler::HeadClient& head, const wire::PlacementGroupSpec& spec) : head_(head) {
    head_.create_group(spec, [seen = seen_](const Status& status) {
      if (!status.ok()) seen->set(status);
    });
    watch_ = head_.watch_group(
        spec.group_id, {},
        [seen = seen_](const Result<wire::PlacementGroupInfo>& info) { seen->set(info); });
  }
  WatchedGroup(const WatchedGroup&) = delete;
  WatchedGroup& operator=(const WatchedGroup&) = delete;
  ~WatchedGroup() { head_.unwatch_group(watch_); }

  static bool reserved(const wire::PlacementGroupInfo& info) {
    return info.state == wire::PlacementGroupState::kCreated;
  }
  // What is known of it as soon as it is reserved or refused, and else after `most`.
  Result<wire::PlacementGroupInfo> wait(Duration most) {
    std::unique_lock lock(seen_->mutex);
    seen_->changed.wait_for(lock, most,
                            [&] { return !seen_->info.ok() || reserved(*seen_->info); });
    return seen_->info;
  }

 private:
  // The loop's thread may hold it a moment longer than the group is watched.
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    Result<wire::PlacementGroupInfo> info = wire::PlacementGroupInfo();

    void set(const Result<wire::PlacementGroupInfo>& now) {
      const std::lock_guard lock(mutex);
      if (info.ok()) info = now;  // the first error says why
      changed.notify_all();
    }
  };
  scheduler::HeadClient& head_;
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  scheduler::HeadClient::WatchId watch_{};
};

}  // namespace

Result<std::unique_ptr<RunMachines>> RunMachines::open(CommandContext& context,
                                                       const RunOptions& options,
                                                       const std::optional<std::string>& address) {
  std::unique_ptr<RunMachines> machines(new RunMachines(context, options));
  machines->job_id_ = JobId::make(context.random);
  if (address) {
    const auto place = TROUPE_TRY(find_cluster(context, address, {}));
    machines->token_ = place.token.token;
    TROUPE_RETURN_IF_ERROR(machines->connect(place.address));
    return machines;
  }
  scheduler::EmbeddedOptions embedded;
  embedded.ends_descendants = embedded.programs_read_input = true;
  embedded.output_limits = {.lines_per_s = 0, .bytes_per_s = 0, .queue_bytes = kOutputBytesMax};
  const NodeFlags none;
  const auto here = TROUPE_TRY(node_resources(context, none, {}));
  const int processes =
      TROUPE_TRY(processes_of_node(options.processes, whole_cpus(here), whole_gpus(here)));
  embedded.labels[kRunLabel] = options.run_id;
  embedded.labels[kProcessesLabel] = std::to_string(processes);
  const auto own =
      options.starts_hosts ? TROUPE_TRY(own_host(context, options.hosts)) : std::nullopt;
  const bool starts_hosts = options.starts_hosts && !(own && options.hosts.size() == 1);
  if (starts_hosts) {
    if (own) {
      embedded.labels[kProcessesLabel] = std::to_string(options.hosts[*own].slots.size());
      embedded.labels[train::kNodeRankLabel] = std::to_string(*own);
    } else {
      embedded.labels.erase(kRunLabel);  // it leads, and has no ranks
    }
    embedded.host = TROUPE_TRY(address_towards(context, options.head_host, options.hosts, own));
    embedded.port = options.head_port.value_or(0);
  } else if (!machines->one_machine()) {
    if (options.rendezvous == Rendezvous::kStatic) embedded.labels[train::kNodeRankLabel] = "0";
    net::SystemNetwork network(context.files);
    net::AddressOverride wanted;
    wanted.address = TROUPE_TRY(own_address_of(context, options.head_host));
    if (wanted.address.empty() && !TROUPE_TRY(is_this_machine(context, options.head_host))) {
      return error(Code::kInvalidArgument,
                   "this machine was told that it is node 0, and {} is not its address: start node "
                   "0 there, and this one with its own --node-rank (in a batch script an expanded "
                   "$SLURM_NODEID is 0 on every node)",
                   options.head_host);
    }
    embedded.host = TROUPE_TRY(net::choose_address(TROUPE_TRY(network.read()), wanted)).address;
    embedded.port = options.head_port.value_or(0);
    embedded.token = TROUPE_TRY(load_or_make_token(context, {})).token;
  }
  machines->cluster_ = TROUPE_TRY(scheduler::EmbeddedCluster::start(embedded));
  machines->token_ = machines->cluster_->token();
  TROUPE_RETURN_IF_ERROR(machines->connect(machines->cluster_->head_address()));
  if (starts_hosts) TROUPE_RETURN_IF_ERROR(machines->start_hosts(own));
  return machines;
}

Status RunMachines::start_hosts(std::optional<std::size_t> own) {
  std::vector<std::vector<std::string>> labels;
  for (const RunHost& host : options_.hosts) {
    labels.push_back({fmt::format("{}={}", kRunLabel, options_.run_id),
                      fmt::format("{}={}", kProcessesLabel, host.slots.size())});
  }
  remote_ = TROUPE_TRY(start_other_hosts(context_, options_.hosts, own, std::move(labels),
                                         options_.ssh_arguments, cluster_->head_address(), token_,
                                         options_.stop_grace));
  return {};
}

RunMachines::~RunMachines() {
  if (head_) head_->close();
}

bool RunMachines::one_machine() const { return options_.nodes_max == 1; }

Status RunMachines::connect(const net::Address& address) {
  thread_ = std::make_unique<net::LoopThread>("troupe-run");
  wire::ClientHello hello;
  hello.client_id = ClientId::make(context_.random);
  hello.job_id = job_id_;
  hello.name = fmt::format("troupe run {}", ::getpid());
  hello.kind = "driver";
  head_ = TROUPE_TRY(scheduler::HeadClient::connect(thread_->loop(), address, token_, hello,
                                                    Deadline::after(kHeadTimeout)));
  return {};
}

// --- who is there --------------------------------------------------------------------------------

Result<std::vector<RunMachine>> RunMachines::present() {
  auto nodes = TROUPE_TRY(head_->nodes(Deadline::after(kNodesTimeout)));
  std::erase_if(nodes, [](const auto& node) { return node.state != wire::NodeState::kAlive; });
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return std::tie(a.joined_unix_us, a.node_id) < std::tie(b.joined_unix_us, b.node_id);
  });
  std::vector<RunMachine> machines;
  if (running_cluster()) {
    int cpus = 0, gpus = 0;  // of the smallest: every node takes as many ranks
    for (const auto& node : nodes) {
      cpus = cpus == 0 ? whole_cpus(node.total) : std::min(cpus, whole_cpus(node.total));
      gpus = machines.empty() ? whole_gpus(node.total) : std::min(gpus, whole_gpus(node.total));
      machines.push_back(machine_from(node, 1));
    }
    const int processes = TROUPE_TRY(processes_of_node(options_.processes, cpus, gpus));
    for (auto& machine : machines) machine.processes = processes;
    return machines;
  }
  std::map<int, RunMachine> by_rank;
  const NodeId own = cluster_->node_id();
  for (const auto& node : nodes) {
    const auto run = node.labels.find(kRunLabel);
    const auto processes = number_label(node, kProcessesLabel);
    if (run == node.labels.end() || run->second != options_.run_id || !processes) continue;
    RunMachine machine = machine_from(node, *processes);
    machine.here = node.node_id == own;
    if (machine.here) machine.name = scheduler::host_name();
    if (options_.rendezvous == Rendezvous::kStatic && !one_machine()) {
      const auto rank = number_label(node, train::kNodeRankLabel);
      if (rank && *rank >= 0 && *rank < options_.nodes_max) by_rank.emplace(*rank, machine);
    } else if (machine.here) {
      machines.insert(machines.begin(), machine);  // where rank 0 listens for the others
    } else {
      machines.push_back(machine);
    }
  }
  for (auto& [rank, machine] : by_rank) machines.push_back(std::move(machine));
  return machines;
}

Result<std::vector<RunMachine>> RunMachines::gather(const Stopped& stopped) {
  if (running_cluster()) return reserve(stopped);
  const SystemClock clock;
  const TimePoint began = clock.now();
  std::optional<TimePoint> enough_since;
  TimePoint told_at = began;
  const auto wanted_max = static_cast<std::size_t>(options_.nodes_max);
  const auto wanted_min = static_cast<std::size_t>(options_.nodes_min);
  for (;;) {
    if (remote_) TROUPE_RETURN_IF_ERROR(remote_->failure());
    auto machines = TROUPE_TRY(present());
    const TimePoint now = clock.now();
    if (machines.size() > wanted_max) machines.resize(wanted_max);
    if (machines.size() == wanted_max) return machines;
    if (machines.size() >= wanted_min) {
      if (!enough_since) enough_since = now;
      if (now - *enough_since >= options_.last_call) return machines;
    } else {
      enough_since.reset();
    }
    const auto seconds = [](Duration time) {
      return std::chrono::duration_cast<std::chrono::seconds>(time).count();
    };
    if (!enough_since && now - began >= options_.join_timeout) {
      return error(Code::kDeadlineExceeded,
                   "{} of {} nodes are there after {} s: start the same command on the machines "
                   "that lack it{}",
                   machines.size(), options_.nodes_min, seconds(options_.join_timeout),
                   options_.rendezvous == Rendezvous::kStatic
                       ? ", each with its own --node-rank (in a batch script an expanded "
                         "$SLURM_NODEID is 0 everywhere)"
                       : "");
    }
    if (now - told_at >= kSayAgain || (told_at == began && now - began >= kSayAgain / 10)) {
      told_at = now;
      context_.err << fmt::format("{} of {} nodes are there; waiting, for {} s of {}\n",
                                  machines.size(),
                                  enough_since ? options_.nodes_max : options_.nodes_min,
                                  seconds(now - began), seconds(options_.join_timeout))
                   << std::flush;
    }
    if (stopped()) return Status(Code::kCancelled, "stopped while nodes were missing");
    std::this_thread::sleep_for(kLookForNodes);
  }
}

// As the head judges actors that are to start at once: a group waits for nodes that may join, also
// where the present ones never could hold it.
Status RunMachines::check_possible(const wire::PlacementGroupSpec& spec) {
  const auto nodes = TROUPE_TRY(head_->nodes(Deadline::after(kNodesTimeout)));
  scheduler::ClusterView idle;
  for (const auto& node : nodes) {
    if (node.state != wire::NodeState::kAlive) continue;
    idle.put(node.node_id, node.name, node.total, node.total, node.labels);
  }
  if (idle.size() == 0) {
    return Status(
        Code::kResourceExhausted,
        "the cluster has no worker node: start one with 'troupe worker --address HOST:PORT'");
  }
  std::vector<scheduler::Bundle> bundles;
  for (const auto& bundle : spec.bundles) bundles.push_back({.need = bundle.resources});
  const scheduler::PlacementRequest request{bundles, spec.strategy};
  if (scheduler::place_on_empty(request, idle)) return {};
  return error(Code::kResourceExhausted, "the cluster can never hold it: {}",
               scheduler::explain(request, idle));
}

// On a running cluster every attempt has a placement group of its own, a bundle a node.
Result<std::vector<RunMachine>> RunMachines::reserve(const Stopped& stopped) {
  if (options_.processes == "gpu") {
    return Status(Code::kUnsupported,
                  "nproc_per_node=gpu on a running cluster: a rank would see one GPU and be told "
                  "another's number. Run the command on each machine, with --node-rank");
  }
  if (!group_.empty()) {
    head_->remove_group(group_, "the attempt has ended", [](const Status&) {});
    group_ = {};
  }
  const SystemClock clock;
  const TimePoint began = clock.now();
  TimePoint told_at = began;
  wire::PlacementGroupInfo info;
  for (;;) {
    const auto machines = TROUPE_TRY(present());
    const auto nodes = std::clamp(machines.size(), static_cast<std::size_t>(options_.nodes_min),
                                  static_cast<std::size_t>(options_.nodes_max));
    const int processes = machines.empty() ? 1 : machines.front().processes;
    wire::PlacementGroupSpec spec;
    spec.group_id = group_ = GroupId::make(context_.random);
    spec.strategy = wire::PlacementStrategy::kStrictSpread;
    spec.bundles.resize(nodes);
    for (auto& bundle : spec.bundles) {
      bundle.resources[std::string(scheduler::kCpu)] = processes * wire::kResourceUnit;
    }
    spec.job_id = job_id_;
    // Later on a node that was lost may come back, or be replaced.
    if (!std::exchange(reserved_before_, true)) TROUPE_RETURN_IF_ERROR(check_possible(spec));
    WatchedGroup group(*head_, spec);
    // While it waits the nodes may become more or fewer: then another one is asked for.
    while (true) {
      info = TROUPE_TRY(group.wait(kLookForNodes));
      if (WatchedGroup::reserved(info)) break;
      const TimePoint now = clock.now();
      if (now - began >= options_.join_timeout) {
        return error(Code::kDeadlineExceeded, "no room for {} nodes with {} ranks each: {}", nodes,
                     processes, info.why);
      }
      if (now - told_at >= kSayAgain) {
        told_at = now;
        context_.err << fmt::format("waiting for {} nodes with {} CPUs each: {}\n", nodes,
                                    processes, info.why)
                     << std::flush;
      }
      if (stopped()) return Status(Code::kCancelled, "stopped while the ranks waited for room");
      if (options_.nodes_min < options_.nodes_max &&
          TROUPE_TRY(present()).size() != machines.size()) {
        break;
      }
    }
    if (WatchedGroup::reserved(info)) break;
    head_->remove_group(group_, "the nodes have changed", [](const Status&) {});
  }
  std::vector<RunMachine> reserved;
  const auto known = TROUPE_TRY(present());
  for (std::size_t i = 0; i < info.bundles.size(); ++i) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const RunMachine& machine) {
      return machine.node_id == info.bundles[i].node_id;
    });
    if (found == known.end()) {
      return error(Code::kUnavailable, "node {} was lost while the ranks were placed",
                   info.bundles[i].node_id.brief());
    }
    reserved.push_back(*found);
    reserved.back().bundle_index = static_cast<std::int32_t>(i);
  }
  return reserved;
}

void RunMachines::signal_here(int signal) {
  if (cluster_) cluster_->signal_programs(signal);
  if (remote_) remote_->signal(signal);
}

void RunMachines::end(int exit_code) {
  if (!cluster_ || (one_machine() && !remote_)) return;
  (void)head_->stop(run_end_text(exit_code), Deadline::after(kHeadStopTimeout));
  cluster_->wait_for_end(kHeadStopTimeout);
  if (remote_) remote_->end();
}

// --- the other machines --------------------------------------------------------------------------

Result<bool> is_head_machine(CommandContext& context, const RunOptions& options) {
  if (options.nodes_max == 1 || options.starts_hosts) return true;
  if (options.head_host.empty()) {
    return Status(Code::kInvalidArgument,
                  "several nodes, and no address of the first one: give --master-addr and "
                  "--master-port, or --rdzv-endpoint HOST:PORT");
  }
  if (options.rendezvous == Rendezvous::kStatic) return options.node_rank == 0;
  net::SystemNetwork network(context.files);
  const auto state = TROUPE_TRY(network.read());
  for (const std::string& address : addresses_of(options.head_host)) {
    for (const auto& own : state.addresses) {
      if (own.address == address) return true;
    }
  }
  return false;
}

Console::Streams console_streams(CommandContext& context) {
  return {.out = context.out,
          .err = context.err,
          .out_fd = &context.out == &std::cout ? STDOUT_FILENO : -1,
          .err_fd = &context.err == &std::cerr ? STDERR_FILENO : -1,
          .one_terminal = context.out_is_terminal && context.err_is_terminal};
}

Result<int> join_run(CommandContext& context, const RunOptions& options) {
  const auto here = TROUPE_TRY(node_resources(context, {}, {}));
  const int processes =
      TROUPE_TRY(processes_of_node(options.processes, whole_cpus(here), whole_gpus(here)));
  JoinOptions join;
  join.address = fmt::format("{}:{}", options.head_host, options.head_port.value_or(0));
  join.join_timeout_s = std::chrono::duration<double>(options.join_timeout).count();
  join.orphan_timeout_s = kOrphanTimeoutS;
  join.stop_grace = options.stop_grace;
  join.head_gets_signals = options.head_gets_signals;
  join.labels = {fmt::format("{}={}", kRunLabel, options.run_id),
                 fmt::format("{}={}", kProcessesLabel, processes)};
  if (options.rendezvous == Rendezvous::kStatic) {
    join.labels.push_back(fmt::format("{}={}", train::kNodeRankLabel, options.node_rank));
  }
  Console console(console_streams(context));
  CommandContext shown = with_streams(context, console.out(), console.err());
  join.on_output = [&console](const wire::OutputLine& line) {
    console.write(line.actor_id.to_string(), line.error_stream, line.new_text());
  };
  const auto ended = run_worker(shown, join);
  if (!ended.ok() || !exit_code_of_run(*ended)) console.hurry();  // a signal, or no head
  console.drain();
  const std::string reason = TROUPE_TRY(ended);
  if (const auto exit_code = exit_code_of_run(reason)) return *exit_code;
  context.err << fmt::format("troupe run: the run was stopped: {}\n", reason);
  return 1;
}

}  // namespace troupe::tools
