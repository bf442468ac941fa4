#include "scheduler/client/head_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/process_stamp.h"
#include "runtime/net/connection.h"
#include "runtime/wire/request_id.h"
#include "scheduler/client/watch_table.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kRetryFirst = kTiming.client_retry_first;
constexpr Duration kRetryMost = kTiming.retry_max;

}  // namespace

Status answer_status(const Result<wire::ControlMessage>& answer) {
  if (!answer.ok()) return answer.status();
  if (const auto* reply = get_if<wire::Reply>(&*answer)) return reply->status;
  return Status(Code::kProtocol, "the head gave an answer of another kind");
}

// All members are the loop thread's.
struct HeadClient::State : std::enable_shared_from_this<HeadClient::State> {
  using OnAnswer = std::function<void(Result<wire::ControlMessage>)>;

  struct Request {
    wire::ControlMessage message;
    OnAnswer done;
    TimePoint until{};  // gives up then, where the head is away
  };
  template <typename Id, typename Info>
  using Watches = WatchTable<WatchId, Id, Info>;
  State(net::EventLoop& l, net::Address a, net::Token t, wire::ClientHello h,
        const HeadClientOptions& o)
      : loop(l), address(std::move(a)), token(std::move(t)), hello(std::move(h)), options(o) {}

  void connect_now(Duration patience, std::function<void(Status)> first);
  void connected(ByteStream socket, Duration patience, std::function<void(Status)> first);
  void lost(const Status& why);
  void cut(const Status& why);
  void try_again(Duration pause);
  bool wanted() const;
  void tell_late(const Status& why);
  void give_up(const Status& why);
  void ask(wire::ControlMessage message, OnAnswer done);
  void transmit(std::uint64_t request_id);
  void transmit_rest();
  void fail(std::uint64_t request_id, const Status& why);
  void received(std::span<const std::byte> frame);
  template <typename Table>
  void add_watch(Table& table, WatchId id, typename Table::Watch watch);
  template <typename Table>
  void send_watch(Table& table, WatchId id);
  template <typename Table>
  void end_watch(Table& table, WatchId id);
  template <typename Table, typename Info>
  void updated(Table& table, const Info& info);
  std::string own_namespace() const {
    return hello.namespace_name.empty() ? wire::namespace_of_job(hello.job_id)
                                        : hello.namespace_name;
  }
  void answered(std::uint64_t request_id, wire::ControlMessage message);
  void send_node_watch();
  void resume();
  void end();

  net::EventLoop& loop;
  const net::Address address;
  const net::Token token;
  wire::ClientHello hello;
  const HeadClientOptions options;

  std::shared_ptr<net::Connection> connection;
  bool introduced = false;  // the head has answered ClientHello on this connection
  // The first request that found the connection full: it and those after it go when what waits has
  // been sent. 0: none.
  std::uint64_t unsent_from = 0;
  bool closed = false;
  std::atomic<bool> closing{false};  // close() was called; any thread
  bool retrying = false;             // try_again() is under way: once at a time
  TimePoint away_since{};
  std::uint64_t next_request = 1;
  std::map<std::uint64_t, Request> requests;  // unanswered, in order
  Watches<ActorId, wire::ActorInfo> watches;
  Watches<GroupId, wire::PlacementGroupInfo> group_watches;
  Watches<SupervisorId, wire::SupervisorInfo> supervisor_watches;
  std::vector<OnNode> node_watchers;
  OnActorState on_actor_state;
  const ProcessStamp process;
};

// An attempt outlasts the deadline of who waits for it, so that it is the deadline that ends the
// wait and says so.
constexpr Duration kBeyondDeadline = std::chrono::seconds(1);

// --- connecting ---------------------------------------------------------------------------------

// One attempt, which may take `patience` to connect, and then to be answered.
void HeadClient::State::connect_now(Duration patience, std::function<void(Status)> first) {
  net::connect(loop, address, "head", token, Deadline::after(patience, loop.clock()),
               [self = shared_from_this(), patience, first](Result<ByteStream> socket) {
                 if (self->closed) return;
                 if (!socket.ok()) {
                   first(socket.status());
                 } else {
                   self->connected(std::move(*socket), patience, first);
                 }
               });
}

