#include "scheduler/client/head_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/connection.h"
#include "runtime/wire/request_id.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kRetryFirst = std::chrono::milliseconds(50);
constexpr Duration kRetryMost = std::chrono::milliseconds(1000);

// An answer's status, for those that carry nothing else.
Status status_of(const wire::ControlMessage& answer) {
  if (const auto* reply = get_if<wire::Reply>(&answer)) return reply->status;
  return Status(Code::kProtocol, "the head gave an answer of another kind");
}

}  // namespace

// All members are the loop thread's.
struct HeadClient::State : std::enable_shared_from_this<HeadClient::State> {
  using OnAnswer = std::function<void(Result<wire::ControlMessage>)>;

  struct Request {
    wire::ControlMessage message;
    OnAnswer done;
  };
  struct Watch {
    ActorId actor_id;  // empty until a watch by name has its first update
    std::string name;
    std::uint64_t request_id = 0;  // of a WatchActor that was not answered yet
    OnActor on_actor;
    std::string namespace_name;  // of the name; never empty where it is given one
  };
  struct SupervisorWatch {
    SupervisorId supervisor_id;
    std::uint64_t request_id = 0;
    OnSupervisor on_supervisor;
  };
  struct GroupWatch {
    GroupId group_id;  // empty until a watch by name has its first update
    std::string name;
    std::uint64_t request_id = 0;
    OnGroup on_group;
  };

  State(net::EventLoop& l, net::Address a, net::Token t, wire::ClientHello h,
        const HeadClientOptions& o)
      : loop(l), address(std::move(a)), token(std::move(t)), hello(std::move(h)), options(o) {}

  void connect_now(std::function<void(Status)> first);
  void connected(UniqueFd socket, std::function<void(Status)> first);
  void lost(const Status& why);
  void cut(const Status& why);
  void try_again(Duration pause, TimePoint give_up);
  void give_up(const Status& why);
  void ask(wire::ControlMessage message, OnAnswer done);
  void transmit(std::uint64_t request_id);
  void fail(std::uint64_t request_id, const Status& why);
  void received(std::span<const std::byte> frame);
  void updated(const wire::ActorInfo& actor);
  void updated(const wire::PlacementGroupInfo& group);
  void updated(const wire::SupervisorInfo& supervisor);
  void send_supervisor_watch(WatchId id);
  bool unwatch_supervisor(WatchId id);
  std::string own_namespace() const {
    return hello.namespace_name.empty() ? wire::namespace_of_job(hello.job_id)
                                        : hello.namespace_name;
  }
  void answered(std::uint64_t request_id, wire::ControlMessage message);
  void send_watch(WatchId id);
  void send_group_watch(WatchId id);
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
  bool closed = false;
  bool retrying = false;  // try_again() is under way: once at a time
  std::uint64_t next_request = 1;
  std::map<std::uint64_t, Request> requests;  // unanswered, in order
  std::map<WatchId, Watch> watches;
  std::map<WatchId, GroupWatch> group_watches;
  std::map<WatchId, SupervisorWatch> supervisor_watches;
  std::vector<OnNode> node_watchers;
};

// --- connecting ---------------------------------------------------------------------------------

void HeadClient::State::connect_now(std::function<void(Status)> first) {
  net::connect(loop, address, "head", token, Deadline::after(options.attempt_timeout, loop.clock()),
               [self = shared_from_this(), first](Result<UniqueFd> socket) {
                 if (self->closed) return;
                 if (!socket.ok()) {
                   first(socket.status());
                 } else {
                   self->connected(std::move(*socket), first);
                 }
               });
}

void HeadClient::State::connected(UniqueFd socket, std::function<void(Status)> first) {
  introduced = false;
  connection = net::make_connection(loop, std::move(socket), address.to_string());
  const std::weak_ptr<State> weak = weak_from_this();
  connection->start({.on_frame =
                         [weak](std::span<const std::byte> frame) {
                           if (auto self = weak.lock()) self->received(frame);
                         },
                     .on_close =
                         [weak](Status why) {
                           if (auto self = weak.lock()) self->lost(why);
                         }});
  hello.request_id = next_request++;
  requests[hello.request_id] = {
      hello, [self = shared_from_this(), first](Result<wire::ControlMessage> answer) {
        Status status = answer.ok() ? status_of(*answer) : answer.status();
        if (status.ok()) {
          self->introduced = true;
          self->hello.reconnect = true;
          self->resume();
        }
        first(std::move(status));
      }};
  transmit(hello.request_id);
  loop.call_after(options.attempt_timeout, [weak, attempt = hello.request_id] {
    auto self = weak.lock();
    // Something listens, but no head answers there.
    if (self && self->requests.contains(attempt)) {
      self->cut(Status(Code::kUnavailable, "the head did not answer in time"));
    }
  });
}

