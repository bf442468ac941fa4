#include "scheduler/node/node_daemon.h"

#include <unistd.h>

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "runtime/net/connection.h"
#include "runtime/process/executable.h"
#include "runtime/process/output.h"
#include "scheduler/node/head_link.h"
#include "scheduler/node/host_process.h"

namespace troupe::scheduler {
namespace {

constexpr std::size_t kLogTailInDeathBytes = 4096;
// What is kept of actors that have no process now: for those that are started again, and for
// `troupe logs`.
constexpr std::size_t kPastActorsMax = 1000;
constexpr std::string_view kActorTarget = "actor/";
constexpr std::size_t kIdDigits = 32;

// An actor that has, or had, a process here.
struct Actor {
  wire::ActorSpec spec;
  std::uint64_t generation = 0;
  std::unique_ptr<HostProcess> process;
  bool ready = false;
  bool constructor_failed = false;
  Status failure;
  std::uint64_t stop_number = 0;  // of the StopActor whose grace runs
  // Outlive the process: given to the next one.
  UniqueFd saved_state;
  std::map<std::string, UniqueFd> segments;
  process::LogTail tail;
  std::vector<std::unique_ptr<WritableFile>> log_files;
};

class Daemon final : public NodeDaemon {
 public:
  Daemon(net::EventLoop& loop, NodeOptions options, FileSystem& files, Random& random, Logger log,
         Handlers handlers)
      : loop_(loop),
        options_(std::move(options)),
        files_(files),
        random_(random),
        log_(std::move(log)),
        handlers_(std::move(handlers)) {}

  ~Daemon() override {
    listener_.reset();
    link_.reset();
    for (auto& [id, actor] : actors_) {
      if (actor.process) actor.process->kill();
    }
    actors_.clear();
  }

  Status start();
  void leave(const std::string& reason) override;
  const net::Address& address() const override { return address_; }

 private:
  Status check_target(const std::string& target) const;
  void accept(net::AcceptedSocket accepted);
  void serve_tool(net::AcceptedSocket accepted);
  wire::LogText read_logs(const wire::ReadLogs& request);

  wire::RegisterNode registration() const;
  void on(wire::StartActor& message);
  void on(wire::StopActor& message);
  void on(wire::ShutdownNode& message) { leave(message.reason); }
  template <typename Message>
  void on(Message&) {}  // what only nodes and clients send

  Result<process::Executable*> executable_for(const wire::Image& image);
  Status launch(Actor& actor);
  void open_logs(Actor& actor);
  void on_host_message(ActorId id, wire::HostMessage message, UniqueFd fd);
  void on_line(Actor& actor, std::string_view line);
  void on_gone(ActorId id, wire::ExitStatus exit);
  void report_exit(Actor& actor, wire::ExitStatus exit, Status cause);
  void forget_past();
  void kill_all(const std::string& why);
  void left_when_empty();
  wire::Endpoint endpoint() const {
    return {address_.host, address_.port, address_.local_name};
  }

