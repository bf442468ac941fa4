#pragma once
// A real head, a real node with its keeper, and an actor in a process of its own, on loopback: what
// strangers knock at. Each daemon runs in a thread of this process, so that its state can be
// looked at.

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/client.h"
#include "runtime/base/random.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "scheduler/client/head_client.h"
#include "scheduler/control/delta.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/node/node_daemon.h"
#include "tests/security/purse.h"

namespace troupe::tests {

inline constexpr std::chrono::seconds kClusterPatience{20};

// What a stranger's words must not change.
struct ClusterState {
  std::vector<scheduler::Delta> head;  // nodes, actors, leases, events
  std::size_t node_processes = 0;
  std::int64_t coins = 0;
  friend bool operator==(const ClusterState&, const ClusterState&) = default;
};

class LiveCluster {
 public:
  explicit LiveCluster(const net::Token& token);
  ~LiveCluster();

  const net::Token& token() const { return token_; }
  const net::Address& head() const { return head_address_; }
  // The node's port, and its local socket.
  net::Address node() const;
  net::Address node_local() const;
  std::string keeper_socket() const { return "troupe-keeper-" + node_id_.to_string(); }
  NodeId node_id() const { return node_id_; }
  JobId job_id() const { return job_id_; }
  ClientId client_id() const { return client_id_; }

  // An actor that answers calls.
  ActorHandle<Purse> spawn(const std::string& name);
  std::int64_t pid_of(ActorId actor_id);
  // As it is when the daemons have done what they have at hand; `purse` is asked for its coins.
  ClusterState state(const ActorHandle<Purse>& purse);

 private:
  void start_head();
  void start_node();
  void connect();

  const net::Token token_;
  SystemRandom random_;
  const NodeId node_id_ = NodeId::make(random_);
  const JobId job_id_ = JobId::make(random_);
  const ClientId client_id_ = ClientId::make(random_);
  scheduler::MemoryJournal journal_;
  net::Address head_address_;
  std::unique_ptr<scheduler::HeadDaemon> head_;
  std::unique_ptr<scheduler::NodeDaemon> node_;
  std::shared_ptr<scheduler::HeadClient> head_client_;
  std::shared_ptr<detail::ActorClient> client_;
  net::LoopThread clients_{"clients"};
  net::LoopThread node_thread_{"node"};
  net::LoopThread head_thread_{"head"};  // ends first
};

}  // namespace troupe::tests