void HeadClient::State::resume() {
  for (const auto& [id, request] : requests) transmit(id);
  for (auto& [id, watch] : watches) {
    if (watch.request_id == 0) send_watch(id);
  }
  for (auto& [id, watch] : group_watches) {
    if (watch.request_id == 0) send_group_watch(id);
  }
  for (auto& [id, watch] : supervisor_watches) {
    if (watch.request_id == 0) send_supervisor_watch(id);
  }
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
  if (was_introduced) try_again(kRetryFirst, loop.clock().now() + options.reconnect_timeout);
}

// Ends the connection from this side, where nobody is told that it ended.
void HeadClient::State::cut(const Status& why) {
  if (!connection) return;
  connection->close();
  lost(why);
}

void HeadClient::State::try_again(Duration pause, TimePoint until) {
  retrying = true;
  if (loop.clock().now() >= until) {
    give_up(error(Code::kUnavailable, "the head at {} has been away for {:.1f} s",
                  address.to_string(),
                  std::chrono::duration<double>(options.reconnect_timeout).count()));
    return;
  }
  loop.call_after(pause, [self = shared_from_this(), pause, until] {
    if (self->closed) return;
    self->connect_now([self, pause, until](Status status) {
      if (self->closed) return;
      if (status.ok()) {
        self->retrying = false;
      } else if (status.code() == Code::kUnauthenticated || status.code() == Code::kProtocol ||
                 status.code() == Code::kFailedPrecondition) {
        self->give_up(status);
      } else {
        self->try_again(std::clamp(2 * pause, kRetryFirst, kRetryMost), until);
      }
    });
  });
}

void HeadClient::State::give_up(const Status& why) {
  retrying = false;
  auto failed = std::exchange(requests, {});
  auto ended = std::exchange(watches, {});
  auto ended_groups = std::exchange(group_watches, {});
  auto ended_supervisors = std::exchange(supervisor_watches, {});
  for (auto& [id, request] : failed) request.done(why);
  for (auto& [id, watch] : ended) watch.on_actor(why);
  for (auto& [id, watch] : ended_groups) watch.on_group(why);
  for (auto& [id, watch] : ended_supervisors) watch.on_supervisor(why);
  // A later request tries once more.
}

void HeadClient::State::end() {
  closed = true;
  requests.clear();
  watches.clear();
  group_watches.clear();
  supervisor_watches.clear();
  node_watchers.clear();
  if (connection) connection->close();
  connection.reset();
}

// --- requests -----------------------------------------------------------------------------------

void HeadClient::State::transmit(std::uint64_t request_id) {
  if (!connection) return;
  const Status sent = connection->send(wire::encode(requests.at(request_id).message));
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
  requests[id] = {std::move(message), std::move(done)};
  if (introduced) {
    transmit(id);
  } else if (!connection && !retrying) {
    try_again(Duration::zero(), loop.clock().now() + options.reconnect_timeout);
  }
}

