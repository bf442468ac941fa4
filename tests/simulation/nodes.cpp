// The nodes: daemons around their state machine, keepers, processes.

#include <algorithm>

#include "cluster.h"
#include "scheduler/node/kept_keys.h"
#include "scheduler/policy/resources.h"

namespace troupe::simulation {

using namespace scheduler;
using std::chrono::milliseconds;

namespace {

// How long a node that stood still may take to end what is over: it looks at its clock at once,
// and a process may be in the kernel for a while.
constexpr auto kExcusedAfterThaw = milliseconds(500);
// A node that reaches the head has ended by then what that does not want.
constexpr auto kStaleEndsWithin = milliseconds(1000);

// Whether nothing is heard by which a node may end an actor that may run twice: time passes, and
// the head is there or is not.
bool gives_no_reason(const NodeEvent& event) {
  if (const auto* said = get_if<node_event::FromHead>(&event)) {
    return holds_alternative<wire::Heartbeat>(said->message);
  }
  return holds_alternative<node_event::Tick>(event) ||
         holds_alternative<node_event::HeadUp>(event) ||
         holds_alternative<node_event::HeadDown>(event) ||
         holds_alternative<node_event::Adopt>(event);
}

// Whether a node may hold more for placement groups after this than before.
bool may_reserve(const NodeEvent& event) {
  const auto* said = get_if<node_event::FromHead>(&event);
  return said != nullptr && (holds_alternative<wire::PrepareBundles>(said->message) ||
                             holds_alternative<wire::RegisterNodeReply>(said->message));
}

}  // namespace

// --- the machine ---------------------------------------------------------------------------------

void Cluster::boot_node(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (node.up) return;
  by_id_.erase(node.id);
  node.id = NodeId::make(world_.random);
  by_id_[node.id] = number;
  node.total = options_.node_total(number);
  node.up = true;
  node.is_cut = node.silent = false;
  ++node.boots;
  world_.note("node {} boots as {}", number, node.id.brief());
  start_daemon(number);
}

void Cluster::crash_node(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.up) return;
  const bool silently = node.silent = options_.silent_crashes && world_.chance(2);
  world_.note("node {} crashes{}", number, silently ? ", and nobody is told" : "");
  if (silently) {
    for (const auto& end : node.links) {
      if (const LinkPtr link = end.lock()) link->far_open = false;
    }
  }
  node_gone(number);
}

void Cluster::node_gone(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  node.up = false;
  ++node.memory_life;
  lose_daemon(number);
  end_processes(number);
  node.unread.clear();
  node.later.clear();
  node.frozen_pids.clear();
  node.is_cut = node.frozen = false;
  const auto ends = node.links;
  for (const auto& end : ends) {
    if (const LinkPtr link = end.lock()) flush(link);
  }
}

// With what was kept for them.
void Cluster::end_processes(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  for (const auto& [host, entry] : node.hosts) {
    if (Process* process = find(entry.pid)) die(*process);
  }
  node.hosts.clear();
  node.kept.clear();
}

void Cluster::leave(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.state) return;
  world_.note("node {} is to leave", number);
  feed_node(number, node_event::ShutDown{"its operator ended it"});
}

void Cluster::freeze(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.up || node.frozen) return;
  node.frozen = true;
  for (const auto& [host, entry] : node.hosts) {
    Process* process = find(entry.pid);
    if (!process->alive() || process->stopped()) continue;
    process->stop();
    node.frozen_pids.push_back(entry.pid);
  }
}

