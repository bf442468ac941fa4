#pragma once
// How drivers, actors and tools talk to the head.
//
// A control connection that comes back by itself: while the head is away, requests wait up to
// `reconnect_timeout` and are sent again, which is safe because every request of this class may be
// repeated (clients choose the ids of the actors and groups they create). Watches stay, and are
// renewed: while the head is away they are told kUnavailable each `reconnect_timeout`.
//
// Thread-safe. Callbacks come on the loop's thread, never from within the call that asked: they
// must be short and must not wait. After close() none comes. In a forked child of the process that
// made it, everything is refused with kFailedPrecondition, at once.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/timing.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

struct HeadClientOptions {
  // How long the head may be away before requests end with kUnavailable.
  Duration reconnect_timeout = kTiming.reconnect_timeout;
  // How long one attempt to come back may take to connect, and then to be answered.
  Duration attempt_timeout = kTiming.client_attempt_timeout;
};

class HeadClient {
 public:
  using WatchId = std::uint64_t;
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

  // `done` when the head has accepted or refused them, not when they run.
  void create_actors(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnStatus done);
  // The living actor of the spec's name, or a new one: `done` says which it is.
  void get_or_create_actor(wire::ActorSpec spec, OnCreated done);
  void kill_actor(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                  const std::string& reason, OnStatus done, bool drain = false);
  // Calls `on_actor` now and at each change, until unwatch or the actor's death. An error is the
  // last call, too, unless it says that the head is away or another one (kUnavailable,
  // kUnauthenticated): then the watch goes on. `actor_id` empty: the living actor called `name` in
  // that namespace; empty: the client's own.
  WatchId watch_actor(ActorId actor_id, const std::string& name, OnActor on_actor,
                      const std::string& namespace_name = {});
  // Of a watch of an actor or of a supervisor.
  void unwatch(WatchId watch);
  // Calls `on_state` with every state of an actor that the head tells, until close(): of those that
  // are watched, and, unasked, of one that this client owns when it has to wait for room (without
  // what it waits for).
  void follow_actors(OnActorState on_state);
  // Calls `on_node` for every node now and when one joins, changes its state or dies, until
  // close(); again for all of them when the head was away. Not when only what is free of a node
  // changes.
  void watch_nodes(OnNode on_node);
  void list_nodes(OnNodes done);
  // `done` when the node is told, not when it is empty.
  void drain_node(NodeId node_id, std::int64_t grace_ms, const std::string& reason, OnStatus done);
  void list_actors(bool include_dead, OnActors done);
  void list_events(std::uint64_t after_sequence, std::uint32_t count_max, OnEvents done);
  // `done` when the head has accepted or refused it, not when it is reserved: watch_group tells
  // that.
  void create_group(wire::PlacementGroupSpec spec, OnStatus done);
  void remove_group(GroupId group_id, const std::string& reason, OnStatus done);
  // As watch_actor. `group_id` empty: the group called `name`.
  WatchId watch_group(GroupId group_id, const std::string& name, OnGroup on_group);
  void unwatch_group(WatchId watch);
  void list_groups(bool include_removed, OnGroups done);
  void create_supervisor(wire::SupervisorSpec spec, OnStatus done);
  void end_supervisor(SupervisorId id, const std::string& reason, OnStatus done);
  // As watch_actor.
  WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor);
  void list_supervisors(bool include_ended, OnSupervisors done);
  // Ends every actor of the job that is not detached, and removes its placement groups.
  void end_job(JobId job_id, const std::string& reason, OnStatus done);
  // Any other request; only such as may be repeated. `done` gets the message that answers it.
  void request(wire::ControlMessage message,
               std::function<void(Result<wire::ControlMessage>)> done);
  // Ends all actors, all nodes, then the head.
  void stop_cluster(const std::string& reason, OnStatus done);

  // Ends the connection; what waits for an answer is not called back. Any thread but the loop's.
  void close();

  // The same, waiting: for tools. Not on the loop's thread.
  Result<std::vector<wire::NodeInfo>> nodes(Deadline deadline);
  Result<std::vector<wire::ActorInfo>> actors(bool include_dead, Deadline deadline);
  Result<std::vector<wire::PlacementGroupInfo>> groups(bool include_removed, Deadline deadline);
  Result<std::vector<wire::SupervisorInfo>> supervisors(bool include_ended, Deadline deadline);
  Status drain(NodeId node_id, std::int64_t grace_ms, const std::string& reason, Deadline deadline);
  Result<std::vector<wire::EventRecord>> events(std::uint64_t after_sequence,
                                                std::uint32_t count_max, Deadline deadline);
  Status stop(const std::string& reason, Deadline deadline);

 private:
  struct State;
  static WatchId next_watch();
  explicit HeadClient(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// The status in an answer that carries nothing else.
Status answer_status(const Result<wire::ControlMessage>& answer);

}  // namespace troupe::scheduler
