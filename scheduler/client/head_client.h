#pragma once
// How drivers, actors and tools talk to the head.
//
// A control connection that comes back by itself: while the head is away, requests wait up to
// `reconnect_timeout` and are sent again, which is safe because every request of this class may be
// repeated (clients choose the ids of the actors and groups they create). Watches stay, and are
// renewed: while the head is away they are told kUnavailable each `reconnect_timeout`. What is said
// when is decided by head_session.h; here are its socket, its timer and its callbacks.
//
// Thread-safe. Callbacks come on the loop's thread, never from within the call that asked: they
// must be short and must not wait. After close() none comes. In a forked child of the process that
// made it, everything is refused with kFailedPrecondition, at once.

#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/client/head_session.h"

namespace troupe::scheduler {
namespace detail {

template <typename Done>
struct AnswerTo;
template <typename T>
struct AnswerTo<std::function<void(T)>> {
  using Type = T;
};

}  // namespace detail

class HeadClient {
 public:
  using WatchId = scheduler::WatchId;
  using OnAnswer = std::function<void(Result<wire::ControlMessage>)>;
  using OnStatus = std::function<void(Status)>;
  using OnNode = std::function<void(const wire::NodeInfo&)>;
  using OnActor = std::function<void(Result<wire::ActorInfo>)>;
  using OnActorState = std::function<void(const wire::ActorInfo&)>;
  using OnNodes = std::function<void(Result<std::vector<wire::NodeInfo>>)>;
  using OnActors = std::function<void(Result<std::vector<wire::ActorInfo>>)>;
  using OnGroup = std::function<void(Result<wire::PlacementGroupInfo>)>;
  using OnCreated = std::function<void(Result<ActorId>)>;
  using OnSupervisor = std::function<void(Result<wire::SupervisorInfo>)>;
  using OnSupervisors = std::function<void(Result<std::vector<wire::SupervisorInfo>>)>;
  using OnGroups = std::function<void(Result<std::vector<wire::PlacementGroupInfo>>)>;
  using OnWork = std::function<void(Result<std::vector<wire::ClientWork>>)>;
  using OnEvents = std::function<void(Result<std::vector<wire::EventRecord>>)>;

  // Connects and introduces itself; waits, so not on the loop's thread. The loop must outlive the
  // client. kUnavailable, kUnauthenticated, kProtocol, kDeadlineExceeded.
  static Result<std::shared_ptr<HeadClient>> connect(
      net::EventLoop& loop, const net::Address& address, const net::Token& token,
      const wire::ClientHello& hello, Deadline deadline, const HeadClientOptions& options = {});
  // The same without connecting: that begins with the first request, which waits for it as it does
  // while the head is away.
  static std::shared_ptr<HeadClient> make(net::EventLoop& loop, const net::Address& address,
                                          const net::Token& token, const wire::ClientHello& hello,
                                          const HeadClientOptions& options = {});
  ~HeadClient();  // close()

