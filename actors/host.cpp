#include "actors/host.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#include "actors/actor_spec.h"
#include "actors/argument_sender.h"
#include "actors/call_connection.h"
#include "actors/call_runner.h"
#include "actors/call_server.h"
#include "actors/guarded.h"
#include "actors/light_table.h"
#include "actors/pipelines/stage_host.h"
#include "actors/segment_attacher.h"
#include "actors/state_copy.h"
#include "actors/state_saver.h"
#include "actors/stop_words.h"
#include "actors/tasks/task_worker.h"
#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/base/short_slices.h"
#include "runtime/base/timing.h"
#include "runtime/memory/segment_transfer.h"
#include "runtime/net/handed_over.h"
#include "runtime/process/host_channel.h"

namespace troupe::detail {
namespace {

// The node sends it when it has spawned the process.
constexpr Duration kStartTimeout = std::chrono::seconds(30);
// How long the last answers may take to leave.
constexpr std::int64_t kFlushMs = 500;
constexpr Duration kLastAnswersTime = std::chrono::milliseconds(20);
// Time stays representable.
constexpr std::int64_t kHealthMsMax = 24LL * 3600 * 1000;
// How often an actor that drains is looked at.
constexpr Duration kDrainLook = std::chrono::milliseconds(2);
// Sockets that came before anybody accepted their purpose.
constexpr std::size_t kWaitingConnectionsMax = 256;

// `count` without `part` of it, which was counted at another moment.
std::size_t less(std::size_t count, std::size_t part) { return count - std::min(count, part); }
// The actor has another process by now, which this one knows from its callers or from those that it
// calls. It ends as if it had been killed: what it does counts nowhere any more.
[[noreturn]] void end_superseded(const std::string& actor, const Status& why) {
  std::fprintf(stderr, "troupe host: %s ends, since it has a successor: %s\n", actor.c_str(),
               why.message().c_str());
  ::_exit(1);
}

[[noreturn]] void end_without_copy(const std::string& actor, const Status& why) {
  std::fprintf(
      stderr,
      "troupe host: %s ends: the copy of its state could not be brought in step, nor given "
      "up (ActorOptions::replicas): %s\n",
      actor.c_str(), why.to_string().c_str());
  ::_exit(1);
}

std::shared_ptr<HostPageSegment> make_host_page() {
  auto page = HostPageSegment::create();
  return page.ok() ? std::move(*page) : nullptr;
}
MailboxWords shared_by(const std::shared_ptr<HostPageSegment>& page) {
  if (!page) return {};
  return {&page->page().host_word, &page->page().mailbox_calls, page};
}

class Host final : public HostServices, private CallControl {
 public:
  Host(std::vector<ActorClass> classes, UniqueFd node_socket,
       const DirectoryFactory& make_directory, OnSaved on_saved)
      : classes_(std::move(classes)),
        make_directory_(make_directory),
        on_saved_(std::move(on_saved)),
        thread_("troupe-host"),
        loop_(thread_.loop()),
        node_(loop_, std::move(node_socket)),
        host_page_(make_host_page()),
        mailbox_(std::make_shared<Mailbox>(limits::kMailboxCallsMax, shared_by(host_page_))) {}
  ~Host() override { stop_securing(); }

  int run();

  Status save_now() override;
  void accept_connections(const std::string& purpose, OnConnection on_connection) override;
  std::stop_token stop_token() const override { return stop_.get_token(); }
  // (In a forked child these are refused: mailbox, saved state and the node's socket are shared
  // with the parent.)
  void request_exit() override {
    if (process_.is_forked()) return;
    mailbox_->stop();
    stop_.request_stop();
  }
  Status keep_segment(const std::string& name, int fd) override {
    if (process_.is_forked()) return ProcessStamp::forked_error();
    return node_.send(wire::HostKeepSegment{name, fd < 0}, fd);
  }
  Result<UniqueFd> attach_segment(const std::string& name, Deadline deadline) override {
    TROUPE_CHECK(!loop_.in_loop_thread());
    if (process_.is_forked()) return ProcessStamp::forked_error();
    return attacher_.attach(name, deadline);
  }

 private:
  struct Started {
    wire::HostStart message;
    UniqueFd saved_state;
  };