void Cluster::thaw(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.frozen) return;
  node.frozen = false;
  node.excused_until = world_.timeline.now() + kExcusedAfterThaw;
  for (const std::uint64_t pid : std::exchange(node.frozen_pids, {})) {
    if (Process* process = find(pid); process->alive()) process->go_on();
  }
  world_.timeline.after(kExcusedAfterThaw, [this, number] {
    if (excused(number)) return;
    for (const auto& [host, entry] : at(number).hosts) {
      if (const Process* process = find(entry.pid); process->alive()) check_alone(*process);
    }
  });
  const std::uint64_t boot = node.boots;
  auto later = std::exchange(node.later, {});
  while (!later.empty()) {
    const auto what = std::move(later.front());
    later.pop_front();
    what();
    if (node.boots != boot || !node.up) return;
    if (!node.frozen) continue;
    node.later.insert(node.later.begin(), later.begin(), later.end());
    return;
  }
}

void Cluster::when_awake(int number, std::function<void()> what) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (node.frozen) {
    node.later.push_back(std::move(what));
  } else {
    what();
  }
}

void Cluster::cut(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.up || node.is_cut) return;
  world_.note("node {} is cut off from the head", number);
  node.is_cut = true;
}

void Cluster::mend(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.is_cut) return;
  world_.note("node {} reaches the head again", number);
  node.is_cut = false;
  const auto ends = node.links;
  for (const auto& end : ends) {
    if (const LinkPtr link = end.lock()) flush(link);
  }
}

void Cluster::break_link(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.link || !node.link->far_open) return;
  world_.note("the connection of node {} breaks", number);
  const LinkPtr link = std::exchange(node.link, nullptr);
  close_from_far(link, world_.chance(2));
  feed_node(number, node_event::HeadDown{Status(Code::kUnavailable, "the connection broke")});
}

// --- the daemon ----------------------------------------------------------------------------------

void Cluster::start_daemon(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.up || node.state) return;
  NodeConfig config;
  config.node.node_id = node.id;
  config.node.name = fmt::format("node-{}", number);
  config.node.endpoint = {"simulated", static_cast<std::uint16_t>(1000 + number), ""};
  config.node.total = node.total;
  if (options_.node_labels) config.node.labels = options_.node_labels(number);
  config.fence_grace = options_.fence_grace;
  node.state = std::make_unique<scheduler::NodeState>(std::move(config), world_.timeline.now());
  node.daemon_dies = false;
  ++node.daemons;
  node.tick_at.reset();
  if (node.kept.contains(kNodeKey)) {
    world_.note("node {} has a new daemon", number);
    // Nothing that was told to the daemon before is known to this one.
    for (auto& [id, host] : node.hosts) {
      host.kill_wanted = host.leader_told = host.gone_told = false;
    }
    node_event::Adopt adopt;
    std::vector<HostId> missing;
    for (const auto& [key, kept] : node.kept) {
      if (const auto* known = get_if<wire::KeptNode>(&kept.record)) adopt.node = *known;
      if (const auto* segment = get_if<wire::KeptSegment>(&kept.record)) {
        adopt.segments.push_back({*segment, hold(node, kept.memory)});
      }
      const bool actors = key.starts_with(kActorKeys);
      require(!actors || kept.start, "the keeper of node {} has half of the record {}", number,
              key);
      if (!kept.start) continue;
      node_event::Adopt::Actor actor;
      actor.kept = get<wire::KeptActor>(kept.record);
      actor.spec = kept.start->spec;
      actor.state_lost_with = kept.start->state_lost_with;
      const auto saved = node.kept.find(saved_state_key(actor.kept.actor_id));
      if (saved != node.kept.end()) actor.saved_state = hold(node, saved->second.memory);
      const auto host = node.hosts.find(actor.kept.host);
      if (host != node.hosts.end()) {
        actor.pid = static_cast<std::int64_t>(host->second.pid);
      } else if (actor.kept.host != 0) {
        missing.push_back(actor.kept.host);
      }
      adopt.actors.push_back(std::move(actor));
    }
    feed_node(number, std::move(adopt));
    for (const HostId host : missing) {
      feed_node(number, node_event::SpawnFailed{host, Status(Code::kUnavailable, "not started")});
    }
    while (!node.unread.empty() && node.state) {
      const auto what = std::move(node.unread.front());
      node.unread.pop_front();
      what();
    }
    std::vector<HostId> ended;
    for (const auto& [id, host] : node.hosts) {
      if (!find(host.pid)->alive()) ended.push_back(id);
    }
    for (const HostId host : ended) tell_leader_ended(number, host);
  }
  arm_node(number);
}