void HeadClient::State::connected(ByteStream socket, Duration patience,
                                  std::function<void(Status)> first) {
  introduced = false;
  unsent_from = 0;
  connection = net::make_connection(loop, std::move(socket), address.to_string());
  const std::weak_ptr<State> weak = weak_from_this();
  connection->start({.on_frame =
                         [weak](std::span<const std::byte> frame) {
                           if (auto self = weak.lock()) self->received(frame);
                         },
                     .on_close =
                         [weak](Status why) {
                           if (auto self = weak.lock()) self->lost(why);
                         },
                     .on_drained =
                         [weak] {
                           if (auto self = weak.lock()) self->transmit_rest();
                         }});
  hello.request_id = next_request++;
  requests[hello.request_id] = {
      hello, [self = shared_from_this(), first](Result<wire::ControlMessage> answer) {
        Status status = answer_status(answer);
        if (status.ok()) {
          self->introduced = true;
          self->hello.reconnect = true;
          self->resume();
        }
        first(std::move(status));
      }};
  transmit(hello.request_id);
  loop.call_after(patience, [weak, attempt = hello.request_id] {
    auto self = weak.lock();
    // Something listens, but no head answers there.
    if (self && self->requests.contains(attempt)) {
      self->cut(Status(Code::kUnavailable, "the head did not answer in time"));
    }
  });
}

void HeadClient::State::resume() {
  for (const auto& [id, request] : requests) transmit(id);
  const auto renew = [this](auto& table) {
    for (const WatchId id : table.unasked()) send_watch(table, id);
  };
  renew(watches);
  renew(group_watches);
  renew(supervisor_watches);
  if (!node_watchers.empty()) send_node_watch();
}

void HeadClient::State::lost(const Status& why) {
  if (closed) return;
  connection.reset();
  const bool was_introduced = std::exchange(introduced, false);
  // An introduction that was under way is not repeated by itself: whoever began it decides.
  const auto introduction = requests.find(hello.request_id);
  if (introduction != requests.end()) {
    auto done = std::move(introduction->second.done);
    requests.erase(introduction);
    done(why);
    return;
  }
  if (!was_introduced) return;
  away_since = loop.clock().now();
  const TimePoint until = away_since + options.reconnect_timeout;
  for (auto& [id, request] : requests) request.until = until;
  watches.wait_until(until);
  group_watches.wait_until(until);
  supervisor_watches.wait_until(until);
  try_again(kRetryFirst);
}

// Ends the connection from this side, where nobody is told that it ended.
void HeadClient::State::cut(const Status& why) {
  if (!connection) return;
  connection->close();
  lost(why);
}

void HeadClient::State::try_again(Duration pause) {
  retrying = true;
  loop.call_after(pause, [self = shared_from_this(), pause] {
    if (self->closed) return;
    self->connect_now(self->options.attempt_timeout, [self, pause](Status status) {
      if (self->closed) return;
      if (status.ok()) {
        self->retrying = false;
        return;
      }
      // Only a head that answers refuses for good: whoever else listens there goes away again.
      if (self->connection &&
          (status.code() == Code::kProtocol || status.code() == Code::kFailedPrecondition)) {
        self->give_up(status);
        return;
      }
      self->tell_late(status);
      if (self->wanted()) {
        self->try_again(std::clamp(2 * pause, kRetryFirst, kRetryMost));
      } else {
        self->retrying = false;
      }
    });
  });
}

// Whether the head is needed as soon as it is back. Who was its client once comes back without
// being asked: the head ends what belongs to clients that do not.
bool HeadClient::State::wanted() const {
  return hello.reconnect || !requests.empty() || !watches.empty() || !group_watches.empty() ||
         !supervisor_watches.empty() || !node_watchers.empty();
}

// An attempt has failed: ends the requests that have waited for as long as they may, and tells the
// watches, which stay. A head with another token is told of at once.
void HeadClient::State::tell_late(const Status& failure) {
  const TimePoint now = loop.clock().now();
  const bool at_once = failure.code() == Code::kUnauthenticated;
  const Status why =
      at_once ? failure
              : error(Code::kUnavailable, "the head at {} has been away for {:.1f} s: {}",
                      address.to_string(), std::chrono::duration<double>(now - away_since).count(),
                      failure.message());
  std::vector<OnAnswer> late;
  std::erase_if(requests, [&](auto& entry) {
    if (!at_once && entry.second.until > now) return false;
    late.push_back(std::move(entry.second.done));
    return true;
  });
  const TimePoint next = now + options.reconnect_timeout;
  auto actors = watches.late(at_once ? TimePoint::max() : now, next);
  auto groups = group_watches.late(at_once ? TimePoint::max() : now, next);
  auto supervisors = supervisor_watches.late(at_once ? TimePoint::max() : now, next);
  for (const auto& done : late) done(why);
  for (const auto& on_actor : actors) on_actor(why);
  for (const auto& on_group : groups) on_group(why);
  for (const auto& on_supervisor : supervisors) on_supervisor(why);
}

// The head is there and wants nothing of this client.
void HeadClient::State::give_up(const Status& why) {
  retrying = false;
  if (auto refused = std::exchange(connection, nullptr)) refused->close();
  auto failed = std::exchange(requests, {});
  const auto actors = watches.clear();
  const auto groups = group_watches.clear();
  const auto supervisors = supervisor_watches.clear();
  for (auto& [id, request] : failed) request.done(why);
  for (const auto& on_actor : actors) on_actor(why);
  for (const auto& on_group : groups) on_group(why);
  for (const auto& on_supervisor : supervisors) on_supervisor(why);
  // A later request tries once more.
}

void HeadClient::State::end() {
  closed = true;
  requests.clear();
  watches.clear();
  group_watches.clear();
  supervisor_watches.clear();
  node_watchers.clear();
  on_actor_state = nullptr;
  if (connection) connection->close();
  connection.reset();
}

// --- requests -----------------------------------------------------------------------------------

void HeadClient::State::transmit(std::uint64_t request_id) {
  if (!connection || (unsent_from != 0 && request_id >= unsent_from)) return;
  const Status sent = connection->send(wire::encode(requests.at(request_id).message));
  if (sent.code() == Code::kOverloaded) {
    unsent_from = request_id;
    return;
  }
  // A connection that is closed says so by itself, and what is unanswered is sent again on the
  // next.
  if (sent.ok() || sent.code() == Code::kUnavailable) return;
  // Not from within whatever goes through the requests now.
  loop.post([weak = weak_from_this(), used = connection, request_id, sent] {
    const auto self = weak.lock();
    if (!self) return;
    if (sent.code() == Code::kInvalidArgument) return self->fail(request_id, sent);
    if (self->connection == used) self->cut(sent);
  });
}

void HeadClient::State::transmit_rest() {
  const std::uint64_t from = std::exchange(unsent_from, 0);
  if (from == 0) return;
  for (auto it = requests.lower_bound(from); it != requests.end(); ++it) transmit(it->first);
}

// No connection takes it: it is larger than a message may be.
void HeadClient::State::fail(std::uint64_t request_id, const Status& why) {
  const auto found = requests.find(request_id);
  if (found == requests.end()) return;
  auto done = std::move(found->second.done);
  requests.erase(found);
  done(error(Code::kInvalidArgument,
             "the request does not fit into one message to the head: {}. Ask for less at once: "
             "fewer actors, smaller constructor arguments",
             why.message()));
}

void HeadClient::State::ask(wire::ControlMessage message, OnAnswer done) {
  if (closed) return;
  const std::uint64_t id = next_request++;
  wire::set_request_id(message, id);
  const TimePoint now = loop.clock().now();
  requests[id] = {std::move(message), std::move(done), now + options.reconnect_timeout};
  if (introduced) {
    transmit(id);
  } else if (!connection && !retrying) {
    away_since = now;
    try_again(Duration::zero());
  }
}

void HeadClient::State::received(std::span<const std::byte> frame) {
  auto message = wire::decode_control(frame);
  if (!message.ok()) return cut(message.status());
  if (const auto* update = get_if<wire::ActorUpdate>(&*message)) {
    if (on_actor_state) on_actor_state(update->actor);
    updated(watches, update->actor);
  } else if (const auto* group = get_if<wire::PlacementGroupUpdate>(&*message)) {
    updated(group_watches, group->group);
  } else if (const auto* supervisor = get_if<wire::SupervisorUpdate>(&*message)) {
    updated(supervisor_watches, supervisor->supervisor);
  } else if (const auto* changed = get_if<wire::NodeUpdate>(&*message)) {
    for (const auto& on_node : std::vector<OnNode>(node_watchers)) on_node(changed->node);
  } else if (const std::uint64_t id = wire::request_id_of(*message).value_or(0); id != 0) {
    answered(id, std::move(*message));
  }
}

void HeadClient::State::answered(std::uint64_t request_id, wire::ControlMessage message) {
  const auto found = requests.find(request_id);
  if (found == requests.end()) return;
  auto done = std::move(found->second.done);
  requests.erase(found);
  done(std::move(message));
}

// --- watches ------------------------------------------------------------------------------------

namespace {

wire::ControlMessage watch_request(ActorId id, const WatchedName& name, bool stop) {
  return wire::WatchActor{
      .actor_id = id, .name = name.second, .stop = stop, .namespace_name = name.first};
}
wire::ControlMessage watch_request(GroupId id, const WatchedName& name, bool stop) {
  return wire::WatchPlacementGroup{.group_id = id, .name = name.second, .stop = stop};
}
wire::ControlMessage watch_request(SupervisorId id, const WatchedName&, bool stop) {
  return wire::WatchSupervisor{.supervisor_id = id, .stop = stop};
}

}  // namespace

template <typename Table>
void HeadClient::State::add_watch(Table& table, WatchId id, typename Table::Watch watch) {
  if (closed) return;
  watch.until = loop.clock().now() + options.reconnect_timeout;
  table.add(id, std::move(watch));
  send_watch(table, id);
}

template <typename Table>
void HeadClient::State::send_watch(Table& table, WatchId id) {
  auto& watch = *table.find(id);
  watch.request_id = next_request;
  ask(watch_request(watch.id, watch.name, false),
      [self = shared_from_this(), &table, id](Result<wire::ControlMessage> answer) {
        auto* const found = table.find(id);
        if (found == nullptr) return;
        found->request_id = 0;
        if (!answer.ok()) return;  // the head is away: it is renewed on the next connection
        const Status status = answer_status(answer);
        if (status.ok()) return;  // its state comes as an update
        table.end(id)->watch.on_change(status);
      });
}

template <typename Table>
void HeadClient::State::end_watch(Table& table, WatchId id) {
  const auto ended = table.end(id);
  if (!ended || !ended->last || ended->watch.id.empty()) return;
  ask(watch_request(ended->watch.id, {}, true), [](Result<wire::ControlMessage>) {});
}

template <typename Table, typename Info>
void HeadClient::State::updated(Table& table, const Info& info) {
  for (const auto& on_change : table.updated(info)) {
    if (closed) return;
    on_change(info);
  }
}

// Said again on each connection; an attempt that a lost connection leaves unanswered does no harm.
void HeadClient::State::send_node_watch() {
  ask(wire::WatchNodes{.without_amounts = true}, [](Result<wire::ControlMessage>) {});
}

// --- the client ---------------------------------------------------------------------------------

HeadClient::HeadClient(std::shared_ptr<State> state) : state_(std::move(state)) {}
HeadClient::~HeadClient() {
  if (state_->process.is_forked()) {
    keep_forked(new std::shared_ptr<State>(state_));
  } else {
    close();
  }
}