  net::EventLoop& loop_;
  const NodeOptions options_;
  FileSystem& files_;
  Random& random_;
  Logger log_;
  Handlers handlers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  net::Address address_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<HeadLink> link_;
  std::map<ActorId, Actor> actors_;
  std::deque<ActorId> past_;  // without a process, oldest first
  std::map<std::uint64_t, std::shared_ptr<net::Connection>> tools_;
  std::uint64_t next_tool_ = 1;
  std::map<std::uint64_t, std::shared_ptr<process::Executable>> executables_;  // by XXH3
  process::LogTail own_tail_;
  std::int64_t joined_unix_us_ = 0;
  bool leaving_ = false;
  std::string leave_reason_;
};

std::string label(const Actor& actor) {
  if (!actor.spec.name.empty()) return actor.spec.name;
  if (actor.spec.rank >= 0) return fmt::format("{} rank {}", actor.spec.type, actor.spec.rank);
  return fmt::format("{} {}", actor.spec.type, actor.spec.actor_id.brief());
}

Status Daemon::start() {
  joined_unix_us_ = loop_.clock().unix_time_us();
  if (!options_.log_dir.empty()) {
    TROUPE_RETURN_IF_ERROR(files_.create_directories(options_.log_dir, 0700));
  }
  net::ListenOptions listen;
  listen.host = options_.host;
  listen.port = options_.port;
  listen.local_name = "troupe-node-" + options_.node_id.to_string();
  listener_ = TROUPE_TRY(net::listen(
      loop_, listen, options_.token, random_, log_,
      [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); },
      [this](const std::string& target) { return check_target(target); }));
  address_ = listener_->address();
  address_.local_name = listen.local_name;
  HeadLinkOptions link{.head = options_.head,
                       .token = options_.token,
                       .join_timeout = options_.join_timeout,
                       .return_timeout = options_.return_timeout};
  link_ = std::make_unique<HeadLink>(
      loop_, std::move(link), log_,
      HeadLink::Handlers{
          .make_registration = [this] { return registration(); },
          .on_registered =
              [this](const wire::RegisterNodeReply& reply) {
                for (const auto& [id, generation] : reply.stop) {
                  wire::StopActor stop{id, generation, 0, "the head does not want it any more"};
                  on(stop);
                }
                if (handlers_.on_registered) handlers_.on_registered(reply.name);
              },
          .on_message =
              [this](wire::ControlMessage message) {
                std::visit([this](auto& m) { on(m); }, message);
              },
          .on_fenced = [this] { kill_all("the head was away for too long: it gives them away"); },
          .on_end =
              [this](Status why) {
                kill_all(why.to_string());
                if (handlers_.on_stopped) std::exchange(handlers_.on_stopped, nullptr)(why);
              }});
  link_->start();
  return {};
}

// --- connections -------------------------------------------------------------------------------------

Status Daemon::check_target(const std::string& target) const {
  if (target == "node") return {};
  if (!target.starts_with(kActorTarget)) {
    return error(Code::kNotFound, "this is a node; it knows no '{}'", target);
  }
  const auto id = ActorId::parse(std::string_view(target).substr(kActorTarget.size(), kIdDigits));
  const auto found = id.ok() ? actors_.find(*id) : actors_.end();
  if (found != actors_.end() && found->second.process) return {};
  // It may be restarted, here or elsewhere: whoever asks looks again at the head.
  return error(Code::kUnavailable, "actor {} has no process on this node now",
               target.substr(kActorTarget.size()));
}

void Daemon::accept(net::AcceptedSocket accepted) {
  if (accepted.target == "node") return serve_tool(std::move(accepted));
  const auto id =
      ActorId::parse(std::string_view(accepted.target).substr(kActorTarget.size(), kIdDigits));
  const auto found = id.ok() ? actors_.find(*id) : actors_.end();
  if (found == actors_.end() || !found->second.process) return;  // it died just now: closed
  const Status sent = found->second.process->send(
      wire::HostConnection{accepted.target, accepted.peer, accepted.same_node},
      accepted.socket.get());
  if (!sent.ok()) log_.warning("{}: a connection was not handed over: {}", label(found->second),
                               sent.to_string());
}

void Daemon::serve_tool(net::AcceptedSocket accepted) {
  const std::uint64_t number = next_tool_++;
  auto connection = net::make_connection(loop_, std::move(accepted.socket), accepted.peer);
  tools_[number] = connection;
  const std::weak_ptr<bool> alive = alive_;
  connection->start(
      {.on_frame =
           [this, number, alive](std::span<const std::byte> frame) {
             if (alive.expired()) return;
             const auto message = wire::decode_control(frame);
             const auto* request =
                 message.ok() ? std::get_if<wire::ReadLogs>(&*message) : nullptr;
             if (request) {
               static_cast<void>(tools_.at(number)->send(wire::encode(read_logs(*request))));
             } else {
               tools_.at(number)->close();
               tools_.erase(number);
             }
           },
       .on_close =
           [this, number, alive](Status) {
             if (!alive.expired()) tools_.erase(number);
           }});
}

wire::LogText Daemon::read_logs(const wire::ReadLogs& request) {
  wire::LogText answer{.request_id = request.request_id};
  if (request.actor_id.empty()) {
    answer.text = own_tail_.text(request.bytes_max);
    return answer;
  }
  const auto found = actors_.find(request.actor_id);
  if (found == actors_.end()) {
    answer.status = error(Code::kNotFound, "this node keeps no output of actor {}",
                          request.actor_id.to_string());
  } else {
    answer.text = found->second.tail.text(request.bytes_max);
  }
  return answer;
}

// --- the head ----------------------------------------------------------------------------------------

wire::RegisterNode Daemon::registration() const {
  wire::RegisterNode message;
  message.node = {.node_id = options_.node_id,
                  .name = options_.name,
                  .endpoint = endpoint(),
                  .total = options_.resources,
                  .available = options_.resources,
                  .labels = options_.labels,
                  .pid = ::getpid(),
                  .joined_unix_us = joined_unix_us_};
  for (const auto& [id, actor] : actors_) {
    if (!actor.process) continue;
    message.running.push_back(
        {actor.spec, actor.generation, actor.process->pid(), actor.ready});
  }
  return message;
}

void Daemon::on(wire::StartActor& message) {
  const ActorId id = message.spec.actor_id;
  Actor& actor = actors_[id];
  if (actor.process) {
    // Said twice, after a reconnection; or an older process that the head does not know of.
    if (actor.generation >= message.generation) return;
    actor.process->kill();
    log_.warning("{} is asked for again while its process runs: killed", label(actor));
    actor.process.reset();
  }
  std::erase(past_, id);
  actor.spec = std::move(message.spec);
  actor.generation = message.generation;
  actor.ready = actor.constructor_failed = false;
  actor.failure = {};
  const Status launched = leaving_ ? Status(Code::kUnavailable, "the node is leaving")
                                   : launch(actor);
  if (launched.ok()) {
    link_->send(wire::ActorStarted{id, actor.generation, actor.process->pid()});
  } else {
    actor.constructor_failed = true;
    report_exit(actor, {}, launched);
  }
}

void Daemon::on(wire::StopActor& message) {
  const auto found = actors_.find(message.actor_id);
  if (found == actors_.end() || !found->second.process ||
      found->second.generation != message.generation) {
    return;
  }
  Actor& actor = found->second;
  if (message.grace_ms <= 0) return actor.process->kill();
  static_cast<void>(actor.process->send(wire::HostStop{message.grace_ms, message.reason}));
  const std::uint64_t generation = actor.generation;
  loop_.call_after(std::chrono::milliseconds(message.grace_ms),
                   [this, alive = std::weak_ptr<bool>(alive_), id = message.actor_id, generation] {
                     if (alive.expired()) return;
                     const auto it = actors_.find(id);
                     if (it != actors_.end() && it->second.process &&
                         it->second.generation == generation) {
                       it->second.process->kill();
                     }
                   });
}

void Daemon::kill_all(const std::string& why) {
  for (auto& [id, actor] : actors_) {
    if (!actor.process) continue;
    log_.warning("{} is ended: {}", label(actor), why);
    actor.process->kill();
  }
}

void Daemon::leave(const std::string& reason) {
  if (std::exchange(leaving_, true)) return;
  leave_reason_ = reason;
  for (auto& [id, actor] : actors_) {
    if (actor.process) actor.process->kill();
  }
  left_when_empty();
}

void Daemon::left_when_empty() {
  for (const auto& [id, actor] : actors_) {
    if (actor.process) return;
  }
  wire::NodeUpdate left;
  left.node = registration().node;
  left.node.state = wire::NodeState::kDead;
  link_->send(left);
  link_->close();
  if (handlers_.on_stopped) {
    // Not from within a process's or the link's own callback.
    loop_.post([stopped = std::exchange(handlers_.on_stopped, nullptr)] { stopped(Status()); });
  }
}

// --- processes ---------------------------------------------------------------------------------------

Result<process::Executable*> Daemon::executable_for(const wire::Image& image) {
  if (const auto known = executables_.find(image.xxh3); known != executables_.end()) {
    return known->second.get();
  }
  auto own = TROUPE_TRY(process::Executable::self());
  const std::uint64_t own_hash = TROUPE_TRY(own->xxh3());
  if (image.xxh3 == own_hash || (image.xxh3 == 0 && image.path.empty())) {
    return (executables_[image.xxh3] = std::move(own)).get();
  }
  auto opened = TROUPE_TRY(process::Executable::open(image.path));
  if (image.xxh3 != 0) {
    const std::uint64_t hash = TROUPE_TRY(opened->xxh3());
    if (hash != image.xxh3) {
      return error(Code::kFailedPrecondition,
                   "{} on node {} is not the driver's program (XXH3 {:016x}, the driver's is "
                   "{:016x}): put the same build on every node",
                   image.path, options_.name, hash, image.xxh3);
    }
  }
  return (executables_[image.xxh3] = std::move(opened)).get();
}

Status Daemon::launch(Actor& actor) {
  process::Executable* executable = TROUPE_TRY(executable_for(actor.spec.image));
  open_logs(actor);
  wire::HostStart start;
  start.spec = actor.spec;
  start.generation = actor.generation;
  start.node_id = options_.node_id;
  start.node_endpoint = endpoint();
  start.head_endpoint = {options_.head.host, options_.head.port, options_.head.local_name};
  start.token = options_.token;
  start.has_saved_state = actor.saved_state.valid();
  const ActorId id = actor.spec.actor_id;
  actor.process = TROUPE_TRY(HostProcess::start(
      loop_, *executable, start, actor.saved_state.get(),
      {.on_message =
           [this, id](wire::HostMessage message, UniqueFd fd) {
             on_host_message(id, std::move(message), std::move(fd));
           },
       .on_line = [this, id](std::string_view line) { on_line(actors_.at(id), line); },
       .on_gone = [this, id](wire::ExitStatus exit) { on_gone(id, exit); }}));
  return {};
}

void Daemon::open_logs(Actor& actor) {
  if (!actor.log_files.empty()) return;
  std::vector<std::string> paths;
  if (!options_.log_dir.empty()) {
    paths.push_back(join_path(options_.log_dir, actor.spec.actor_id.to_string() + ".log"));
  }
  if (!actor.spec.log_path.empty()) {
    const auto slash = actor.spec.log_path.rfind('/');
    if (slash != std::string::npos) {
      static_cast<void>(files_.create_directories(actor.spec.log_path.substr(0, slash)));
    }
    paths.push_back(actor.spec.log_path);
  }
  for (const auto& path : paths) {
    auto file = files_.open_append(path);
    if (file.ok()) {
      actor.log_files.push_back(std::move(*file));
    } else {
      log_.warning("{}: {}", label(actor), file.status().to_string());
    }
  }
}

void Daemon::on_host_message(ActorId id, wire::HostMessage message, UniqueFd fd) {
  Actor& actor = actors_.at(id);
  if (std::holds_alternative<wire::HostReady>(message)) {
    actor.ready = true;
    link_->send(wire::ActorReady{id, actor.generation});
  } else if (auto* failed = std::get_if<wire::HostFailed>(&message)) {
    actor.constructor_failed = true;
    actor.failure = std::move(failed->status);
  } else if (const auto* saved = std::get_if<wire::HostSavedState>(&message)) {
    if (saved->generation == actor.generation) actor.saved_state = std::move(fd);
  } else if (const auto* keep = std::get_if<wire::HostKeepSegment>(&message)) {
    if (keep->drop) {
      actor.segments.erase(keep->name);
    } else {
      actor.segments[keep->name] = std::move(fd);
    }
  }
}

void Daemon::on_line(Actor& actor, std::string_view line) {
  actor.tail.append(line);
  own_tail_.append(fmt::format("[{}] {}", label(actor), line));
  for (auto& file : actor.log_files) {
    // A full disk loses lines of a log, nothing else.
    static_cast<void>(file->append(std::string(line) + "\n"));
  }
  if (options_.on_output) options_.on_output(label(actor), line);
}

void Daemon::on_gone(ActorId id, wire::ExitStatus exit) {
  Actor& actor = actors_.at(id);
  // Not within the process's own callback.
  loop_.post([alive = std::weak_ptr<bool>(alive_),
              gone = std::shared_ptr<HostProcess>(std::move(actor.process))] {});
  report_exit(actor, exit, actor.failure);
  if (leaving_) left_when_empty();
}

void Daemon::report_exit(Actor& actor, wire::ExitStatus exit, Status cause) {
  link_->send(wire::ActorExited{.actor_id = actor.spec.actor_id,
                                .generation = actor.generation,
                                .exit = exit,
                                .constructor_failed = actor.constructor_failed,
                                .cause = std::move(cause),
                                .log_tail = actor.tail.text(kLogTailInDeathBytes)});
  past_.push_back(actor.spec.actor_id);
  if (actor.spec.restart.max_restarts == 0) {
    // Nobody comes after it: its memory goes now, its output stays for a while.
    actor.saved_state.reset();
    actor.segments.clear();
  }
  forget_past();
}

void Daemon::forget_past() {
  while (past_.size() > kPastActorsMax) {
    actors_.erase(past_.front());
    past_.pop_front();
  }
}

}  // namespace

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::start(net::EventLoop& loop, NodeOptions options,
                                                      FileSystem& files, Random& random,
                                                      Logger log, Handlers handlers) {
  auto daemon = std::make_unique<Daemon>(loop, std::move(options), files, random, std::move(log),
                                         std::move(handlers));
  TROUPE_RETURN_IF_ERROR(daemon->start());
  return std::unique_ptr<NodeDaemon>(std::move(daemon));
}

}  // namespace troupe::scheduler