void Cluster::lose_daemon(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  node.state.reset();
  node.descriptors.clear();
  node.soon.clear();
  ++node.connecting;
  ++node.daemons;
  const LinkPtr link = std::exchange(node.link, nullptr);
  if (link) close_from_far(link, world_.chance(2));
}

// What the daemon that is gone has left: nobody took it up.
void Cluster::keeper_looks(int number) {
  const Node& gone = at(number);
  TimePoint ends = world_.timeline.now() + options_.keeper_hold;
  if (gone.lease_end != TimePoint{}) {
    ends = std::min(ends, std::max(gone.lease_end, world_.timeline.now()));
  }
  // It looks at the clock now and then.
  ends += world_.between(0, 100);
  const auto look = [this, number, daemon = gone.daemons, boot = gone.boots] {
    Node& node = at(number);
    if (node.daemons != daemon || node.boots != boot || !node.up) return;
    world_.note("the keeper of node {} ends what nobody took up", number);
    ++node.memory_life;
    end_processes(number);
    node.unread.clear();
  };
  world_.timeline.after(ends - world_.timeline.now(),
                        [this, number, look] { when_awake(number, look); });
}

std::vector<std::string> Cluster::records(int node) const {
  std::vector<std::string> keys;
  for (const auto& [key, kept] : at(node).kept) keys.push_back(key);
  return keys;
}

bool Cluster::keeps(int node, JobId job, const std::string& name) const {
  return nodes_[static_cast<std::size_t>(node)].kept.contains(segment_key(job, name));
}

void Cluster::kill_daemon(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (node.state) node.daemon_dies = true;
}

void Cluster::kill_keeper(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.state) return;
  world_.note("the keeper of node {} is killed", number);
  ++node.memory_life;
  node.kept.clear();
  std::vector<HostId> hosts;
  for (const auto& [id, host] : node.hosts) {
    die(*find(host.pid));
    hosts.push_back(id);
  }
  feed_node(number, node_event::KeeperLost{});
  for (const HostId host : hosts) tell_leader_ended(number, host);
}

void Cluster::feed_node(int number, NodeEvent event) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.state) return;
  if (node.frozen) {
    node.later.push_back([this, number, event = std::move(event), daemon = node.daemons] {
      if (at(number).daemons == daemon) feed_node(number, event);
    });
    return;
  }
  const bool reserves = may_reserve(event);
  const bool no_reason = gives_no_reason(event);
  plant(event);
  auto commands = node.state->apply(std::move(event), world_.timeline.now());
  node.lease_end = node.state->lease_end().value_or(TimePoint{});
  if (no_reason) check_no_end(number, commands);
  const auto broken = node.state->broken_invariant();
  require(!broken, "node {}: {}", number, broken.value_or(""));
  if (reserves) check_room(number);
  const std::uint64_t daemon = node.daemons;
  for (NodeCommand& command : commands) {
    // Killed between two commands: the rest is not done.
    if (node.daemon_dies && world_.chance(2)) {
      world_.note("the daemon of node {} is killed", number);
      lose_daemon(number);
      keeper_looks(number);
      const double most =
          std::chrono::duration<double, std::milli>(options_.daemon_away_most).count();
      world_.timeline.after(world_.between(20, most), [this, number, boot = node.boots] {
        when_awake(number, [this, number, boot] {
          if (at(number).boots == boot) start_daemon(number);
        });
      });
      return;
    }
    visit([&](auto& c) { carry_out(number, c); }, command);
    if (node.daemons != daemon || !node.state) return;
  }
  if (!node.soon.empty()) {
    NodeEvent next = std::move(node.soon.front());
    node.soon.pop_front();
    return feed_node(number, std::move(next));
  }
  arm_node(number);
}

void Cluster::arm_node(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (!node.state) return;
  const auto due = node.state->next_deadline();
  if (!due || (node.tick_at && *node.tick_at <= *due)) return;
  node.tick_at = *due;
  const auto run = [this, number, daemon = node.daemons, at = *due] {
    Node& same = nodes_[static_cast<std::size_t>(number)];
    if (same.daemons != daemon || same.tick_at != at) return;
    same.tick_at.reset();
    feed_node(number, node_event::Tick{});
  };
  world_.timeline.after(*due - world_.timeline.now(), run);
}

FdHandle Cluster::hold(Node& node, MemoryPtr memory) {
  if (!memory) return kNoFd;
  node.descriptors[next_fd_] = std::move(memory);
  return next_fd_++;
}

MemoryPtr Cluster::held(Node& node, FdHandle fd) {
  if (fd == kNoFd) return nullptr;
  const auto found = node.descriptors.find(fd);
  require(found != node.descriptors.end(), "a node uses descriptor {}, which is closed", fd);
  return found->second;
}

// --- commands ------------------------------------------------------------------------------------

void Cluster::carry_out(int number, node_command::ConnectHead&) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const std::uint64_t attempt = ++node.connecting;
  const bool lost = node.is_cut;
  world_.timeline.after(lost ? milliseconds(500) : world_.delay(), [this, number, attempt] {
    Node& same = nodes_[static_cast<std::size_t>(number)];
    if (same.connecting != attempt || !same.state) return;
    same.link = connect(
        number,
        [this, number, daemon = same.daemons](wire::ControlMessage message) {
          if (nodes_[static_cast<std::size_t>(number)].daemons != daemon) return;
          feed_node(number, node_event::FromHead{std::move(message)});
        },
        [this, number, daemon = same.daemons] {
          Node& closed = nodes_[static_cast<std::size_t>(number)];
          if (closed.daemons != daemon) return;
          closed.link = nullptr;
          feed_node(number, node_event::HeadDown{Status(Code::kUnavailable, "the head closed it")});
        });
    if (same.link) {
      feed_node(number, node_event::HeadUp{});
    } else {
      feed_node(number, node_event::HeadDown{Status(Code::kUnavailable, "nobody answers")});
    }
  });
}

void Cluster::carry_out(int number, node_command::DropHead&) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  ++node.connecting;
  const LinkPtr link = std::exchange(node.link, nullptr);
  if (link) close_from_far(link, world_.chance(2));
}

void Cluster::carry_out(int number, node_command::SendHead& command) {
  send_to_head(nodes_[static_cast<std::size_t>(number)].link, std::move(command.message));
}

void Cluster::carry_out(int number, node_command::ReportExit& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  node.hosts.erase(command.log);
  if (options_.loses_exits && world_.chance(20)) return;
  send_to_head(node.link, std::move(command.exited));
}

void Cluster::carry_out(int number, node_command::SpawnHost& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const Process::Place place{next_pid_++, number, command.host, command.spec, command.generation};
  auto process = factory_(place);
  if (!process) {
    node.soon.push_back(
        node_event::SpawnFailed{place.host, Status(Code::kNotFound, "its program is not there")});
    return;
  }
  // The keeper starts it, whatever becomes of the daemon.
  node.hosts[place.host] = Host{};  // a number that a lost keeper knew may come again
  node.hosts[place.host].pid = place.pid;
  processes_[place.pid] = std::move(process);
  began(*processes_[place.pid]);
  if (options_.starts_twice && world_.chance(50)) {
    Process::Place again = place;
    again.pid = next_pid_++;
    began(*(processes_[again.pid] = factory_(again)));
  }
  // A node that stood still may start what was asked of it long ago.
  std::uint64_t& newest = newest_[place.spec.actor_id];
  const Process* before = find(newest);
  if (before == nullptr || before->place().incarnation < place.incarnation) newest = place.pid;
  node.soon.push_back(node_event::Spawned{place.host, static_cast<std::int64_t>(place.pid)});
}