  // --- requests: any thread
  // `done` when the head has accepted or refused them, not when they run.
  void create_actors(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnStatus done) {
    ask(wire::CreateActors{0, std::move(specs), gang, no_wait}, std::move(done));
  }
  // The living actor of the spec's name, or a new one: `done` says which it is.
  void get_or_create_actor(wire::ActorSpec spec, OnCreated done);
  void kill_actor(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                  const std::string& reason, OnStatus done, bool drain = false) {
    ask(wire::KillActor{0, actor_id, allow_restart, grace_ms, reason, drain}, std::move(done));
  }
  void list_nodes(OnNodes done) { ask(wire::ListNodes{}, &wire::NodeList::nodes, std::move(done)); }
  // `done` when the node is told, not when it is empty. `node_ends`: its process leaves then.
  void drain_node(NodeId node_id, std::int64_t grace_ms, const std::string& reason, bool node_ends,
                  OnStatus done) {
    ask(wire::DrainNode{0, node_id, grace_ms, reason, node_ends}, std::move(done));
  }
  void list_actors(bool include_dead, OnActors done) {
    ask_for_list(state_, wire::ListActors{0, include_dead}, &wire::ActorList::actors,
                 &wire::ActorInfo::actor_id, std::move(done));
  }
  void list_events(std::uint64_t after_sequence, std::uint32_t count_max, OnEvents done) {
    ask(wire::ListEvents{0, after_sequence, count_max}, &wire::EventList::events, std::move(done));
  }
  // `done` when the head has accepted or refused it, not when it is reserved: watch_group tells
  // that.
  void create_group(wire::PlacementGroupSpec spec, OnStatus done) {
    ask(wire::CreatePlacementGroup{0, std::move(spec)}, std::move(done));
  }
  void remove_group(GroupId group_id, const std::string& reason, OnStatus done) {
    ask(wire::RemovePlacementGroup{0, group_id, reason}, std::move(done));
  }
  void list_groups(bool include_removed, OnGroups done) {
    ask_for_list(state_, wire::ListPlacementGroups{0, include_removed},
                 &wire::PlacementGroupList::groups, &wire::PlacementGroupInfo::group_id,
                 std::move(done));
  }
  void create_supervisor(wire::SupervisorSpec spec, OnStatus done) {
    ask(wire::CreateSupervisor{0, std::move(spec)}, std::move(done));
  }
  void end_supervisor(SupervisorId id, const std::string& reason, OnStatus done) {
    ask(wire::EndSupervisor{0, id, reason}, std::move(done));
  }
  void list_supervisors(bool include_ended, OnSupervisors done) {
    ask_for_list(state_, wire::ListSupervisors{0, include_ended},
                 &wire::SupervisorList::supervisors, &wire::SupervisorInfo::supervisor_id,
                 std::move(done));
  }
  void list_work(OnWork done) {
    ask_for_list(state_, wire::ListWork{}, &wire::WorkList::clients, &wire::ClientWork::client_id,
                 std::move(done));
  }
  // Ends every actor of the job that is not detached, and removes its placement groups.
  void end_job(JobId job_id, const std::string& reason, OnStatus done) {
    ask(wire::EndJob{0, job_id, reason}, std::move(done));
  }
  // Ends all actors, all nodes, then the head.
  void stop_cluster(const std::string& reason, OnStatus done) {
    ask(wire::StopCluster{0, reason}, std::move(done));
  }
  // HeadSession::lend
  void lend_cpus(ActorId actor_id, std::uint64_t generation, bool back);
  // Any other request; only such as may be repeated. `done` gets the message that answers it.
  void request(wire::ControlMessage message, OnAnswer done) {
    request(state_, std::move(message), std::move(done));
  }

  // --- watches: any thread
  // Calls `on_actor` now and at each change, until unwatch or the actor's death. An error is the
  // last call, too, unless it says that the head is away or another one (kUnavailable,
  // kUnauthenticated): then the watch goes on. `actor_id` empty: the living actor called `name` in
  // that namespace; empty: the client's own.
  WatchId watch_actor(ActorId actor_id, const std::string& name, OnActor on_actor,
                      const std::string& namespace_name = {}) {
    return watch(actor_id, {namespace_name, name},
                 as_member(std::move(on_actor), &wire::ActorUpdate::actor));
  }
  // As watch_actor. `group_id` empty: the group called `name`.
  WatchId watch_group(GroupId group_id, const std::string& name, OnGroup on_group) {
    return watch(group_id, {{}, name},
                 as_member(std::move(on_group), &wire::PlacementGroupUpdate::group));
  }
  // As watch_actor.
  WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) {
    return watch(id, {}, as_member(std::move(on_supervisor), &wire::SupervisorUpdate::supervisor));
  }
  // Of a watch of an actor, a group or a supervisor.
  void unwatch(WatchId watch);
  void unwatch_group(WatchId watch) { unwatch(watch); }
  // Calls `on_state` with every state of an actor that the head tells, until close(): of those that
  // are watched, and, unasked, of one that this client owns when it has to wait for room (without
  // what it waits for).
  void follow_actors(OnActorState on_state);
  // Calls `on_node` for every node now and when one joins, changes its state or dies, until
  // close(); again for all of them when the head was away. Not when only what is free of a node
  // changes.
  void watch_nodes(OnNode on_node);

  // HeadSession::report
  void report_work(wire::Work work);

  // Ends the connection; what waits for an answer is not called back. Any thread but the loop's.
  void close();

