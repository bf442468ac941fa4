#pragma once
// A node and a head in one object, as small as the actors' side needs them: starts host processes,
// hands them their callers' sockets, keeps saved state, restarts what dies. So that the host and
// the callers are tested for themselves.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/directory.h"
#include "runtime/base/random.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/process/child.h"
#include "runtime/process/host_channel.h"
#include "runtime/process/spawn.h"
#include "troupe/spawn.h"

namespace troupe::tests {

class FakeNode final : public detail::Directory, public std::enable_shared_from_this<FakeNode> {
 public:
  // `host_program`: a program whose main() is host_main.
  static std::shared_ptr<FakeNode> start(const std::string& host_program,
                                         net::Security security = net::Security::kTls);
  ~FakeNode() override;

  // A client of this node, as a driver has one; with at most so many rings.
  std::shared_ptr<detail::ActorClient> make_client(
      int rings_max = detail::kRingsMax,
      const net::ConnectionOptions& connections = detail::call_connection_options());
  // The same, on another machine as far as it knows: through the node's port. `tries_local`: after
  // the node's local socket.
  std::shared_ptr<detail::ActorClient> make_distant_client(bool tries_local = false);
  // Actors that are created from now on are said to be behind a local socket of this name.
  void say_local_name(const std::string& name);
  // Ends all processes; call it before the object goes.
  void stop();
  // Processes that were started, over all actors.
  int started() const;
  void kill_process(ActorId actor_id, int signal);
  // Says HostStart to the process once more, as a new daemon does.
  void start_again(ActorId actor_id);
  // How often processes of the actor said that they are ready.
  int times_ready(ActorId actor_id) const;
  // Breaks nothing but the callers' connections: for reconnecting.
  wire::ActorInfo info(ActorId actor_id) const;
  net::EventLoop& loop() { return thread_.loop(); }
  const net::Address& address() const { return address_; }
  const net::Token& token() const { return token_; }
  NodeId node_id() const { return node_id_; }

  WatchId watch(ActorId actor_id, const std::string& name, OnActor on_actor) override;
  void unwatch(WatchId watch) override;
  void create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnDone done) override;
  void kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms, const std::string& reason,
            OnDone done) override;
  void list_nodes(OnNodes done) override;
  void close() override {}

 private:
  struct Actor {
    wire::ActorSpec spec;
    wire::ActorInfo info;
    process::Child child;
    UniqueFd socket;  // to the host
    std::vector<std::byte> input;
    std::vector<UniqueFd> input_fds;
    UniqueFd saved_state;
    Status failure;
    bool ending = false;
    int times_ready = 0;
  };
  FakeNode(const std::string& host_program, net::Security security);
  std::shared_ptr<detail::ActorClient> make_client_at(NodeId at, int rings_max,
                                                      const net::ConnectionOptions& connections,
                                                      bool tries_local = false);
  void listen();
  void launch(Actor& actor);
  void say_start(Actor& actor);
  void send(Actor& actor, const wire::HostMessage& message, int fd = -1);
  void on_host_readable(ActorId id);
  void on_exit(ActorId id, wire::ExitStatus exit);
  void publish(const Actor& actor);

  const std::string host_program_;
  SystemRandom random_;
  net::Token token_;
  NodeId node_id_;
  net::Address address_;
  mutable net::LoopThread thread_;
  std::unique_ptr<net::Listener> listener_;  // this and the following: loop thread
  std::map<ActorId, std::unique_ptr<Actor>> actors_;
  struct Watcher {
    ActorId actor_id;
    OnActor on_actor;
  };
  std::map<WatchId, Watcher> watchers_;
  std::atomic<WatchId> next_watch_ = 1;
  std::atomic<int> started_ = 0;
  bool stopping_ = false;
};

}  // namespace troupe::tests