void Cluster::carry_out(int number, node_command::TellHost& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const auto host = node.hosts.find(command.host);
  if (host == node.hosts.end()) return;
  if (holds_alternative<wire::HostStop>(command.message)) host->second.stop_told = true;
  const MemoryPtr memory = held(node, command.fd);
  const auto* start = get_if<wire::HostStart>(&command.message);
  // (A new daemon says it again to what runs.)
  if (start != nullptr && !find(host->second.pid)->started()) check_state(*start, memory);
  const auto deliver = [this, pid = host->second.pid, message = command.message, memory] {
    if (Process* process = find(pid); process->alive()) process->told(message, memory);
  };
  world_.timeline.after(world_.delay(), deliver);
}

void Cluster::carry_out(int number, node_command::KillGroup& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const auto found = node.hosts.find(command.host);
  if (found == node.hosts.end()) return;
  Host& host = found->second;
  host.kill_wanted = true;
  Process* process = find(host.pid);
  if (!process->alive()) {
    if (host.leader_told) tell_group_gone(number, command.host);
    return;
  }
  // A process may be in the kernel when it is killed.
  Duration takes = world_.chance(8) ? world_.between(5, 250) : world_.between(0.1, 4);
  if (options_.tells_ends_early) {
    takes = world_.between(20, 250);
    tell_leader_ended(number, command.host);
    tell_group_gone(number, command.host);
  }
  world_.timeline.after(takes, [this, pid = host.pid] {
    if (Process* killed = find(pid); killed->alive()) kill(*killed, "killed by its node");
  });
}

void Cluster::carry_out(int number, node_command::CloseFd& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (options_.leaks_descriptors && world_.chance(20)) return;
  require(node.descriptors.erase(command.fd) == 1, "node {} closes descriptor {} twice", number,
          command.fd);
}

// An actor that has saved something never goes on without it and without being told.
void Cluster::check_state(const wire::HostStart& start, const MemoryPtr& saved) const {
  if (!head_ || saved) return;
  const auto actor = head_->actors().find(start.spec.actor_id);
  if (actor == head_->actors().end()) return;
  const wire::ActorInfo& info = actor->second.info;
  if (info.generation != start.generation || info.saved_state_node.empty()) return;
  require(!start.state_lost_with.empty() && info.state_lost_generation != 0,
          "generation {} of actor {} begins without what it had saved, and nobody says so",
          start.generation, start.spec.actor_id.brief());
}

void Cluster::carry_out(int number, node_command::FetchState& command) {
  fetch_state(number, command, 8);
}

// From the other node, when it is there and awake.
void Cluster::fetch_state(int number, node_command::FetchState command, int attempts) {
  const auto ask = [this, number, command, attempts, daemon = at(number).daemons] {
    if (at(number).daemons != daemon) return;
    const int from = command.from.port - 1000;
    const Node& other = at(from);
    Status status(Code::kUnavailable, "nobody answers");
    if (other.up && other.state && !other.frozen && !other.is_cut) {
      const auto found = other.state->saved_state(command.actor_id);
      status = found.status();
      if (found.ok()) {
        const MemoryPtr memory = held(nodes_[static_cast<std::size_t>(from)], *found);
        Node& node = nodes_[static_cast<std::size_t>(number)];
        return feed_node(number, node_event::StateFetched{command.host, {}, hold(node, memory)});
      }
    }
    if (status.code() == Code::kNotFound || attempts == 0) {
      return feed_node(number, node_event::StateFetched{command.host, status, kNoFd});
    }
    world_.timeline.after(milliseconds(500), [this, number, command, attempts, daemon] {
      if (at(number).daemons == daemon) fetch_state(number, command, attempts - 1);
    });
  };
  world_.timeline.after(world_.delay(), ask);
}