  // Where it cannot be told, the process is about to end (the channel's end), or its node to end
  // it.
  void tell_node(const wire::HostMessage& message) {
    const Status told = node_.send(message);
    if (!told.ok()) std::fprintf(stderr, "troupe host: %s\n", told.to_string().c_str());
  }
  void on_message(wire::HostMessage message, UniqueFd fd);
  void on_connection(wire::HostConnection connection, ByteStream socket);
  void begin_securing(const net::Token& token);
  void stop_securing();
  Result<Started> wait_for_start();
  Status prepare(Started& started);
  Status create(Started& started);
  Status create_light(std::span<const std::byte> arguments, UniqueFd log, std::string state_lost);
  Status check_state_loss(const std::string& node) const;
  Status begin();
  Result<memory::Segment> receive_arguments();
  Status load(UniqueFd segment);
  void serve();
  void take(QueuedCall call);
  Status save_after(const QueuedCall& call, const Result<wire::Bytes>& result);
  Status save(const StateSaver::Answered& answered) TROUPE_REQUIRES(save_mutex_);
  Status load(const SavedState& state);
  Status give_state(int fd);
  std::shared_ptr<CallServer> server();
  void begin_draining(const wire::HostStop& stop);
  void look_at_drain(Deadline deadline);
  void refuse_waiting(const Status& why) override;
  std::size_t give_up_waiting(CallServer& server);
  void end_draining(std::size_t calls_dropped);
  void ask_health();
  void answer_health();
  void shut_down();
  std::string label() const {
    return spec_.name.empty() ? fmt::format("{} {}", spec_.type, spec_.actor_id.brief())
                              : spec_.name;
  }

  const ProcessStamp process_;
  const std::vector<ActorClass> classes_;
  const DirectoryFactory make_directory_;
  const OnSaved on_saved_;
  net::LoopThread thread_;
  net::EventLoop& loop_;
  process::HostChannel node_;
  SegmentAttacher attacher_{[this](const wire::HostMessage& m) { return node_.send(m); }};
  const std::shared_ptr<HostPageSegment> host_page_;  // null: callers keep to their sockets
  const std::shared_ptr<Mailbox> mailbox_;
  std::stop_source stop_;
  Promise<Started> start_;
  bool start_seen_ = false;  // loop thread
  std::atomic<bool> ready_{false};
  std::atomic<bool> state_lost_{false};  // and no copy was found

  // Set before calls are served.
  wire::ActorSpec spec_;
  std::span<const std::byte> constructor_arguments_;  // of spec_, after its call limits
  NodeId node_id_;
  std::uint64_t generation_ = 0;
  const ActorClass* class_ = nullptr;
  // Where this process hosts light actors; `class_` is then that of hosts.
  std::optional<LightClass> light_class_;
  std::shared_ptr<LightHostExecutor> light_executor_;
  std::shared_ptr<ActorClient> client_;
  std::shared_ptr<CallServer> calls_;
  std::shared_ptr<CallServer> server_;  // calls_, once the actor is there
  std::shared_ptr<StageHost> stages_;
  std::unique_ptr<ActorContext> context_;
  std::unique_ptr<ActorInstance> actor_;
  LightTable* light_ = nullptr;  // actor_, where it is one
  std::shared_ptr<CallRunner> runner_;
  Mutex known_mutex_;
  CondVar known_changed_;
  bool state_known_ TROUPE_GUARDED_BY(known_mutex_) = false;  // the head knows that there is one
  Mutex save_mutex_;
  StateSaver saver_ TROUPE_GUARDED_BY(save_mutex_){
      [this](int fd) { return give_state(fd); },
      [this](const Status& why) { end_without_copy(label(), why); }};
  std::uint32_t calls_since_save_ TROUPE_GUARDED_BY(save_mutex_) = 0;

  std::unique_ptr<net::HandedOver> handed_over_;  // loop thread
  bool draining_ = false;                         // this and the next four: loop thread
  bool gives_back_ = false;  // draining: calls that it does not come to go to the next process
  std::optional<DrainWatch> drain_watch_;
  std::optional<net::TimerId> drain_timer_;
  std::optional<net::TimerId> health_timer_;
  std::atomic<bool> health_asked_{false};