std::shared_ptr<HeadClient> HeadClient::make(net::EventLoop& loop, const net::Address& address,
                                             const net::Token& token,
                                             const wire::ClientHello& hello,
                                             const HeadClientOptions& options) {
  return std::shared_ptr<HeadClient>(
      new HeadClient(std::make_shared<State>(loop, address, token, hello, options)));
}

Result<std::shared_ptr<HeadClient>> HeadClient::connect(
    net::EventLoop& loop, const net::Address& address, const net::Token& token,
    const wire::ClientHello& hello, Deadline deadline, const HeadClientOptions& options) {
  TROUPE_CHECK(!loop.in_loop_thread(), "HeadClient::connect would wait for its own thread");
  auto state = std::make_shared<State>(loop, address, token, hello, options);
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  // The only attempt waits as long as its caller does: a head that stands still answers later, and
  // then all that wait at its door.
  const Duration patience =
      std::max<Duration>(deadline.remaining() + kBeyondDeadline, options.attempt_timeout);
  loop.post([state, promise, patience] {
    state->connect_now(patience,
                       [promise](Status status) { promise->set_value(std::move(status)); });
  });
  std::shared_ptr<HeadClient> client(new HeadClient(state));
  if (answer.wait_until(deadline.time()) != std::future_status::ready) {
    return error(Code::kDeadlineExceeded, "the head at {} did not answer in time",
                 address.to_string());
  }
  TROUPE_RETURN_IF_ERROR(answer.get());
  return client;
}

void HeadClient::close() {
  // The loop need not be there any more when it is said again.
  if (state_->process.is_forked() || state_->closing.exchange(true)) return;
  // Waits until the loop has let go, so that no callback comes afterwards.
  auto done = std::make_shared<std::promise<void>>();
  auto ended = done->get_future();
  const auto end = [state = state_] { state->end(); };
  if (state_->loop.in_loop_thread()) {
    end();
    return;
  }
  state_->loop.post([end, done] {
    end();
    done->set_value();
  });
  ended.wait_for(std::chrono::seconds(10));
}

// Every request goes through here.
void HeadClient::request(wire::ControlMessage message,
                         std::function<void(Result<wire::ControlMessage>)> done) {
  if (state_->process.is_forked()) return done(ProcessStamp::forked_error());
  if (state_->closing) return;
  state_->loop.post([state = state_, message = std::move(message), done]() mutable {
    state->ask(std::move(message), std::move(done));
  });
}

namespace {

// For requests whose answer is success or failure.
std::function<void(Result<wire::ControlMessage>)> as_status(HeadClient::OnStatus done) {
  return [done = std::move(done)](Result<wire::ControlMessage> answer) {
    done(answer_status(answer));
  };
}

// For those that are answered by the member of a message.
template <typename Message, typename T>
std::function<void(Result<wire::ControlMessage>)> as_member(std::function<void(Result<T>)> done,
                                                            T Message::*field) {
  return [done = std::move(done), field](Result<wire::ControlMessage> answer) {
    if (!answer.ok()) return done(answer.status());
    if (auto* message = get_if<Message>(&*answer)) return done(std::move(message->*field));
    const Status status = answer_status(answer);
    done(status.ok() ? Status(Code::kProtocol, "the head gave an answer of another kind") : status);
  };
}

// Runs an asynchronous request and waits for its answer.
template <typename T, typename Ask>
T wait_for(Deadline deadline, Ask ask) {
  auto promise = std::make_shared<std::promise<T>>();
  auto answer = promise->get_future();
  ask([promise](T result) { promise->set_value(std::move(result)); });
  if (answer.wait_until(deadline.time()) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded, "the head did not answer in time");
  }
  return answer.get();
}

}  // namespace

void HeadClient::create_actors(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait,
                               OnStatus done) {
  request(wire::CreateActors{.specs = std::move(specs), .gang = gang, .no_wait = no_wait},
          as_status(std::move(done)));
}

void HeadClient::get_or_create_actor(wire::ActorSpec spec, OnCreated done) {
  request(wire::CreateActors{.specs = {std::move(spec)}, .get_if_exists = true},
          [done = std::move(done)](Result<wire::ControlMessage> answer) {
            const Status status = answer_status(answer);
            if (!status.ok()) return done(status);
            done(get<wire::Reply>(*answer).actor_id);
          });
}

void HeadClient::kill_actor(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                            const std::string& reason, OnStatus done, bool drain) {
  request(wire::KillActor{.actor_id = actor_id,
                          .allow_restart = allow_restart,
                          .grace_ms = grace_ms,
                          .reason = reason,
                          .drain = drain},
          as_status(std::move(done)));
}

// Numbers are given here, so that the caller has its own before the first callback.
HeadClient::WatchId HeadClient::next_watch() {
  static std::atomic<WatchId> next{1};
  return next++;
}

HeadClient::WatchId HeadClient::watch_actor(ActorId actor_id, const std::string& name,
                                            OnActor on_actor, const std::string& namespace_name) {
  const WatchId id = next_watch();
  if (state_->process.is_forked()) {
    on_actor(ProcessStamp::forked_error());
    return id;
  }
  if (state_->closing) return id;
  state_->loop.post([state = state_, id, actor_id, name, on_actor, namespace_name] {
    WatchedName watched;
    if (actor_id.empty()) {
      watched = {namespace_name.empty() ? state->own_namespace() : namespace_name, name};
    }
    state->add_watch(state->watches, id, {actor_id, std::move(watched), on_actor});
  });
  return id;
}

void HeadClient::follow_actors(OnActorState on_state) {
  if (state_->process.is_forked()) return;
  state_->loop.post([state = state_, on_state = std::move(on_state)]() mutable {
    if (!state->closed) state->on_actor_state = std::move(on_state);
  });
}

void HeadClient::unwatch(WatchId watch) {
  if (state_->process.is_forked() || state_->closing) return;
  state_->loop.post([state = state_, watch] {
    state->end_watch(state->watches, watch);
    state->end_watch(state->supervisor_watches, watch);
  });
}

void HeadClient::watch_nodes(OnNode on_node) {
  if (state_->process.is_forked() || state_->closing) return;
  state_->loop.post([state = state_, on_node = std::move(on_node)]() mutable {
    if (state->closed) return;
    state->node_watchers.push_back(std::move(on_node));
    state->send_node_watch();
  });
}

void HeadClient::list_nodes(OnNodes done) {
  request(wire::ListNodes{}, as_member(std::move(done), &wire::NodeList::nodes));
}

void HeadClient::list_actors(bool include_dead, OnActors done) {
  request(wire::ListActors{.include_dead = include_dead},
          as_member(std::move(done), &wire::ActorList::actors));
}

void HeadClient::create_group(wire::PlacementGroupSpec spec, OnStatus done) {
  request(wire::CreatePlacementGroup{.spec = std::move(spec)}, as_status(std::move(done)));
}

void HeadClient::remove_group(GroupId group_id, const std::string& reason, OnStatus done) {
  request(wire::RemovePlacementGroup{.group_id = group_id, .reason = reason},
          as_status(std::move(done)));
}

HeadClient::WatchId HeadClient::watch_group(GroupId group_id, const std::string& name,
                                            OnGroup on_group) {
  const WatchId id = next_watch();
  if (state_->process.is_forked()) {
    on_group(ProcessStamp::forked_error());
    return id;
  }
  if (state_->closing) return id;
  state_->loop.post([state = state_, id, group_id, name, on_group] {
    const WatchedName watched{{}, group_id.empty() ? name : std::string()};
    state->add_watch(state->group_watches, id, {group_id, watched, on_group});
  });
  return id;
}

void HeadClient::unwatch_group(WatchId watch) {
  if (state_->process.is_forked() || state_->closing) return;
  state_->loop.post([state = state_, watch] { state->end_watch(state->group_watches, watch); });
}

void HeadClient::list_groups(bool include_removed, OnGroups done) {
  request(wire::ListPlacementGroups{.include_removed = include_removed},
          as_member(std::move(done), &wire::PlacementGroupList::groups));
}

void HeadClient::create_supervisor(wire::SupervisorSpec spec, OnStatus done) {
  request(wire::CreateSupervisor{.spec = std::move(spec)}, as_status(std::move(done)));
}

void HeadClient::end_supervisor(SupervisorId id, const std::string& reason, OnStatus done) {
  request(wire::EndSupervisor{.supervisor_id = id, .reason = reason}, as_status(std::move(done)));
}

HeadClient::WatchId HeadClient::watch_supervisor(SupervisorId supervisor_id,
                                                 OnSupervisor on_supervisor) {
  const WatchId id = next_watch();
  if (state_->process.is_forked()) {
    on_supervisor(ProcessStamp::forked_error());
    return id;
  }
  if (state_->closing) return id;
  state_->loop.post([state = state_, id, supervisor_id, on_supervisor] {
    state->add_watch(state->supervisor_watches, id, {supervisor_id, {}, on_supervisor});
  });
  return id;
}

void HeadClient::list_supervisors(bool include_ended, OnSupervisors done) {
  request(wire::ListSupervisors{.include_ended = include_ended},
          as_member(std::move(done), &wire::SupervisorList::supervisors));
}

void HeadClient::drain_node(NodeId node_id, std::int64_t grace_ms, const std::string& reason,
                            OnStatus done) {
  request(wire::DrainNode{.node_id = node_id, .grace_ms = grace_ms, .reason = reason},
          as_status(std::move(done)));
}

void HeadClient::list_events(std::uint64_t after_sequence, std::uint32_t count_max, OnEvents done) {
  request(wire::ListEvents{.after_sequence = after_sequence, .count_max = count_max},
          as_member(std::move(done), &wire::EventList::events));
}

void HeadClient::end_job(JobId job_id, const std::string& reason, OnStatus done) {
  request(wire::EndJob{.job_id = job_id, .reason = reason}, as_status(std::move(done)));
}

void HeadClient::stop_cluster(const std::string& reason, OnStatus done) {
  request(wire::StopCluster{.reason = reason}, as_status(std::move(done)));
}

Result<std::vector<wire::NodeInfo>> HeadClient::nodes(Deadline deadline) {
  return wait_for<Result<std::vector<wire::NodeInfo>>>(
      deadline, [this](auto done) { list_nodes(std::move(done)); });
}
Result<std::vector<wire::ActorInfo>> HeadClient::actors(bool include_dead, Deadline deadline) {
  return wait_for<Result<std::vector<wire::ActorInfo>>>(
      deadline, [&](auto done) { list_actors(include_dead, std::move(done)); });
}
Result<std::vector<wire::PlacementGroupInfo>> HeadClient::groups(bool include_removed,
                                                                 Deadline deadline) {
  return wait_for<Result<std::vector<wire::PlacementGroupInfo>>>(
      deadline, [&](auto done) { list_groups(include_removed, std::move(done)); });
}
Result<std::vector<wire::EventRecord>> HeadClient::events(std::uint64_t after_sequence,
                                                          std::uint32_t count_max,
                                                          Deadline deadline) {
  return wait_for<Result<std::vector<wire::EventRecord>>>(
      deadline, [&](auto done) { list_events(after_sequence, count_max, std::move(done)); });
}
Result<std::vector<wire::SupervisorInfo>> HeadClient::supervisors(bool include_ended,
                                                                  Deadline deadline) {
  return wait_for<Result<std::vector<wire::SupervisorInfo>>>(
      deadline, [&](auto done) { list_supervisors(include_ended, std::move(done)); });
}
Status HeadClient::drain(NodeId node_id, std::int64_t grace_ms, const std::string& reason,
                         Deadline deadline) {
  return wait_for<Status>(
      deadline, [&](auto done) { drain_node(node_id, grace_ms, reason, std::move(done)); });
}
Status HeadClient::stop(const std::string& reason, Deadline deadline) {
  return wait_for<Status>(deadline, [&](auto done) { stop_cluster(reason, std::move(done)); });
}

}  // namespace troupe::scheduler