void Cluster::carry_out(int, node_command::ForgetHost&) {}
void Cluster::carry_out(int, node_command::ReadGpus&) {}  // its machines have none to read
// Its jobs are shipped with nothing.
void Cluster::carry_out(int, node_command::FetchPackage&) {}
void Cluster::carry_out(int, node_command::NeedPackages&) {}
void Cluster::carry_out(int, node_command::TellNodes&) {}  // no object stores

void Cluster::carry_out(int number, node_command::Registered&) { expect_end_of_stale(number); }

void Cluster::carry_out(int number, node_command::Keep& command) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  if (options_.forgets_records && command.start && world_.chance(10)) return;
  Kept& kept = node.kept[command.key];
  kept.record = command.record;
  if (command.fd != kNoFd) kept.memory = held(node, command.fd);
  if (command.start) kept.start = command.start;
}

void Cluster::carry_out(int number, node_command::Unkeep& command) {
  nodes_[static_cast<std::size_t>(number)].kept.erase(command.key);
}

void Cluster::carry_out(int number, node_command::Warn& command) {
  world_.note("node {}: {}", number, command.text);
}

void Cluster::carry_out(int number, node_command::EndNode& command) {
  require(command.status.ok(), "node {} ends: {}", number, command.status.to_string());
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const auto processes = running(number);
  require(processes.empty(), "node {} ends with {} processes", number, processes.size());
  world_.note("node {} has left", number);
  // What it said last arrives.
  if (const LinkPtr link = std::exchange(node.link, nullptr)) close_from_far(link, false);
  node_gone(number);
}

// --- processes -----------------------------------------------------------------------------------

Process* Cluster::find(std::uint64_t pid) {
  const auto found = processes_.find(pid);
  return found == processes_.end() ? nullptr : found->second.get();
}

Process* Cluster::ready_process(ActorId actor) {
  const auto found = newest_.find(actor);
  if (found == newest_.end()) return nullptr;
  Process* process = find(found->second);
  return process->ready() ? process : nullptr;
}

std::vector<Process*> Cluster::living(const std::string& type) {
  std::vector<Process*> found;
  for (const auto& [pid, process] : processes_) {
    if (process->alive() && process->place().spec.type == type) found.push_back(process.get());
  }
  return found;
}

std::vector<std::uint64_t> Cluster::living_pids() const {
  std::vector<std::uint64_t> pids;
  for (const auto& [actor, processes] : living_) {
    pids.insert(pids.end(), processes.begin(), processes.end());
  }
  return pids;
}

// What a process says arrives in order, and before its end; a new daemon reads what was left.
void Cluster::from_host(int number, HostId host, std::function<void()> what) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const auto found = node.hosts.find(host);
  if (found == node.hosts.end()) return;
  TimePoint& last = found->second.last_to_node;
  last = std::max(last, world_.timeline.now() + world_.delay());
  world_.timeline.after(last - world_.timeline.now(), [this, number, host, what = std::move(what),
                                                       boot = node.boots, pid = found->second.pid] {
    Node& same = at(number);
    if (same.boots != boot || !same.up) return;
    // The keeper that knew it may be gone, and its number another's.
    const auto known = same.hosts.find(host);
    if (known == same.hosts.end() || known->second.pid != pid) return;
    if (same.state) {
      const std::uint64_t daemon = same.daemons;
      what();
      // A message is taken when it has been dealt with (HostChannel::Take::kAfter).
      if (same.state && same.daemons == daemon) return;
    }
    same.unread.push_back(what);
  });
}

void Cluster::tell_node(Process& process, wire::HostMessage message, MemoryPtr memory) {
  const int number = process.place().node;
  const HostId host = process.place().host;
  from_host(number, host, [this, number, host, message = std::move(message), memory] {
    Node& node = nodes_[static_cast<std::size_t>(number)];
    const FdHandle fd = hold(node, memory);
    feed_node(number, node_event::FromHost{host, message, fd});
  });
}

void Cluster::kill(Process& process, const char* why) {
  if (!process.alive()) return;
  world_.note("{} dies: {}", process.label(), why);
  die(process);
  process_died(process.place().pid);
}

// --- what runs, as it is -------------------------------------------------------------------------

void Cluster::began(const Process& process) {
  const Process::Place& place = process.place();
  const ActorId id = place.spec.actor_id;
  require(spawned_.insert({id, place.incarnation}).second,
          "{} gets a second process of generation {}, on node {}", process.label(),
          place.incarnation, place.node);
  check_room(place.node);
  overlaps_ += living_[id].empty() ? 0 : 1;
  living_[id].push_back(place.pid);
  check_alone(process);
}

void Cluster::die(Process& process) {
  if (!process.alive()) return;
  const Process::Place& place = process.place();
  const auto living = living_.find(place.spec.actor_id);
  std::erase(living->second, place.pid);
  if (living->second.empty()) living_.erase(living);
  process.die();
}

std::vector<const Process*> Cluster::running(int number) const {
  std::vector<const Process*> processes;
  for (const auto& [host, entry] : at(number).hosts) {
    const auto process = processes_.find(entry.pid);
    if (process != processes_.end() && process->second->alive()) {
      processes.push_back(process->second.get());
    }
  }
  return processes;
}

std::vector<wire::Reservation> Cluster::reservations(int number) const {
  if (!at(number).state) return {};
  return at(number).state->reservations();
}

// What runs, and what is held for those who may come, fits the node. What runs in a placement group
// that holds something here takes of that.
void Cluster::check_room(int number) const {
  std::map<GroupId, wire::Resources> held;
  for (const wire::Reservation& reservation : reservations(number)) {
    held[reservation.group_id] = reservation.resources;
  }
  std::map<GroupId, wire::Resources> inside;
  wire::Resources sum;
  for (const Process* process : running(number)) {
    const wire::ActorSpec& spec = process->place().spec;
    add(held.contains(spec.placement_group) ? inside[spec.placement_group] : sum, spec.resources);
  }
  for (auto& [group, reserved] : held) {
    for (const auto& [name, amount] : inside[group]) {
      reserved[name] = std::max(reserved[name], amount);
    }
    add(sum, reserved);
  }
  require(fits(sum, at(number).total), "node {} runs and holds more than it has: {}", number,
          format_resources(sum));
}

// Processes that stood still, and what they were replaced by, can overlap until their node has
// looked at its clock: nothing but the machine's end could prevent it.
bool Cluster::excused(int number) const {
  return at(number).frozen || world_.timeline.now() < at(number).excused_until;
}

void Cluster::check_alone(const Process& process) const {
  const Process::Place& place = process.place();
  if (excused(place.node)) return;
  for (const std::uint64_t pid : living_.at(place.spec.actor_id)) {
    const Process& other = *processes_.at(pid);
    require(pid == place.pid || excused(other.place().node) || may_overlap(process, other),
            "{} (generation {}) runs on node {} while {} lives on node {}", process.label(),
            place.incarnation, place.node, other.label(), other.place().node);
  }
}

bool Cluster::may_run_twice(const Process& process) const {
  const Process::Place& place = process.place();
  const auto asked = asked_.find({place.spec.actor_id, place.incarnation});
  return asked != asked_.end() && asked->second.on_head_loss == wire::OnHeadLoss::kKeep;
}

// An actor that may run twice may do so where the node of the older process was declared lost after
// it was asked for that. (A node that stood still may begin it even later.)
bool Cluster::may_overlap(const Process& one, const Process& other) const {
  const Process& older = one.place().incarnation < other.place().incarnation ? one : other;
  if (!may_run_twice(older)) return false;
  const Asked& asked = asked_.at({older.place().spec.actor_id, older.place().incarnation});
  const auto lost = declared_lost_.find(asked.node_id);
  return lost != declared_lost_.end() && lost->second >= asked.at;
}

// A node ends none of those because its head is silent.
void Cluster::check_no_end(int number, const std::vector<NodeCommand>& commands) const {
  for (const NodeCommand& command : commands) {
    const auto* kill = get_if<node_command::KillGroup>(&command);
    if (kill == nullptr) continue;
    const auto host = at(number).hosts.find(kill->host);
    if (host == at(number).hosts.end() || host->second.stop_told) continue;
    const Process& process = *processes_.at(host->second.pid);
    require(!may_run_twice(process), "node {} ends {} for nothing but its head's silence", number,
            process.label());
  }
}

// It reaches the head, and knows by now what that wants of what runs here.
void Cluster::expect_end_of_stale(int number) {
  if (!head_ || head_frozen_) return;
  std::vector<std::uint64_t> stale;
  for (const Process* process : running(number)) {
    const Process::Place& place = process->place();
    const auto actor = head_->actors().find(place.spec.actor_id);
    const bool wanted = actor != head_->actors().end() && !actor->second.dead() &&
                        actor->second.info.generation == place.incarnation;
    if (!wanted) stale.push_back(place.pid);
  }
  if (stale.empty()) return;
  world_.timeline.after(
      kStaleEndsWithin, [this, number, stale = std::move(stale), daemon = at(number).daemons] {
        if (at(number).daemons != daemon || excused(number)) return;
        for (const std::uint64_t pid : stale) {
          require(!find(pid)->alive(), "{} runs on, though its node {} has reached the head again",
                  find(pid)->label(), number);
        }
      });
}

// Planted mistakes of a node.
void Cluster::plant(NodeEvent& event) const {
  auto* said = get_if<node_event::FromHead>(&event);
  if (said == nullptr) return;
  if (auto* start = get_if<wire::StartActor>(&said->message); start && options_.fences_all) {
    start->spec.on_head_loss = wire::OnHeadLoss::kFence;
  }
  if (auto* reply = get_if<wire::RegisterNodeReply>(&said->message);
      reply && options_.keeps_stale) {
    reply->stop.clear();
  }
}

// --- what processes say --------------------------------------------------------------------------

void Cluster::kill_from_outside(Process& process) {
  if (options_.tells_ends_early && process.alive()) {
    // Its node takes it for dead, and it goes on for a while.
    return process_died(process.place().pid);
  }
  kill(process, "killed from outside");
}

void Cluster::process_died(std::uint64_t pid) {
  const Process::Place& place = find(pid)->place();
  tell_leader_ended(place.node, place.host);
}

void Cluster::tell_leader_ended(int number, HostId host) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  // The end is seen by the daemon that is there; a later one asks the keeper.
  if (!node.state || !node.hosts.contains(host)) return;
  from_host(number, host, [this, number, host, daemon = node.daemons] {
    Node& same = nodes_[static_cast<std::size_t>(number)];
    const auto found = same.hosts.find(host);
    if (same.daemons != daemon || found == same.hosts.end()) return;
    if (std::exchange(found->second.leader_told, true)) return;
    const bool wanted = found->second.kill_wanted;
    wire::ExitStatus exit;
    exit.signal = 9;
    feed_node(number, node_event::LeaderEnded{host, exit});
    if (wanted) tell_group_gone(number, host);
  });
}

void Cluster::tell_group_gone(int number, HostId host) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  const auto found = node.hosts.find(host);
  if (found == node.hosts.end() || std::exchange(found->second.gone_told, true)) return;
  from_host(number, host, [this, number, host, daemon = node.daemons] {
    if (nodes_[static_cast<std::size_t>(number)].daemons == daemon) {
      feed_node(number, node_event::GroupGone{host});
    }
  });
}

}  // namespace troupe::simulation