  struct WaitingConnection {
    wire::HostConnection connection;
    ByteStream socket;
  };
  Mutex acceptors_mutex_;
  std::map<std::string, OnConnection> acceptors_ TROUPE_GUARDED_BY(acceptors_mutex_);
  std::deque<WaitingConnection> waiting_ TROUPE_GUARDED_BY(acceptors_mutex_);
};

// --- the node's messages -------------------------------------------------------------------------

void Host::on_message(wire::HostMessage message, UniqueFd fd) {
  if (auto* start = get_if<wire::HostStart>(&message)) {
    if (std::exchange(start_seen_, true)) {
      // Said by a new daemon: the one before may have died with the answer.
      if (ready_) tell_node(wire::HostReady{.state_lost = state_lost_});
      return;
    }
    start_.set(Started{std::move(*start), std::move(fd)});
  } else if (auto* connection = get_if<wire::HostConnection>(&message)) {
    on_connection(std::move(*connection), std::move(fd));
  } else if (const auto* stop = get_if<wire::HostStop>(&message)) {
    if (stop->drain && ready_) return begin_draining(*stop);
    mailbox_->stop();
    stop_.request_stop();
  } else if (holds_alternative<wire::HostSavedState>(message)) {
    MutexLock lock(known_mutex_);
    state_known_ = true;
    known_changed_.notify_all();
  } else if (const auto* reply = get_if<wire::HostAttachReply>(&message)) {
    attacher_.answered(*reply, std::move(fd));
  }
}

// "actor/ID/comm/run/3" → "comm"; "actor/ID" → "".
std::string purpose_of(const std::string& target) {
  const auto id = target.find('/');
  const auto purpose = id == std::string::npos ? id : target.find('/', id + 1);
  if (purpose == std::string::npos) return {};
  return target.substr(purpose + 1, target.find('/', purpose + 1) - purpose - 1);
}

void Host::on_connection(wire::HostConnection connection, ByteStream socket) {
  if (connection.untouched && handed_over_) {
    handed_over_->accept(
        socket.take_socket(), connection.target, connection.peer,
        [this](net::AcceptedSocket accepted) {
          on_connection(wire::HostConnection{std::move(accepted.target), std::move(accepted.peer)},
                        std::move(accepted.socket));
        });
    return;
  }
  const std::string purpose = purpose_of(connection.target);
  OnConnection acceptor;
  {
    MutexLock lock(acceptors_mutex_);
    if (purpose.empty() && server_ && !connection.untouched) {
      acceptor = [server = server_, peer = connection.peer](ByteStream stream, std::string, bool) {
        server->accept(std::move(stream), peer);
      };
    } else if (purpose == kRingPurpose && server_) {
      acceptor = [server = server_](ByteStream stream, std::string, bool) {
        if (!stream.encrypted()) server->accept_ring(stream.take_socket());
      };
    } else if (purpose == kPipelinePurpose && server_) {
      acceptor = [stages = stages_, peer = connection.peer](ByteStream stream, std::string,
                                                            bool same_node) {
        if (same_node && !stream.encrypted()) {
          stages->accept(stream.take_socket());
        } else {
          stages->accept_remote(std::move(stream), peer);
        }
      };
    } else if (const auto it = acceptors_.find(purpose); it != acceptors_.end()) {
      acceptor = it->second;
    } else {
      if (waiting_.size() >= kWaitingConnectionsMax) waiting_.pop_front();
      waiting_.push_back({std::move(connection), std::move(socket)});
      return;
    }
  }
  acceptor(std::move(socket), connection.target, connection.same_node);
}

// From now on connections from other machines are encrypted by this process.
void Host::begin_securing(const net::Token& token) {
  loop_.post([this, token] {
    handed_over_ = std::make_unique<net::HandedOver>(loop_, token, Logger::to_stderr(label()));
  });
}

void Host::stop_securing() {
  auto stopped = std::make_shared<Promise<void>>();
  auto done = stopped->future();
  loop_.post([this, stopped] {
    handed_over_.reset();
    stopped->set(Status());
  });
  (void)done.get(std::chrono::seconds(5));
}

void Host::accept_connections(const std::string& purpose, OnConnection on_connection) {
  loop_.post([this, purpose, on_connection = std::move(on_connection)] {
    std::deque<WaitingConnection> waiting;
    {
      MutexLock lock(acceptors_mutex_);
      if (!purpose.empty()) acceptors_[purpose] = on_connection;
      waiting.swap(waiting_);
    }
    for (auto& w : waiting) this->on_connection(std::move(w.connection), std::move(w.socket));
  });
}

// --- start ---------------------------------------------------------------------------------------

Result<Host::Started> Host::wait_for_start() {
  auto started = start_.future();
  loop_.post([this] {
    node_.start([this](wire::HostMessage message,
                       UniqueFd fd) { on_message(std::move(message), std::move(fd)); },
                // Nobody is left to work for, and nobody may be kept waiting by destructors.
                [](const Status&) { ::_exit(1); });
  });
  return started.get(kStartTimeout);
}

Status Host::prepare(Started& started) {
  const wire::HostStart& message = started.message;
  spec_ = message.spec;
  generation_ = message.generation;
  node_id_ = message.node_id;
  // "Counter[]" with room for some: a host of Counters.
  const bool light = spec_.light_count > 0 && spec_.type.ends_with(kLightSuffix);
  const std::string_view type =
      std::string_view(spec_.type).substr(0, spec_.type.size() - (light ? kLightSuffix.size() : 0));
  std::string known;
  for (const auto& candidate : classes_) {
    if (candidate.interface.type == type) class_ = &candidate;
    // Troupe's own are nobody's to use.
    if (candidate.interface.type == class_name<StateCopy>() ||
        candidate.interface.type == kTaskWorkerType)
      continue;
    known += (known.empty() ? "" : ", ") + std::string(candidate.interface.type);
  }
  mailbox_->adopt_thread();
  if (message.protocol_version != wire::kProtocolVersion) {
    return error(Code::kProtocol,
                 "this program speaks protocol {}, its node speaks {}: build the program with the "
                 "version of troupe that the nodes run",
                 wire::kProtocolVersion, message.protocol_version);
  }
  if (!class_) {
    return error(Code::kNotFound,
                 "the program has no actor class {}: list it in troupe::actors<…> in main() (there "
                 "are: {})",
                 type, known);
  }
  if (light) {
    if (spec_.light_count > limits::kLightPerHostMax) {
      return error(Code::kInvalidArgument, "a host of {} light actors: at most {}",
                   spec_.light_count, limits::kLightPerHostMax);
    }
    TROUPE_RETURN_IF_ERROR(LightClass::check(*class_));
    class_ = &light_class_.emplace(*class_).hosts();
    light_executor_ = std::make_shared<LightHostExecutor>(mailbox_);
    mailbox_->limit_calls(limits::kLightMailboxCallsMax);
    if (host_page_) host_page_->page().calls_max.store(mailbox_->calls_max());
  }
  auto environment = std::make_shared<ChannelEnvironment>();
  environment->loop = &loop_;
  environment->token = net::Token(message.token, net::security_from_number(message.security));
  environment->node_id = node_id_;
  environment->directory = make_directory_(loop_, message);
  environment->self = spec_.actor_id;
  environment->self_generation = generation_;
  environment->on_superseded = [actor = label()](const Status& why) { end_superseded(actor, why); };
  auto random = std::make_shared<SystemRandom>();
  ClientOptions options;
  options.name = label();
  options.environment = std::move(environment);
  options.job_id = spec_.job_id;
  options.client_id = spec_.owner;
  options.image = [image = spec_.image]() -> Result<wire::Image> { return image; };
  options.self = spec_.actor_id;
  options.self_generation = generation_;
  options.executor = light ? std::shared_ptr<Executor>(light_executor_) : mailbox_;
  options.random = random;
  const net::Token token = options.environment->token;
  client_ = std::make_shared<ActorClient>(std::move(options));
  begin_securing(token);
  context_ = Access::make_unique<ActorContext>(ContextState{.spec = spec_,
                                                            .generation = generation_,
                                                            .node_id = node_id_,
                                                            .node_labels = message.node_labels,
                                                            .client = client_,
                                                            .executor = mailbox_,
                                                            .host = *this,
                                                            .log = Logger::to_stderr(label())});
  {
    MutexLock lock(known_mutex_);
    state_known_ = message.has_saved_state;
  }
  if (spec_.replicas > 0 && !class_->saves) {
    return error(Code::kInvalidArgument,
                 "ActorOptions::replicas is {}, and {} saves nothing: it has no save() and load()",
                 spec_.replicas, spec_.type);
  }
  if (spec_.replicas > 0) {
    const auto rack = message.node_labels.find("rack");
    auto copier = std::make_unique<StateCopier>(
        client_,
        StateCopier::Self{spec_.actor_id, generation_, node_id_, spec_.namespace_name,
                          rack == message.node_labels.end() ? "" : rack->second},
        Logger::to_stderr(label()), [this] {
          mailbox_->post([this] {
            MutexLock lock(save_mutex_);
            saver_.copy_last();
          });
        });
    MutexLock lock(save_mutex_);
    saver_.set_copier(std::move(copier));
  }
  constructor_arguments_ = spec_.constructor_arguments;  // or its beginning: receive_arguments()
  const CallLimits limits = take_call_limits(constructor_arguments_);
  if (class_->exactly_once && limits.max_concurrency > 1) {
    return error(Code::kInvalidArgument,
                 "{} declares kExactlyOnce, whose calls run one at a time: "
                 "ActorOptions::max_concurrency {} is none for it",
                 spec_.type, limits.max_concurrency);
  }
  const auto pending_max = limits.max_pending_calls > 0
                               ? static_cast<std::size_t>(limits.max_pending_calls)
                               : class_->max_pending_calls;
  if (pending_max > 0) {
    mailbox_->limit_calls(std::min(pending_max, troupe::limits::kMailboxCallsMax));
    if (host_page_) host_page_->page().calls_max.store(mailbox_->calls_max());
  }
  calls_ = std::make_shared<CallServer>(loop_, spec_.actor_id, generation_, class_->interface,
                                        mailbox_, host_page_);
  runner_ = std::make_shared<CallRunner>(
      RunnerConfig{.actor_class = class_,
                   .actor = label(),
                   .node_id = node_id_,
                   .client = client_,
                   .mailbox = mailbox_,
                   .clock = &loop_.clock(),
                   .max_concurrency = limits.max_concurrency > 0
                                          ? std::min(limits.max_concurrency, kConcurrencyMax)
                                          : class_->max_concurrency,
                   .ran = [this](const QueuedCall& call, const Result<wire::Bytes>& result) {
                     return save_after(call, result);
                   }});
  calls_->set_held(runner_);
  calls_->set_on_superseded([actor = label()](const Status& why) { end_superseded(actor, why); });
  mailbox_->set_source(calls_);
  stages_ = std::make_shared<StageHost>(loop_, calls_, host_page_, class_->exactly_once);
  return {};
}

Status Host::create(Started& started) {
  const DecodeContext decode{.client = client_, .takes_references = true};
  memory::Segment beside;
  if (spec_.arguments_beside_bytes > 0) {
    beside = TROUPE_TRY(receive_arguments());
    constructor_arguments_ = beside.bytes();
  }
  Decoder prefix(constructor_arguments_);
  std::uint64_t hash = 0;
  if (!prefix.get(hash)) return prefix.status();
  if (hash != class_->constructor_hash) {
    return error(
        Code::kFailedPrecondition,
        "the constructor of {} takes other arguments here than in the program that spawned "
        "the actor. Build both from the same sources",
        spec_.type);
  }
  const auto arguments = constructor_arguments_.subspan(sizeof hash);
  std::string state_lost;
  std::optional<SavedState> copied;
  if (const std::string& node = started.message.state_lost_with; !node.empty()) {
    MutexLock lock(save_mutex_);
    copied = TROUPE_TRY(saver_.take_copy());
    if (!copied) {
      TROUPE_RETURN_IF_ERROR(check_state_loss(node));
      state_lost = fmt::format("what the actor had saved is lost with node {}", node);
      state_lost_ = saver_.has_copier();
    }
  }
  if (light_class_) {
    TROUPE_RETURN_IF_ERROR(
        create_light(arguments, std::move(started.saved_state), std::move(state_lost)));
    return begin();
  }
  auto actor = guarded([&] { return class_->create(*context_, arguments, decode); });
  if (!actor.ok()) return actor.status();
  actor_ = std::move(*actor);
  if (started.message.has_saved_state) {
    TROUPE_RETURN_IF_ERROR(load(std::move(started.saved_state)));
  } else if (copied) {
    TROUPE_RETURN_IF_ERROR(load(*copied));
    MutexLock lock(save_mutex_);
    TROUPE_RETURN_IF_ERROR(saver_.write(*copied));
  } else if (!state_lost.empty()) {
    TROUPE_RETURN_IF_ERROR(
        guarded([&] { return actor_->load_lost(state_lost); }).prefixed("load_lost()"));
  }
  return begin();
}

// Those that are too large for the spec, from the process that created the actor.
Result<memory::Segment> Host::receive_arguments() {
  struct Arrived {
    ByteStream stream;
    bool same_node = false;
  };
  const std::uint64_t bytes = spec_.arguments_beside_bytes;
  if (const auto limit = call_connection_options().attachment_bytes_max; bytes > limit) {
    return error(Code::kResourceExhausted,
                 "constructor arguments of {} bytes: a process here takes at most {}, half of the "
                 "memory that it may use",
                 bytes, limit);
  }
  auto arrived = std::make_shared<Promise<std::shared_ptr<Arrived>>>();
  auto future = arrived->future();
  accept_connections(kArgumentsPurpose,
                     [arrived](ByteStream stream, const std::string&, bool same_node) {
                       arrived->set(std::make_shared<Arrived>(
                           Arrived{.stream = std::move(stream), .same_node = same_node}));
                     });
  const auto from = future.get(kArgumentsWait);
  if (!from.ok()) {
    return error(
        Code::kUnavailable,
        "{} bytes of constructor arguments have not come from the process that created "
        "the actor, which keeps them: it has ended, or does not reach this node. Arguments "
        "of at most {} bytes are kept by the head, for actors that outlive their creator",
        bytes, limits::kSpecArgumentBytesMax);
  }
  auto received = memory::receive_segment((*from)->stream, (*from)->same_node, bytes,
                                          Deadline::after(arguments_time(bytes)));
  if (!received.ok()) {
    return received.status().prefixed("receiving the constructor's arguments");
  }
  memory::Segment segment = std::move(*received);
  if (segment.size() != bytes || xxh3_64(segment.bytes()) != spec_.arguments_beside_hash) {
    return error(Code::kDataLoss, "the constructor's arguments came damaged");
  }
  return segment;
}

// Whether it may begin without the state that it had saved.
Status Host::check_state_loss(const std::string& node) const {
  const ActorClass& own = light_class_ ? light_class_->of() : *class_;
  if (!own.saves || own.has_load_lost || spec_.start_empty_on_state_loss) return {};
  return error(
      Code::kDataLoss,
      "what {} had saved is lost with node {}, and it does not begin without it. Give {} a "
      "member `void load_lost(const std::string& why)`, which is called in place of "
      "load(), or set ActorOptions::start_empty_on_state_loss",
      label(), node, own.interface.type);
}

Status Host::begin() {
  actor_->begin(*this);
  runner_->begin(*actor_, *calls_);
  // Callers that came before wait in waiting_: what was answered must be known first.
  MutexLock lock(acceptors_mutex_);
  server_ = calls_;
  return {};
}

Status Host::create_light(std::span<const std::byte> arguments, UniqueFd log,
                          std::string state_lost) {
  auto table =
      TROUPE_TRY(LightTable::create({.light_class = *light_class_,
                                     .spec = spec_,
                                     .generation = generation_,
                                     .node_id = node_id_,
                                     .client = client_,
                                     .executor = light_executor_,
                                     .host = *this,
                                     .host_context = *context_,
                                     .keep_log = [this](int fd) { return give_state(fd); },
                                     .run = [this](QueuedCall call) { take(std::move(call)); },
                                     .label = label(),
                                     .state_lost = std::move(state_lost)},
                                    arguments, std::move(log)));
  light_ = table.get();
  actor_ = std::move(table);
  return {};
}

Status Host::load(UniqueFd fd) {
  std::optional<SavedState> state;
  {
    MutexLock lock(save_mutex_);
    state = TROUPE_TRY(saver_.open(std::move(fd)));
  }
  if (!state) return {};
  TROUPE_RETURN_IF_ERROR(load(*state));
  // Before anything is answered that is in it.
  MutexLock lock(save_mutex_);
  return saver_.copy(*state);
}

Status Host::load(const SavedState& state) {
  TROUPE_RETURN_IF_ERROR(
      guarded([&] { return actor_->load(state, DecodeContext{client_}); }).prefixed("load()"));
  return class_->exactly_once ? calls_->restore_answered(state.answered) : Status();
}

int Host::run() {
  auto started = wait_for_start();
  if (!started.ok()) {
    std::fprintf(stderr, "troupe host: the node has not said what to run: %s\n",
                 started.status().to_string().c_str());
    return 1;
  }
  Status ready = prepare(*started);
  if (ready.ok()) ready = create(*started);
  if (!ready.ok()) {
    ready.with("actor", label()).with("method", fmt::format("{}::{}", spec_.type, spec_.type));
    ready.with("node", node_id_.brief());
    std::fprintf(stderr, "troupe host: %s\n", ready.to_string().c_str());
    tell_node(wire::HostFailed{ready});
    shut_down();
    return 1;
  }
  accept_connections("", nullptr);  // those that came before the actor was there
  ready_ = true;
  if (!node_.send(wire::HostReady{.state_lost = state_lost_}).ok()) return 1;
  if (spec_.health.interval_ms > 0) loop_.post([this] { ask_health(); });
  serve();
  shut_down();
  return 0;
}

// --- calls ---------------------------------------------------------------------------------------

void Host::serve() {
  take_short_slices();
  while (auto item = mailbox_->next()) {
    if (health_asked_.load(std::memory_order_relaxed)) answer_health();
    if (auto* call = std::get_if<QueuedCall>(&*item)) {
      take(std::move(*call));
    } else {
      std::get<Mailbox::Work> (*item)();
    }
  }
}

void Host::take(QueuedCall call) {
  if (light_ != nullptr && light_->hold(call)) return;
  runner_->accept(std::move(call));
}

Status Host::save_after(const QueuedCall& call, const Result<wire::Bytes>& result) {
  if (!class_->saves || class_->method_is_const[call.method]) return {};
  MutexLock lock(save_mutex_);
  const std::uint32_t every = class_->save_policy.every_calls;
  if (every == 0 || ++calls_since_save_ < every) return {};
  StateSaver::Answered answered;
  if (class_->exactly_once) {
    answered = [&](SavedAnswers which) { return calls_->answered(call, result, which); };
  }
  const Status saved = save(answered);
  if (on_saved_) on_saved_(spec_, generation_);
  return saved;
}

Status Host::save_now() {
  if (process_.is_forked()) return ProcessStamp::forked_error();
  // In the constructor there is no instance yet: what it sets up is set up again by the next one.
  if (!actor_) return error(Code::kFailedPrecondition, "save_now() in the actor's constructor");
  if (!class_->saves) {
    return error(Code::kFailedPrecondition, "{} has no save() and load()", spec_.type);
  }
  if (class_->exactly_once) {
    return error(Code::kFailedPrecondition,
                 "{} declares kExactlyOnce: its state is saved with the call's answer, and not in "
                 "the middle of it",
                 spec_.type);
  }
  MutexLock lock(save_mutex_);
  return save({});
}

Status Host::save(const StateSaver::Answered& answered) {
  const auto state = [this]() -> Result<SavedState> {
    auto saved = guarded([&]() -> Result<SavedState> { return *actor_->save(); });
    if (!saved.ok()) return saved.status().prefixed("save()");
    return saved;
  };
  TROUPE_RETURN_IF_ERROR(saver_.save(state, answered));
  calls_since_save_ = 0;
  return {};
}

// To the node, which keeps it. The first one is not saved before the head knows that there is one:
// a node that is lost in the next moment must not be lost in silence.
Status Host::give_state(int fd) {
  TROUPE_RETURN_IF_ERROR(node_.send(wire::HostSavedState{generation_}, fd));
  MutexLock lock(known_mutex_);
  (void)known_changed_.wait_until(known_mutex_, Deadline::after(kTiming.state_known_timeout),
                                  [this]() TROUPE_NO_ANALYSIS { return state_known_; });
  state_known_ = true;  // waited for once
  return {};
}

// --- health --------------------------------------------------------------------------------------

// The actor's own thread answers, between two calls; the node notices where it does not.
void Host::ask_health() {
  if (!health_asked_.exchange(true)) {
    mailbox_->post([] {});  // wakes it
  }
  const auto interval = std::clamp<std::int64_t>(spec_.health.interval_ms, 1, kHealthMsMax);
  health_timer_ = loop_.call_after(std::chrono::milliseconds(interval), [this] { ask_health(); });
}

void Host::answer_health() {
  const Status health = guarded([&] { return actor_->health(); });
  health_asked_.store(false);
  tell_node(wire::HostHealth{health});
}

// --- the end -------------------------------------------------------------------------------------

// Nothing new is taken; what is queued runs until the deadline. Where another process follows,
// callers get back what this one does not come to, and send it there.
void Host::begin_draining(const wire::HostStop& stop) {
  if (std::exchange(draining_, true)) return;
  Status why = error(Code::kActorDied, "{}{}", kTakesNoNewCalls, stop.reason);
  const Deadline deadline =
      Deadline::after(std::chrono::milliseconds(stop.grace_ms), loop_.clock());
  gives_back_ = stop.comes_back;
  drain_watch_.emplace(loop_.clock().now());
  // What callers said before this may lie in their sockets still: they are read first.
  drain_timer_ = loop_.call_after(kDrainLook, [this, why = std::move(why), deadline] {
    if (const auto server = this->server()) {
      gives_back_ ? server->give_back_new() : server->refuse_new(why);
    }
    look_at_drain(deadline);
  });
}

// Null while the actor is being made: nobody has called it yet.
std::shared_ptr<CallServer> Host::server() {
  MutexLock lock(acceptors_mutex_);
  return server_;
}

void Host::look_at_drain(Deadline deadline) {
  drain_timer_.reset();
  const auto server = this->server();
  if (!server) return end_draining(0);
  server->read_rings();
  // Who waits for the end of a light actor waits for that of its next process.
  const std::size_t open = less(server->open_calls(), light_ != nullptr ? light_->watches() : 0);
  const TimePoint now = loop_.clock().now();
  if (deadline.passed(now)) return end_draining(less(open, give_up_waiting(*server)));
  const bool done = drain_watch_->may_end(open, server->callers_progress(), now);
  if (gives_back_ ? done : open == 0) return end_draining(0);
  drain_timer_ = loop_.call_after(kDrainLook, [this, deadline] { look_at_drain(deadline); });
}

void Host::refuse_waiting(const Status& why) {
  const auto server = this->server();
  if (!server) return;
  server->read_rings();
  for (const QueuedCall& call : mailbox_->take_calls()) runner_->refuse(call, why);
}

// Those that have not begun can be told so for certain. How many of them nothing is lost of.
std::size_t Host::give_up_waiting(CallServer& server) {
  std::deque<QueuedCall> waiting = mailbox_->take_calls();
  for (QueuedCall& call : runner_->take_waiting()) waiting.push_back(std::move(call));
  for (const QueuedCall& call : waiting) {
    if (gives_back_) {
      server.give_back(call);
    } else {
      runner_->refuse(call, error(Code::kActorDied, "{}", kStoppedBeforeThisCall));
    }
  }
  return gives_back_ ? waiting.size() : 0;
}

void Host::end_draining(std::size_t calls_dropped) {
  tell_node(wire::HostDrained{static_cast<std::int64_t>(calls_dropped)});
  mailbox_->stop();
  stop_.request_stop();
}

void Host::shut_down() {
  mailbox_->stop();
  if (runner_) runner_->stop();
  (void)guarded([&]() -> Status {
    actor_.reset();
    return {};
  });
  if (client_) client_->close();
  auto closed = std::make_shared<Promise<void>>();
  auto done = closed->future();
  loop_.post([this, closed] {
    if (health_timer_) loop_.cancel(*health_timer_);
    if (drain_timer_) loop_.cancel(*drain_timer_);
    node_.stop();
    // When every connection has sent its last answers, or its time for that is over.
    const std::shared_ptr<void> all_sent(nullptr, [closed](void*) { closed->set(Status()); });
    if (stages_) stages_->close();
    if (server_) server_->close(kFlushMs, [all_sent] {});
    // Callers that read their last answers close; a connection that is closed before would lose
    // them where it is not a local one.
    loop_.call_after(kLastAnswersTime, [all_sent] {});
  });
  (void)done.get(std::chrono::seconds(5));
}

}  // namespace

int run_host(std::vector<ActorClass> classes, UniqueFd node_socket,
             const DirectoryFactory& make_directory, OnSaved on_saved) {
  Host host(std::move(classes), std::move(node_socket), make_directory, std::move(on_saved));
  return host.run();
}

}  // namespace troupe::detail