void HeadClient::State::received(std::span<const std::byte> frame) {
  auto message = wire::decode_control(frame);
  if (!message.ok()) return cut(message.status());
  if (const auto* update = get_if<wire::ActorUpdate>(&*message)) {
    updated(update->actor);
  } else if (const auto* group = get_if<wire::PlacementGroupUpdate>(&*message)) {
    updated(group->group);
  } else if (const auto* supervisor = get_if<wire::SupervisorUpdate>(&*message)) {
    updated(supervisor->supervisor);
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

void HeadClient::State::send_watch(WatchId id) {
  Watch& watch = watches.at(id);
  watch.request_id = next_request;
  ask(
      wire::WatchActor{
          .actor_id = watch.actor_id, .name = watch.name, .namespace_name = watch.namespace_name},
      [self = shared_from_this(), id](Result<wire::ControlMessage> answer) {
        const auto found = self->watches.find(id);
        if (found == self->watches.end()) return;
        found->second.request_id = 0;
        const Status status = answer.ok() ? status_of(*answer) : answer.status();
        if (status.ok()) return;  // the actor's state comes as an update
        auto on_actor = std::move(found->second.on_actor);
        self->watches.erase(found);
        on_actor(status);
      });
}

void HeadClient::State::updated(const wire::ActorInfo& actor) {
  std::vector<OnActor> callbacks;
  for (auto& [id, watch] : watches) {
    if (watch.actor_id.empty() && !watch.name.empty() && watch.name == actor.name &&
        watch.namespace_name == actor.namespace_name) {
      watch.actor_id = actor.actor_id;
    }
    if (watch.actor_id == actor.actor_id) callbacks.push_back(watch.on_actor);
  }
  for (const auto& callback : callbacks) {
    if (closed) return;
    callback(actor);
  }
}

void HeadClient::State::send_group_watch(WatchId id) {
  GroupWatch& watch = group_watches.at(id);
  watch.request_id = next_request;
  ask(wire::WatchPlacementGroup{.group_id = watch.group_id, .name = watch.name},
      [self = shared_from_this(), id](Result<wire::ControlMessage> answer) {
        const auto found = self->group_watches.find(id);
        if (found == self->group_watches.end()) return;
        found->second.request_id = 0;
        const Status status = answer.ok() ? status_of(*answer) : answer.status();
        if (status.ok()) return;  // its state comes as an update
        auto on_group = std::move(found->second.on_group);
        self->group_watches.erase(found);
        on_group(status);
      });
}

void HeadClient::State::updated(const wire::PlacementGroupInfo& group) {
  std::vector<OnGroup> callbacks;
  for (auto& [id, watch] : group_watches) {
    if (watch.group_id.empty() && !watch.name.empty() && watch.name == group.name) {
      watch.group_id = group.group_id;
    }
    if (watch.group_id == group.group_id) callbacks.push_back(watch.on_group);
  }
  for (const auto& callback : callbacks) {
    if (closed) return;
    callback(group);
  }
}

void HeadClient::State::send_supervisor_watch(WatchId id) {
  SupervisorWatch& watch = supervisor_watches.at(id);
  watch.request_id = next_request;
  ask(wire::WatchSupervisor{.supervisor_id = watch.supervisor_id},
      [self = shared_from_this(), id](Result<wire::ControlMessage> answer) {
        const auto found = self->supervisor_watches.find(id);
        if (found == self->supervisor_watches.end()) return;
        found->second.request_id = 0;
        const Status status = answer.ok() ? status_of(*answer) : answer.status();
        if (status.ok()) return;  // its state comes as an update
        auto on_supervisor = std::move(found->second.on_supervisor);
        self->supervisor_watches.erase(found);
        on_supervisor(status);
      });
}

void HeadClient::State::updated(const wire::SupervisorInfo& supervisor) {
  std::vector<OnSupervisor> callbacks;
  for (auto& [id, watch] : supervisor_watches) {
    if (watch.supervisor_id == supervisor.supervisor_id) callbacks.push_back(watch.on_supervisor);
  }
  for (const auto& callback : callbacks) {
    if (closed) return;
    callback(supervisor);
  }
}

bool HeadClient::State::unwatch_supervisor(WatchId id) {
  const auto found = supervisor_watches.find(id);
  if (found == supervisor_watches.end()) return false;
  const SupervisorId supervisor_id = found->second.supervisor_id;
  supervisor_watches.erase(found);
  const bool last =
      std::none_of(supervisor_watches.begin(), supervisor_watches.end(),
                   [&](const auto& w) { return w.second.supervisor_id == supervisor_id; });
  if (last) {
    ask(wire::WatchSupervisor{.supervisor_id = supervisor_id, .stop = true},
        [](Result<wire::ControlMessage>) {});
  }
  return true;
}

// Said again on each connection; an attempt that a lost connection leaves unanswered does no harm.
void HeadClient::State::send_node_watch() {
  ask(wire::WatchNodes{.without_amounts = true}, [](Result<wire::ControlMessage>) {});
}

// --- the client ---------------------------------------------------------------------------------

HeadClient::HeadClient(std::shared_ptr<State> state) : state_(std::move(state)) {}
HeadClient::~HeadClient() { close(); }

Result<std::shared_ptr<HeadClient>> HeadClient::connect(
    net::EventLoop& loop, const net::Address& address, const net::Token& token,
    const wire::ClientHello& hello, Deadline deadline, const HeadClientOptions& options) {
  TROUPE_CHECK(!loop.in_loop_thread(), "HeadClient::connect would wait for its own thread");
  auto state = std::make_shared<State>(loop, address, token, hello, options);
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  loop.post([state, promise] {
    state->connect_now([promise](Status status) { promise->set_value(std::move(status)); });
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

void HeadClient::create_actors(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait,
                               OnStatus done) {
  state_->loop.post([state = state_, specs = std::move(specs), gang, no_wait, done]() mutable {
    state->ask(wire::CreateActors{.specs = std::move(specs), .gang = gang, .no_wait = no_wait},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

void HeadClient::get_or_create_actor(wire::ActorSpec spec, OnCreated done) {
  state_->loop.post([state = state_, spec = std::move(spec), done]() mutable {
    wire::CreateActors create{.specs = {std::move(spec)}, .get_if_exists = true};
    state->ask(std::move(create), [done](Result<wire::ControlMessage> answer) {
      const Status status = answer.ok() ? status_of(*answer) : answer.status();
      if (!status.ok()) return done(status);
      done(get<wire::Reply>(*answer).actor_id);
    });
  });
}

void HeadClient::kill_actor(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                            const std::string& reason, OnStatus done, bool drain) {
  state_->loop.post([state = state_, actor_id, allow_restart, grace_ms, reason, done, drain] {
    state->ask(wire::KillActor{.actor_id = actor_id,
                               .allow_restart = allow_restart,
                               .grace_ms = grace_ms,
                               .reason = reason,
                               .drain = drain},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

// Numbers are given here, so that the caller has its own before the first callback.
HeadClient::WatchId HeadClient::next_watch() {
  static std::atomic<WatchId> next{1};
  return next++;
}

HeadClient::WatchId HeadClient::watch_actor(ActorId actor_id, const std::string& name,
                                            OnActor on_actor, const std::string& namespace_name) {
  const WatchId id = next_watch();
  state_->loop.post([state = state_, id, actor_id, name, on_actor, namespace_name] {
    if (state->closed) return;
    state->watches[id] = {actor_id, {}, 0, on_actor, {}};
    if (actor_id.empty()) {
      state->watches[id].name = name;
      state->watches[id].namespace_name =
          namespace_name.empty() ? state->own_namespace() : namespace_name;
    }
    state->send_watch(id);
  });
  return id;
}

void HeadClient::unwatch(WatchId watch) {
  state_->loop.post([state = state_, watch] {
    if (state->unwatch_supervisor(watch)) return;
    const auto found = state->watches.find(watch);
    if (found == state->watches.end()) return;
    const ActorId actor_id = found->second.actor_id;
    state->watches.erase(found);
    const bool last = std::none_of(state->watches.begin(), state->watches.end(),
                                   [&](const auto& w) { return w.second.actor_id == actor_id; });
    if (last && !actor_id.empty()) {
      state->ask(wire::WatchActor{.actor_id = actor_id, .stop = true},
                 [](Result<wire::ControlMessage>) {});
    }
  });
}

namespace {

// The member of an answer, or why there is none.
template <typename Message, typename T>
Result<T> member(const Result<wire::ControlMessage>& answer, T Message::*field) {
  if (!answer.ok()) return answer.status();
  if (const auto* message = get_if<Message>(&*answer)) return message->*field;
  const Status status = status_of(*answer);
  if (!status.ok()) return status;
  return Status(Code::kProtocol, "the head gave an answer of another kind");
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

void HeadClient::watch_nodes(OnNode on_node) {
  state_->loop.post([state = state_, on_node = std::move(on_node)]() mutable {
    if (state->closed) return;
    state->node_watchers.push_back(std::move(on_node));
    state->send_node_watch();
  });
}

void HeadClient::list_nodes(OnNodes done) {
  state_->loop.post([state = state_, done] {
    state->ask(wire::ListNodes{}, [done](Result<wire::ControlMessage> answer) {
      done(member(answer, &wire::NodeList::nodes));
    });
  });
}

void HeadClient::list_actors(bool include_dead, OnActors done) {
  state_->loop.post([state = state_, include_dead, done] {
    state->ask(wire::ListActors{.include_dead = include_dead},
               [done](Result<wire::ControlMessage> answer) {
                 done(member(answer, &wire::ActorList::actors));
               });
  });
}

void HeadClient::create_group(wire::PlacementGroupSpec spec, OnStatus done) {
  state_->loop.post([state = state_, spec = std::move(spec), done]() mutable {
    state->ask(wire::CreatePlacementGroup{.spec = std::move(spec)},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

void HeadClient::remove_group(GroupId group_id, const std::string& reason, OnStatus done) {
  state_->loop.post([state = state_, group_id, reason, done] {
    state->ask(wire::RemovePlacementGroup{.group_id = group_id, .reason = reason},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

HeadClient::WatchId HeadClient::watch_group(GroupId group_id, const std::string& name,
                                            OnGroup on_group) {
  const WatchId id = next_watch();
  state_->loop.post([state = state_, id, group_id, name, on_group] {
    if (state->closed) return;
    state->group_watches[id] = {group_id, group_id.empty() ? name : std::string(), 0, on_group};
    state->send_group_watch(id);
  });
  return id;
}

void HeadClient::unwatch_group(WatchId watch) {
  state_->loop.post([state = state_, watch] {
    const auto found = state->group_watches.find(watch);
    if (found == state->group_watches.end()) return;
    const GroupId group_id = found->second.group_id;
    auto& watches = state->group_watches;
    watches.erase(found);
    const bool last = std::none_of(watches.begin(), watches.end(),
                                   [&](const auto& w) { return w.second.group_id == group_id; });
    if (last && !group_id.empty()) {
      state->ask(wire::WatchPlacementGroup{.group_id = group_id, .stop = true},
                 [](Result<wire::ControlMessage>) {});
    }
  });
}

void HeadClient::list_groups(bool include_removed, OnGroups done) {
  state_->loop.post([state = state_, include_removed, done] {
    state->ask(wire::ListPlacementGroups{.include_removed = include_removed},
               [done](Result<wire::ControlMessage> answer) {
                 done(member(answer, &wire::PlacementGroupList::groups));
               });
  });
}

void HeadClient::create_supervisor(wire::SupervisorSpec spec, OnStatus done) {
  state_->loop.post([state = state_, spec = std::move(spec), done]() mutable {
    state->ask(wire::CreateSupervisor{.spec = std::move(spec)},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

void HeadClient::end_supervisor(SupervisorId id, const std::string& reason, OnStatus done) {
  state_->loop.post([state = state_, id, reason, done] {
    state->ask(wire::EndSupervisor{.supervisor_id = id, .reason = reason},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

HeadClient::WatchId HeadClient::watch_supervisor(SupervisorId supervisor_id,
                                                 OnSupervisor on_supervisor) {
  const WatchId id = next_watch();
  state_->loop.post([state = state_, id, supervisor_id, on_supervisor] {
    if (state->closed) return;
    state->supervisor_watches[id] = {supervisor_id, 0, on_supervisor};
    state->send_supervisor_watch(id);
  });
  return id;
}

void HeadClient::list_supervisors(bool include_ended, OnSupervisors done) {
  state_->loop.post([state = state_, include_ended, done] {
    state->ask(wire::ListSupervisors{.include_ended = include_ended},
               [done](Result<wire::ControlMessage> answer) {
                 done(member(answer, &wire::SupervisorList::supervisors));
               });
  });
}

void HeadClient::drain_node(NodeId node_id, std::int64_t grace_ms, const std::string& reason,
                            OnStatus done) {
  state_->loop.post([state = state_, node_id, grace_ms, reason, done] {
    state->ask(wire::DrainNode{.node_id = node_id, .grace_ms = grace_ms, .reason = reason},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

void HeadClient::list_events(std::uint64_t after_sequence, std::uint32_t count_max, OnEvents done) {
  state_->loop.post([state = state_, after_sequence, count_max, done] {
    state->ask(wire::ListEvents{.after_sequence = after_sequence, .count_max = count_max},
               [done](Result<wire::ControlMessage> answer) {
                 done(member(answer, &wire::EventList::events));
               });
  });
}

void HeadClient::end_job(JobId job_id, const std::string& reason, OnStatus done) {
  state_->loop.post([state = state_, job_id, reason, done] {
    state->ask(wire::EndJob{.job_id = job_id, .reason = reason},
               [done](Result<wire::ControlMessage> answer) {
                 done(answer.ok() ? status_of(*answer) : answer.status());
               });
  });
}

void HeadClient::request(wire::ControlMessage message,
                         std::function<void(Result<wire::ControlMessage>)> done) {
  state_->loop.post([state = state_, message = std::move(message), done]() mutable {
    state->ask(std::move(message), std::move(done));
  });
}

void HeadClient::stop_cluster(const std::string& reason, OnStatus done) {
  state_->loop.post([state = state_, reason, done] {
    state->ask(wire::StopCluster{.reason = reason}, [done](Result<wire::ControlMessage> answer) {
      done(answer.ok() ? status_of(*answer) : answer.status());
    });
  });
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