  // --- the same, waiting: for tools. Not on the loop's thread
  Result<std::vector<wire::NodeInfo>> nodes(Deadline deadline) {
    return wait(deadline, &HeadClient::list_nodes);
  }
  Result<std::vector<wire::ActorInfo>> actors(bool include_dead, Deadline deadline) {
    return wait(deadline, &HeadClient::list_actors, include_dead);
  }
  Result<std::vector<wire::PlacementGroupInfo>> groups(bool include_removed, Deadline deadline) {
    return wait(deadline, &HeadClient::list_groups, include_removed);
  }
  Result<std::vector<wire::SupervisorInfo>> supervisors(bool include_ended, Deadline deadline) {
    return wait(deadline, &HeadClient::list_supervisors, include_ended);
  }
  Result<std::vector<wire::ClientWork>> work(Deadline deadline) {
    return wait(deadline, &HeadClient::list_work);
  }
  Status drain(NodeId node_id, std::int64_t grace_ms, const std::string& reason, bool node_ends,
               Deadline deadline) {
    return wait(deadline, &HeadClient::drain_node, node_id, grace_ms, reason, node_ends);
  }
  Result<std::vector<wire::EventRecord>> events(std::uint64_t after_sequence,
                                                std::uint32_t count_max, Deadline deadline) {
    return wait(deadline, &HeadClient::list_events, after_sequence, count_max);
  }
  Status stop(const std::string& reason, Deadline deadline) {
    return wait(deadline, &HeadClient::stop_cluster, reason);
  }

 private:
  struct State;
  explicit HeadClient(std::shared_ptr<State> state);
  // Every request goes through here.
  static void request(const std::shared_ptr<State>& to, wire::ControlMessage message,
                      OnAnswer done);
  WatchId watch(WatchedId id, WatchedName name, OnAnswer on_change);
  // For what is answered by success or failure.
  void ask(wire::ControlMessage message, OnStatus done);
  // For what is answered, or told, by the member of a message.
  template <typename Message, typename T>
  static OnAnswer as_member(std::function<void(Result<T>)> done, T Message::*member) {
    return [done = std::move(done), member](Result<wire::ControlMessage> answer) {
      auto* const message = answer.ok() ? get_if<Message>(&*answer) : nullptr;
      if (message != nullptr) return done(std::move(message->*member));
      const Status status = answer_status(answer);
      done(status.ok() ? answer_of_another_kind() : status);
    };
  }
  template <typename Message, typename T>
  void ask(wire::ControlMessage message, T Message::*member, std::function<void(Result<T>)> done) {
    request(std::move(message), as_member(std::move(done), member));
  }
  // For lists that are answered in pieces: asks for the next one until there are no more.
  template <typename Request, typename List, typename T, typename Id>
  static void ask_for_list(const std::shared_ptr<State>& state, Request asked,
                           std::vector<T> List::*member, Id T::*id,
                           std::function<void(Result<std::vector<T>>)> done,
                           std::vector<T> so_far = {}) {
    request(state, asked,
            [kept = std::weak_ptr<State>(state), asked, member, id, done = std::move(done),
             so_far = std::move(so_far)](Result<wire::ControlMessage> answer) mutable {
              auto* const list = answer.ok() ? get_if<List>(&*answer) : nullptr;
              if (list == nullptr) return as_member(std::move(done), member)(std::move(answer));
              std::vector<T>& piece = list->*member;
              const bool more = list->more && !piece.empty();
              std::move(piece.begin(), piece.end(), std::back_inserter(so_far));
              const auto client = kept.lock();
              if (!more || !client) return done(std::move(so_far));
              asked.after = so_far.back().*id;
              ask_for_list(client, asked, member, id, std::move(done), std::move(so_far));
            });
  }
  // Calls one of the functions above, whose last parameter gets the answer, and waits for that.
  template <typename... Params, typename... Args,
            typename T = typename detail::AnswerTo<
                std::tuple_element_t<sizeof...(Params) - 1, std::tuple<Params...>>>::Type>
  T wait(Deadline deadline, void (HeadClient::*asks)(Params...), const Args&... args) {
    auto promise = std::make_shared<std::promise<T>>();
    auto answer = promise->get_future();
    (this->*asks)(args..., [promise](T result) { promise->set_value(std::move(result)); });
    if (answer.wait_until(deadline.time()) == std::future_status::ready) return answer.get();
    return Status(Code::kDeadlineExceeded, "the head did not answer in time");
  }

  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler
