#include "scheduler/node/node_daemon.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/file_system.h"
#include "runtime/base/machine.h"
#include "scheduler/node/daemon_log.h"
#include "scheduler/node/gpu_monitor.h"
#include "scheduler/node/head_link.h"
#include "scheduler/node/host_process.h"
#include "scheduler/node/images.h"
#include "scheduler/node/kept_keys.h"
#include "scheduler/node/kept_state.h"
#include "scheduler/node/node_service.h"
#include "scheduler/node/node_usage.h"
#include "scheduler/node/package_exchange.h"
#include "scheduler/node/program.h"
#include "scheduler/node/state_fetcher.h"
#include "scheduler/objects/object_service.h"

namespace troupe::scheduler {
namespace {

constexpr std::int64_t kFlushMs = 1000;
constexpr std::size_t kUnreportedMax = 1000;
// Between two warnings of connections that could not be handed over.
constexpr Duration kConnectionWarnings = std::chrono::seconds(10);
// How long a keeper that ends with its daemon waits for one that stands still, stopped at a
// terminal: that one is not gone.
constexpr Duration kStoppedDaemonTimeout = std::chrono::hours(24);
// The end of a lease that is over as soon as nobody renews it.
// Of objects, where the machine does not say what it has.
constexpr std::uint64_t kObjectMemoryBytes = 1u << 30;
constexpr TimePoint kOver{Duration(1)};
constexpr std::size_t kExitTailBytes = 4u << 10;  // of the output, in the report of an exit
// Of the actors that ended under daemons before this one: whose output can still be read.
constexpr std::size_t kEarlierOutputsMax = 200;
// Of an actor, and of all together, what one who begins to follow the output gets of what was.
constexpr std::size_t kReplayLinesMax = 200;
constexpr std::size_t kReplayBytesMax = 2u << 20;

// "actor/ID[/…]" → ID.
Result<ActorId> actor_of(std::string_view target) {
  constexpr std::string_view kPrefix = "actor/";
  if (!target.starts_with(kPrefix)) {
    return error(Code::kNotFound, "this is a node; it knows no '{}'", target);
  }
  target.remove_prefix(kPrefix.size());
  return ActorId::parse(target.substr(0, target.find('/')));
}

class Daemon final : public NodeDaemon {
 public:
  Daemon(net::EventLoop& loop, NodeOptions options)
      : loop_(loop), options_(std::move(options)), images_(options_.executable) {}
  ~Daemon() override { stop(); }

  Status start();
  void leave(const std::string& reason) override { apply(node_event::ShutDown{reason, true}); }
  void stop() override;
  const wire::NodeInfo& info() const override { return info_; }
  const NodeState& state() const override { return *state_; }
  void signal_programs(int signal) override;
  const std::string& end_reason() const override { return end_reason_; }

 private:
  Status listen();
  void watch_gpus();
  void open_packages();
  Result<PackagePlace> place_of_package(const wire::ActorSpec& spec);
  NodeConfig config() const;
  bool ends_with_daemon() const { return options_.parent == Parent::kKeeperOfThisDaemon; }
  Status check_target(const std::string& target) const;
  void accept(net::AcceptedSocket accepted);
  void serve_objects(net::AcceptedSocket accepted);
  void connection_closed(HostId host, const Status& why);
  Result<std::string> logs_of(ActorId actor_id, std::size_t bytes_max) const;
  Result<int> segment_of(JobId job_id, const std::string& name) const;
  Result<int> saved_state_of(ActorId actor_id) const;
  void apply(NodeEvent event);
  void drain();
  void hold_until_lease_end();
  void arm();
  FdHandle hold(UniqueFd fd);
  Status open_keeper(Duration patience);
  void listen_to_keeper();
  Status find_parent();
  Status replace_keeper();
  void take_up();
  bool take_up(node_event::Adopt::Actor& actor, KeptState& kept);
  void keeper_lost(const Status& why);
  HostProcess::Place place_of(HostId host, const wire::ActorSpec& spec);
  Result<std::unique_ptr<HostProcess>> spawn(const node_command::SpawnHost& command);
  HostProcess::Handlers handlers_of(HostId host);
  std::shared_ptr<ActorLog> make_log(const wire::ActorSpec& spec);
  void open_files(ActorLog& log, const wire::ActorSpec& spec);
  std::shared_ptr<ActorLog> log_for(const wire::ActorSpec& spec, HostId before);
  void take_up_outputs(std::map<ActorId, UniqueFd> outputs);
  void forget_earlier_outputs(const std::set<ActorId>& but_not);
  void on_output(const wire::OutputLine& line, const JobId& job_id);
  std::vector<wire::OutputLine> kept_output(JobId job_id, ActorId actor_id);
  void drain_output();

  void report(wire::ActorExited exited);
  void not_sent(const Status& why);

  void carry_out(node_command::ConnectHead&) { link_->connect(); }
  void carry_out(node_command::DropHead&) { link_->drop(); }
  void carry_out(node_command::SendHead& command);
  void carry_out(node_command::ReportExit& command);
  void carry_out(node_command::SpawnHost& command);
  void carry_out(node_command::TellHost& command);
  void carry_out(node_command::KillGroup& command);
  void carry_out(node_command::CloseFd& command) { held_.erase(command.fd); }
  void carry_out(node_command::ForgetHost& command);
  void carry_out(node_command::Registered& command);
  void carry_out(node_command::Keep& command);
  void carry_out(node_command::Unkeep& command) {
    if (keeper_) (void)keeper_->drop(command.key);
  }
  void carry_out(node_command::FetchState& command);
  void carry_out(node_command::FetchPackage& command);
  void carry_out(node_command::TellNodes& command) {
    if (objects_) objects_->nodes_listed(std::move(command.nodes));
  }
  void carry_out(node_command::NeedPackages& command);
  void carry_out(node_command::ReadGpus& command);
  void carry_out(node_command::Warn& command) { log_.warning("{}", command.text); }
  void carry_out(node_command::EndNode& command);

  net::EventLoop& loop_;
  NodeOptions options_;
  SystemRandom random_;
  PosixFileSystem files_;
  UsageMeter usage_{files_};
  std::shared_ptr<DaemonLog> own_log_;
  Logger log_ = Logger::discard();
  wire::NodeInfo info_;
  Images images_;
  std::unique_ptr<NodeState> state_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<HeadLink> link_;
  std::string head_trouble_;  // why there is no connection, as last told
  TimePoint connection_warning_due_;
  std::uint64_t connections_closed_ = 0;  // since the last warning of them
  std::unique_ptr<NodeService> service_;
  std::unique_ptr<ObjectService> objects_;
  std::unique_ptr<PackageExchange> packages_;  // null: there are none, without_packages_ says why
  std::string without_packages_;
  std::unique_ptr<GpuMonitor> gpus_;               // null: there are none that can be read
  std::unique_ptr<process::KeeperClient> keeper_;  // null: this process is the parent
  std::unique_ptr<HostParent> parent_;
  KeeperChildren* keeper_children_ = nullptr;  // parent_, where there is a keeper
  bool keeper_is_ours_ = false;                // to end with this daemon
  std::map<HostId, std::unique_ptr<HostProcess>> hosts_;
  std::string end_reason_;
  std::map<HostId, std::shared_ptr<ActorLog>> logs_;
  // Of actors that have had no process under this daemon, but under one before it.
  std::map<ActorId, OutputRing> earlier_outputs_;
  std::map<HostId, std::unique_ptr<StateFetcher>> fetchers_;
  std::map<FdHandle, UniqueFd> held_;
  FdHandle next_fd_ = 1;
  std::deque<wire::ActorExited> unreported_;  // ends that no head has been told of
  std::size_t in_registration_ = 0;           // how many of them the last one said
  std::deque<NodeEvent> events_;
  bool applying_ = false;
  bool stopped_ = false;
  std::optional<net::TimerId> timer_;
  std::optional<TimePoint> timer_at_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// --- start and end -------------------------------------------------------------------------------

NodeConfig Daemon::config() const {
  NodeConfig config{options_, info_, options_.gpus};
  config.without_packages = without_packages_;
  return config;
}

void Daemon::open_packages() {
  if (options_.package_directory.empty()) {
    without_packages_ = "it is no worker of a cluster, or was started without a home folder";
    return;
  }
  const auto open = [&]() -> Status {
    auto cache = TROUPE_TRY(
        PackageCache::open(options_.package_directory, options_.package_bytes_max, loop_.clock()));
    const auto here = [this, alive = std::weak_ptr<bool>(alive_)](auto event) {
      loop_.post([this, alive, event = std::move(event)] {
        if (!alive.expired()) apply(event);
      });
    };
    packages_ = TROUPE_TRY(
        PackageExchange::start(std::move(cache), options_.token, log_,
                               {.on_change =
                                    [here](std::vector<std::string> all) {
                                      here(node_event::PackagesHere{std::move(all)});
                                    },
                                .on_failed =
                                    [here](const wire::Package& package, Status why) {
                                      here(node_event::PackageNotFetched{package, std::move(why)});
                                    }}));
    return {};
  };
  if (const Status opened = open(); !opened.ok()) {
    without_packages_ = opened.to_string();
    log_.warning("this node keeps no packages of jobs (--package-dir): {}", without_packages_);
  }
}

Status Daemon::listen() {
  net::ListenOptions listen;
  listen.host = options_.host;
  listen.port = options_.port;
  listen.local_name = info_.endpoint.local_name;
  // Their processes do the TLS of their connections themselves.
  listen.hand_over = [](const std::string& route) { return actor_of(route).ok(); };
  const auto attempt = [&] {
    return net::listen(
        loop_, listen, options_.token, random_, log_,
        [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); },
        [this](const std::string& target) { return check_target(target); });
  };
  UniqueFd kept;
  if (keeper_) {
    // Where callers know the node, and with those of them that connected meanwhile.
    const auto before = kept_endpoint(keeper_->contents());
    kept = kept_listener(keeper_->contents());
    if (before && before->host == listen.host &&
        (listen.port == 0 || listen.port == before->port)) {
      listen.port = before->port;
      listen.listening_fd = kept.get();
    } else if (kept.valid()) {
      (void)keeper_->drop(kListenerKey);
    }
  }
  auto listening = attempt();
  if (!listening.ok() && kept.valid()) {
    (void)keeper_->drop(kListenerKey);
    kept.reset();
    listen.listening_fd = -1;
    listening = attempt();
  }
  if (!listening.ok() && options_.port == 0 && listen.port != 0) {
    listen.port = 0;
    listening = attempt();
  }
  listener_ = TROUPE_TRY(std::move(listening));
  const net::Address& reached_at = options_.advertised.value_or(listener_->address());
  if (keeper_ && listener_->tcp_fd() >= 0) {
    TROUPE_RETURN_IF_ERROR(keeper_->put(kListenerKey, {}, listener_->tcp_fd()));
  }
  info_.endpoint.host = reached_at.host;
  info_.endpoint.port = reached_at.port;
  return {};
}

Status Daemon::start() {
  own_log_ = std::make_shared<DaemonLog>(options_.log_sink);
  log_ =
      Logger("node", options_.log_level,
             [log = own_log_](LogLevel level, std::string_view line) { log->write(level, line); });
  info_.node_id = options_.node_id.empty() ? NodeId::make(random_) : options_.node_id;
  info_.name = options_.name;
  info_.total = info_.available = options_.resources;
  info_.labels = options_.labels;
  info_.pid = ::getpid();
  info_.endpoint.local_name = "troupe-node-" + info_.node_id.to_string();
  TROUPE_RETURN_IF_ERROR(find_parent());
  TROUPE_RETURN_IF_ERROR(listen());
  open_packages();
  state_ = std::make_unique<NodeState>(config(), loop_.clock().now());
  link_ = std::make_unique<HeadLink>(
      loop_, options_.head, options_.token,
      HeadLink::Handlers{
          .on_up = [this] { apply(node_event::HeadUp{}); },
          .on_down =
              [this](Status why) {
                // Once a reason, not once an attempt.
                if (std::exchange(head_trouble_, why.to_string()) != why.to_string()) {
                  const auto text = fmt::format("no connection to the head: {}", why.to_string());
                  // A head that was there, and is not found again.
                  if (state_->has_joined() && !state_->registered()) {
                    const auto patience =
                        std::chrono::duration_cast<std::chrono::seconds>(options_.orphan_timeout);
                    log_.warning("{}; it is waited for up to {} s", text, patience.count());
                  } else {
                    log_.info("{}", text);
                  }
                }
                apply(node_event::HeadDown{std::move(why)});
              },
          .on_message =
              [this](wire::ControlMessage m) { apply(node_event::FromHead{std::move(m)}); }});
  service_ = std::make_unique<NodeService>(
      loop_,
      NodeService::Sources{
          .logs = [this](ActorId actor_id, std::size_t b) { return logs_of(actor_id, b); },
          .segment = [this](JobId job_id,
                            const std::string& name) { return segment_of(job_id, name); },
          .saved_state = [this](ActorId actor_id) { return saved_state_of(actor_id); },
          .on_state_read =
              [this] {
                if (state_->ending()) apply(node_event::StateRead{});
              },
          .kept_output = [this](JobId job_id,
                                ActorId actor_id) { return kept_output(job_id, actor_id); },
          .gpus = [this] { return state_->gpus(); },
          .drain_output = [this] { drain_output(); }},
      options_.output_limits.queue_bytes);
  watch_gpus();
  if (keeper_) take_up();
  if (packages_) packages_->take_up();  // what runs on is known by now
  apply(node_event::Tick{});
  return {};
}

void Daemon::watch_gpus() {
  if (!options_.nvml || options_.gpus.readings.empty()) return;
  std::vector<std::string> uuids;
  for (const GpuReading& reading : options_.gpus.readings) uuids.push_back(reading.uuid);
  gpus_ = std::make_unique<GpuMonitor>(
      loop_, options_.nvml, std::move(uuids),
      GpuMonitor::Handlers{
          .on_readings =
              [this](std::uint64_t number, std::vector<GpuReading> readings) {
                apply(node_event::GpusRead{number, std::move(readings)});
              },
          .on_fault = [this](GpuFault fault) { apply(node_event::GpuFailed{std::move(fault)}); },
          .on_trouble =
              [this](const Status& why) {
                log_.warning("the GPUs' errors are not heard of: {}", why.message());
              }});
}

void Daemon::carry_out(node_command::ReadGpus& command) {
  // Without one there is nothing that memory is waited for of.
  if (gpus_) gpus_->read(command.number);
}

Result<std::string> Daemon::logs_of(ActorId actor_id, std::size_t bytes_max) const {
  if (actor_id.empty()) return own_log_->text(bytes_max);
  const auto host = state_->log_of(actor_id);
  if (host && logs_.contains(*host)) return logs_.at(*host)->text(bytes_max);
  const auto earlier = earlier_outputs_.find(actor_id);
  if (earlier != earlier_outputs_.end()) return earlier->second.text(bytes_max);
  return error(Code::kNotFound, "node {} keeps no output of actor {}", state_->name(),
               actor_id.brief());
}

Result<int> Daemon::segment_of(JobId job_id, const std::string& name) const {
  const auto handle = state_->segment(job_id, name);
  const auto held = handle ? held_.find(*handle) : held_.end();
  if (held != held_.end()) return held->second.get();
  return error(Code::kNotFound, "node {} keeps no segment '{}' of this job", state_->name(), name);
}

Result<int> Daemon::saved_state_of(ActorId actor_id) const {
  const FdHandle handle = TROUPE_TRY(state_->saved_state(actor_id));
  return held_.at(handle).get();
}

void Daemon::carry_out(node_command::FetchState& command) {
  log_.info("actor {}: fetching what it saved from the node at {}", command.actor_id.brief(),
            command.from.to_string());
  fetchers_[command.host] = std::make_unique<StateFetcher>(
      loop_, net::Address{command.from.host, command.from.port, {}}, options_.token,
      command.actor_id, [this, host = command.host](Result<UniqueFd> state) {
        fetchers_.erase(host);
        const Status status = state.status();
        apply(node_event::StateFetched{host, status, state.ok() ? hold(std::move(*state)) : kNoFd});
      });
}

void Daemon::carry_out(node_command::FetchPackage& command) {
  std::vector<net::Address> from;
  for (const wire::Endpoint& node : command.from) from.push_back({node.host, node.port, {}});
  packages_->fetch(command.package, std::move(from));
}

void Daemon::carry_out(node_command::NeedPackages& command) {
  if (packages_) packages_->cache().set_needed(std::move(command.sha256s));
}

void Daemon::stop() {
  if (std::exchange(stopped_, true)) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  listener_.reset();
  service_.reset();
  objects_.reset();
  gpus_.reset();
  link_.reset();
  fetchers_.clear();
  for (auto& [id, host] : hosts_) (void)process::kill_group(host->pid(), SIGKILL);
  hosts_.clear();
  packages_.reset();
  if (keeper_ && keeper_is_ours_) {
    const Status ended = keeper_->quit(Deadline::after(options_.keeper_start_timeout));
    if (!ended.ok()) log_.warning("{}", ended.to_string());
  }
  keeper_.reset();
  held_.clear();
  events_.clear();
  alive_.reset();
}

// --- sockets -------------------------------------------------------------------------------------

Status Daemon::check_target(const std::string& target) const {
  if (target == "node" || is_object_target(target)) return {};
  if (target == kPackagesTarget) {
    if (packages_) return {};
    return error(Code::kFailedPrecondition, "this node keeps no packages: {}", without_packages_);
  }
  const ActorId actor_id = TROUPE_TRY(actor_of(target));
  TROUPE_RETURN_IF_ERROR(state_->check_actor(actor_id));
  // Now the caller can still be told why; once it is accepted it only sees its connection close.
  const auto host = hosts_.find(state_->log_of(actor_id).value_or(0));
  if (host == hosts_.end()) return {};
  const std::size_t waiting = host->second->unread_connections();
  if (waiting < limits::kHostQueueConnectionsMax) return {};
  return error(Code::kOverloaded,
               "the process of actor {} does not read its socket: {} connections wait for it",
               actor_id.brief(), waiting);
}

// A caller whose connection is closed tries again, so that there may be any number of them.
void Daemon::connection_closed(HostId host, const Status& why) {
  ++connections_closed_;
  const TimePoint now = loop_.clock().now();
  if (now < connection_warning_due_) return;
  connection_warning_due_ = now + kConnectionWarnings;
  log_.warning("closed {} connections that could not be handed over, the last one to actor {}: {}",
               std::exchange(connections_closed_, 0), logs_.at(host)->actor_id().brief(),
               why.to_string());
}

void Daemon::accept(net::AcceptedSocket accepted) {
  if (accepted.target == "node") {
    return service_->serve(std::move(accepted.socket), accepted.peer);
  }
  if (is_object_target(accepted.target)) return serve_objects(std::move(accepted));
  if (accepted.target == kPackagesTarget) {
    return packages_->serve(std::move(accepted.socket), accepted.peer);
  }
  const auto actor_id = actor_of(accepted.target);
  UniqueFd socket = accepted.socket.take_socket();
  if (!actor_id.ok() || !socket.valid()) return;
  apply(
      node_event::ConnectionArrived{*actor_id, hold(std::move(socket)),
                                    wire::HostConnection{accepted.target, accepted.peer,
                                                         accepted.same_node, accepted.untouched}});
}

// Its threads are there from when somebody has an object, or looks for one here.
void Daemon::serve_objects(net::AcceptedSocket accepted) {
  if (!objects_) {
    std::uint64_t memory = options_.object_memory_bytes;
    if (memory == 0) {
      PosixFileSystem files;
      const auto available = detect_available_memory(files);
      memory = available.ok() ? static_cast<std::uint64_t>(available->available_bytes) / 10 * 3
                              : kObjectMemoryBytes;
    }
    std::error_code ec;
    const std::string temporary = std::filesystem::temp_directory_path(ec).string();
    auto started = ObjectService::start(
        {.store = {.node_id = info_.node_id,
                   .endpoint = {info_.endpoint.host, info_.endpoint.port, {}},
                   .node_name = state_->name(),
                   .memory_max_bytes = memory},
         .token = options_.token,
         .spill_parent = !options_.object_spill_dir.empty()
                             ? options_.object_spill_dir
                             : fmt::format("{}/troupe-objects-{}", temporary, ::getuid()),
         .ask_for_nodes =
             [this, alive = std::weak_ptr<bool>(alive_)] {
               loop_.post([this, alive] {
                 if (!alive.expired()) apply(node_event::NodesAsked{});
               });
             },
         .log = log_});
    if (!started.ok()) {
      log_.warning("no object store: {}", started.status().to_string());
      return;
    }
    objects_ = std::move(*started);
  }
  objects_->serve(std::move(accepted));
}

FdHandle Daemon::hold(UniqueFd fd) {
  if (!fd.valid()) return kNoFd;
  held_[next_fd_] = std::move(fd);
  return next_fd_++;
}

// --- events and commands -------------------------------------------------------------------------

void Daemon::apply(NodeEvent event) {
  if (stopped_) return;
  events_.push_back(std::move(event));
  if (!applying_) drain();
}

void Daemon::hold_until_lease_end() {
  if (!keeper_) return;
  keeper_->hold_until(ends_with_daemon() ? kOver : state_->lease_end().value_or(TimePoint{}));
}

void Daemon::drain() {
  applying_ = true;
  const std::weak_ptr<bool> alive = alive_;
  while (!events_.empty()) {
    auto event = std::move(events_.front());
    events_.pop_front();
    auto commands = state_->apply(std::move(event), loop_.clock().now());
    // Before an actor starts that must not run twice: a keeper alone ends it in time, too.
    hold_until_lease_end();
    for (NodeCommand& command : commands) {
      visit([this](auto& c) { carry_out(c); }, command);
      if (alive.expired()) return;
    }
  }
  applying_ = false;
  arm();
}

void Daemon::arm() {
  const auto due = state_->next_deadline();
  if (due == timer_at_) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  timer_at_ = due;
  if (!due) return;
  const TimePoint now = loop_.clock().now();
  timer_ = loop_.call_after(*due > now ? *due - now : Duration::zero(),
                            [this, alive = std::weak_ptr<bool>(alive_)] {
                              if (alive.expired()) return;
                              timer_.reset();
                              timer_at_.reset();
                              apply(node_event::Tick{});
                            });
}

void Daemon::carry_out(node_command::ReportExit& command) {
  hosts_.erase(command.log);
  if (const auto log = logs_.find(command.log); log != logs_.end()) {
    log->second->flush();
    command.exited.log_tail = log->second->text_of_process(kExitTailBytes);
  }
  log_.info("actor {} (generation {}) has ended: {}", command.exited.actor_id.brief(),
            command.exited.generation,
            command.exited.cause.ok() ? command.exited.exit.to_string()
                                      : command.exited.cause.to_string());
  report(std::move(command.exited));
}

// To the head; where that is away, with the next registration.
void Daemon::report(wire::ActorExited exited) {
  if (state_->registered()) {
    const Status sent = link_->send(exited);
    if (sent.ok()) return;
    not_sent(sent);
  }
  unreported_.push_back(std::move(exited));
  if (unreported_.size() <= kUnreportedMax) return;
  unreported_.pop_front();
  if (in_registration_ > 0) --in_registration_;
}

// What the head is not told leaves it with a wrong picture: the connection ends, and the next
// registration says everything.
void Daemon::not_sent(const Status& why) {
  if (why.code() == Code::kUnavailable) return;  // it has ended: on_down says so
  log_.error("a message to the head cannot be sent: {}", why.to_string());
  link_->drop();
  events_.push_back(node_event::HeadDown{why});
}

void Daemon::carry_out(node_command::SendHead& command) {
  if (auto* registration = get_if<wire::RegisterNode>(&command.message)) {
    registration->exited.assign(unreported_.begin(), unreported_.end());
    in_registration_ = unreported_.size();
  } else if (auto* beat = get_if<wire::Heartbeat>(&command.message)) {
    beat->usage = usage_.measure(loop_.clock().now());
    if (beat->usage) beat->usage->processes = static_cast<std::uint32_t>(hosts_.size());
  }
  if (const Status sent = link_->send(command.message); !sent.ok()) not_sent(sent);
}

// --- output --------------------------------------------------------------------------------------

std::shared_ptr<ActorLog> Daemon::make_log(const wire::ActorSpec& spec) {
  std::optional<OutputRing> ring;
  if (auto earlier = earlier_outputs_.extract(spec.actor_id)) {
    ring = std::move(earlier.mapped());
  } else if (auto made = OutputRing::create(); made.ok()) {
    ring = std::move(*made);
    if (keeper_) (void)keeper_->put(output_key(spec.actor_id), {}, ring->fd());
  } else {
    log_.warning("the last lines of {} will not outlive this daemon: {}", output_label(spec),
                 made.status().to_string());
  }
  return std::make_shared<ActorLog>(
      loop_, spec, options_.output_limits,
      [this, job = output_job(spec)](const wire::OutputLine& line) { on_output(line, job); },
      std::move(ring));
}

// Anew for each process: what was given up on a full disk may have room again.
void Daemon::open_files(ActorLog& log, const wire::ActorSpec& spec) {
  log.close_files();
  std::set<std::pair<std::string, std::optional<OutputStream>>> paths;
  if (!options_.log_dir.empty()) {
    paths.emplace(join_path(options_.log_dir, spec.actor_id.to_string() + ".log"), std::nullopt);
  }
  if (!spec.log_path.empty()) paths.emplace(spec.log_path, std::nullopt);
  const wire::Program& program = spec.program;
  if (!program.stdout_path.empty()) paths.emplace(program.stdout_path, OutputStream::kOut);
  if (!program.stderr_path.empty()) paths.emplace(program.stderr_path, OutputStream::kError);
  for (const auto& [path, only] : paths) {
    const Status added = log.add_file(files_, path, only);
    if (!added.ok()) {
      log_.warning("the output of {} is not kept: {}", output_label(spec), added.to_string());
    }
  }
}

// An actor has one, however many processes it has here one after the other.
std::shared_ptr<ActorLog> Daemon::log_for(const wire::ActorSpec& spec, HostId before) {
  if (auto node = logs_.extract(before)) return std::move(node.mapped());
  return make_log(spec);
}

void Daemon::take_up_outputs(std::map<ActorId, UniqueFd> outputs) {
  for (auto& [id, fd] : outputs) {
    if (auto ring = OutputRing::adopt(std::move(fd)); ring.ok()) {
      earlier_outputs_.emplace(id, std::move(*ring));
    } else {
      log_.warning("actor {}: {}", id.brief(), ring.status().to_string());
      (void)keeper_->drop(output_key(id));
    }
  }
}

// Which of them ended last is not known any more: any may go, but for those of actors that may come
// back.
void Daemon::forget_earlier_outputs(const std::set<ActorId>& but_not) {
  std::size_t left = 0;
  std::erase_if(earlier_outputs_, [&](const auto& entry) {
    const ActorId& id = entry.first;
    if (but_not.contains(id) || ++left <= kEarlierOutputsMax) return false;
    (void)keeper_->drop(output_key(id));
    return true;
  });
}

void Daemon::carry_out(node_command::ForgetHost& command) {
  const auto log = logs_.find(command.host);
  if (log == logs_.end()) return;
  if (keeper_) (void)keeper_->drop(output_key(log->second->actor_id()));
  logs_.erase(log);
}

void Daemon::on_output(const wire::OutputLine& line, const JobId& job_id) {
  if (options_.on_output) options_.on_output(line);
  if (service_) service_->publish(line, job_id);
}

std::vector<wire::OutputLine> Daemon::kept_output(JobId job_id, ActorId actor_id) {
  std::vector<wire::OutputLine> lines;
  std::size_t bytes = 0;
  for (const auto& [host, log] : logs_) {
    const bool wanted = actor_id.empty() ? log->job_id() == job_id : log->actor_id() == actor_id;
    if (!wanted || bytes > kReplayBytesMax) continue;
    for (auto& line : log->lines(kReplayLinesMax)) {
      bytes += line.text.size() + line.label.size() + 100;
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

void Daemon::drain_output() {
  for (const auto& [id, host] : hosts_) host->read_output();
  for (const auto& [id, log] : logs_) log->flush();
}

HostProcess::Handlers Daemon::handlers_of(HostId host) {
  return {.on_message =
              [this, host](wire::HostMessage message, UniqueFd fd) {
                apply(node_event::FromHost{host, std::move(message), hold(std::move(fd))});
              },
          .on_channel_end =
              [this, host](Status why) {
                apply(node_event::ChannelEnded{host, std::move(why)});
              },
          .on_read =
              [this, host](std::size_t left_bytes) {
                apply(node_event::Unread{host, left_bytes, true});
              },
          .on_leader_end =
              [this, host](wire::ExitStatus exit) {
                apply(node_event::LeaderEnded{host, exit});
              },
          .on_group_gone = [this, host] { apply(node_event::GroupGone{host}); }};
}

HostProcess::Place Daemon::place_of(HostId host, const wire::ActorSpec& spec) {
  return {loop_,
          *parent_,
          host,
          logs_.at(host),
          log_,
          spec.is_program(),
          spec.is_program() && options_.programs_read_input};
}

Result<PackagePlace> Daemon::place_of_package(const wire::ActorSpec& spec) {
  if (spec.package.empty()) return PackagePlace();
  if (auto directory = packages_->cache().directory_of(spec.package)) {
    return PackagePlace{spec.package, std::move(*directory)};
  }
  return error(Code::kUnavailable, "{} has just made room for others", spec.package.to_string());
}

Result<std::unique_ptr<HostProcess>> Daemon::spawn(const node_command::SpawnHost& command) {
  if (keeper_children_ != nullptr && !keeper_) TROUPE_RETURN_IF_ERROR(replace_keeper());
  PackagePlace package = TROUPE_TRY(place_of_package(command.spec));
  if (command.spec.is_program()) {
    return HostProcess::spawn_program(
        place_of(command.host, command.spec),
        TROUPE_TRY(program_options(command.spec,
                                   {.node = state_->name(),
                                    .head = options_.head,
                                    .token_file = options_.token_file,
                                    .security = options_.token.security(),
                                    .package = std::move(package)},
                                   SystemEnvironment())),
        handlers_of(command.host));
  }
  auto image = TROUPE_TRY(images_.find(command.spec.image, package));
  wire::ActorSpec spec = command.spec;
  package.tell(spec.environment, SystemEnvironment());
  return HostProcess::spawn(place_of(command.host, spec), *image, spec, handlers_of(command.host),
                            package.working_folder());
}

void Daemon::carry_out(node_command::SpawnHost& command) {
  auto log = log_for(command.spec, command.log);
  open_files(*log, command.spec);
  log->begin_process(command.generation);
  logs_[command.host] = std::move(log);
  auto host = spawn(command);
  if (!host.ok()) {
    events_.push_back(node_event::SpawnFailed{
        command.host, host.status().with("actor", command.spec.type).with("node", state_->name())});
    return;
  }
  const pid_t pid = (*host)->pid();
  log_.info("actor {} (generation {}) runs as process {}", command.spec.actor_id.brief(),
            command.generation, pid);
  hosts_[command.host] = std::move(*host);
  events_.push_back(node_event::Spawned{command.host, pid});
}

// --- the keeper ----------------------------------------------------------------------------------

Status Daemon::open_keeper(Duration patience) {
  keeper_ = TROUPE_TRY(process::KeeperClient::open(
      loop_,
      {.socket_name = "troupe-keeper-" + info_.node_id.to_string(),
       .hold = ends_with_daemon() ? kStoppedDaemonTimeout : options_.keeper_hold,
       .program = options_.keeper_program},
      Deadline::after(patience)));
  if (ends_with_daemon()) hold_until_lease_end();
  return {};
}

void Daemon::listen_to_keeper() {
  keeper_->start({.on_exit = [this](std::uint64_t id,
                                    wire::ExitStatus exit) { keeper_children_->ended(id, exit); },
                  .on_lost = [this](const Status& why) { keeper_lost(why); }});
}

Status Daemon::find_parent() {
  if (options_.parent == Parent::kDaemon) {
    parent_ = std::make_unique<OwnChildren>(loop_);
    return {};
  }
  TROUPE_RETURN_IF_ERROR(open_keeper(options_.keeper_start_timeout));
  auto children = std::make_unique<KeeperChildren>(loop_, *keeper_);
  keeper_children_ = children.get();
  parent_ = std::move(children);
  const auto& contents = keeper_->contents();
  keeper_is_ours_ = contents.entries.empty() && contents.children.empty();
  return {};
}

Status Daemon::replace_keeper() {
  TROUPE_RETURN_IF_ERROR(open_keeper(options_.keeper_replace_timeout));
  listen_to_keeper();
  keeper_children_->use(*keeper_);
  return {};
}

// What the daemon before left: its processes, their sockets and output, memory.
void Daemon::take_up() {
  keeper_is_ours_ = true;
  KeptState kept = decode_kept(std::move(keeper_->contents()));
  listen_to_keeper();
  for (const std::string& problem : kept.problems) log_.warning("{}", problem);
  if (!kept.node) {
    for (const std::string& key : kept.strays) (void)keeper_->drop(key);
    for (const auto& [id, fd] : kept.outputs) (void)keeper_->drop(output_key(id));
    return;
  }
  take_up_outputs(std::move(kept.outputs));
  node_event::Adopt adopt;
  adopt.node = *kept.node;
  std::vector<HostId> lost;
  std::set<ActorId> may_come_back;
  for (auto& [id, actor] : kept.actors) {
    if (actor.record.host == 0) may_come_back.insert(id);
    node_event::Adopt::Actor entry{actor.record,
                                   std::move(actor.spec),
                                   0,
                                   false,
                                   hold(std::move(actor.saved_state)),
                                   std::move(actor.state_lost_with)};
    if (entry.kept.host != 0 && !take_up(entry, kept)) lost.push_back(entry.kept.host);
    adopt.actors.push_back(std::move(entry));
  }
  forget_earlier_outputs(may_come_back);
  for (auto& [record, fd] : kept.segments) {
    adopt.segments.push_back({record, hold(std::move(fd))});
  }
  adopt.gpus = std::move(kept.gpus);
  // Of nobody: ended, and started without a record.
  for (const auto& [host, child] : kept.children) {
    if (!child.ended) (void)process::kill_group(static_cast<pid_t>(child.pid), SIGKILL);
    parent_->release(host);
  }
  for (const std::string& key : kept.strays) (void)keeper_->drop(key);
  log_.info("took over {} processes of the daemon before", hosts_.size());
  apply(std::move(adopt));
  for (const HostId host : lost) {
    apply(node_event::SpawnFailed{
        host, Status(Code::kUnavailable, "its node's daemon was killed as it started it")});
  }
}

// False: there is no such process.
bool Daemon::take_up(node_event::Adopt::Actor& actor, KeptState& kept) {
  const HostId host = actor.kept.host;
  const auto child = kept.children.find(host);
  const auto ends = kept.ends.find(host);
  if (child == kept.children.end() || ends == kept.ends.end()) return false;
  actor.pid = child->second.pid;
  actor.ended = child->second.ended;
  logs_[host] = make_log(actor.spec);
  open_files(*logs_[host], actor.spec);
  hosts_[host] = HostProcess::adopt(place_of(host, actor.spec), static_cast<pid_t>(actor.pid),
                                    std::move(ends->second), handlers_of(host));
  kept.children.erase(child);
  return true;
}

void Daemon::keeper_lost(const Status& why) {
  log_.error("the node's keeper has ended, and with it every actor's process: {}", why.to_string());
  keeper_.reset();
  keeper_children_->use_none();
  // Where that fails, the next process that is to start tries again.
  const Status replaced = replace_keeper();
  if (!replaced.ok()) log_.error("no other keeper could be started: {}", replaced.to_string());
  apply(node_event::KeeperLost{});
  keeper_children_->end_all();
}

void Daemon::carry_out(node_command::Keep& command) {
  if (!keeper_) return;
  if (auto* node = get_if<wire::KeptNode>(&command.record)) {
    // What the next daemon binds, wherever others reach it.
    node->endpoint.host = listener_->address().host;
    node->endpoint.port = listener_->address().port;
  }
  memory::RecordMemory start;
  int fd = -1;
  if (command.start) {
    auto made = encode_start(*command.start);
    if (!made.ok()) return log_.warning("{}", made.status().to_string());
    start = std::move(*made);
    fd = start.fd();
  } else if (const auto held = held_.find(command.fd); held != held_.end()) {
    fd = held->second.get();
  }
  const Status put = keeper_->put(command.key, wire::encode(command.record), fd);
  if (!put.ok()) log_.warning("the keeper does not hold {}: {}", command.key, put.to_string());
}

// --- commands ------------------------------------------------------------------------------------

void Daemon::carry_out(node_command::TellHost& command) {
  const auto host = hosts_.find(command.host);
  if (host == hosts_.end()) return;
  if (auto* start = get_if<wire::HostStart>(&command.message)) {
    start->node_endpoint = info_.endpoint;
    start->head_endpoint = {options_.head.host, options_.head.port, options_.head.local_name};
    start->token = options_.token.secret();
    start->security = static_cast<std::uint8_t>(options_.token.security());
  }
  const auto fd = held_.find(command.fd);
  const Status told =
      host->second->tell(command.message, fd == held_.end() ? -1 : fd->second.get());
  if (told.ok()) {
    const std::size_t unread = host->second->unread_bytes();
    if (unread > 0) events_.push_back(node_event::Unread{command.host, unread});
    return;
  }
  // It is gone already, or about to: whom it left behind goes with it.
  if (told.code() == Code::kUnavailable) return host->second->kill_group();
  if (holds_alternative<wire::HostConnection>(command.message)) {
    return connection_closed(command.host, told);
  }
  // Nothing is said twice.
  log_.warning("the process of actor {} is not told something: {}",
               logs_.at(command.host)->actor_id().brief(), told.to_string());
  events_.push_back(node_event::ChannelEnded{
      command.host,
      error(Code::kAborted, "its node could not tell it something: {}", told.message())});
}

void Daemon::carry_out(node_command::KillGroup& command) {
  const auto host = hosts_.find(command.host);
  if (host != hosts_.end()) host->second->kill_group();
}

void Daemon::carry_out(node_command::Registered& command) {
  info_.name = command.name;
  head_trouble_.clear();
  unreported_.erase(unreported_.begin(),
                    unreported_.begin() + static_cast<std::ptrdiff_t>(in_registration_));
  in_registration_ = 0;
  for (auto& exited : std::exchange(unreported_, {})) report(std::move(exited));
  log_.info("joined the head at {} as {}", options_.head.to_string(), command.name);
  if (options_.on_registered) std::exchange(options_.on_registered, nullptr)(command.name);
}

void Daemon::carry_out(node_command::EndNode& command) {
  link_->flush_and_close(kFlushMs);
  listener_.reset();
  if (!command.status.ok()) log_.error("the node ends: {}", command.status.to_string());
  end_reason_ = std::move(command.reason);
  if (options_.on_stopped) std::exchange(options_.on_stopped, nullptr)(std::move(command.status));
}

void Daemon::signal_programs(int signal) {
  for (const auto& [id, host] : hosts_) host->signal_program(signal);
}

}  // namespace

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::start(net::EventLoop& loop, NodeOptions options) {
  TROUPE_RETURN_IF_ERROR(check(options));
  auto daemon = std::make_unique<Daemon>(loop, std::move(options));
  TROUPE_RETURN_IF_ERROR(daemon->start());
  return std::unique_ptr<NodeDaemon>(std::move(daemon));
}

}  // namespace troupe::scheduler
