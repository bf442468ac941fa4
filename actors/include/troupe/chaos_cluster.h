#pragma once
// A cluster to be struck, for tests and chaos runs: a head and worker nodes on this machine, each
// part a process as on a cluster of machines, a proxy before each node. Needs no privileges.
//
//   auto cluster = ChaosCluster::start({.nodes = 3}, Deadline::after(30s)).value();
//   auto driver = cluster->connect().value();
//   auto counter = driver.spawn<Counter>({.max_restarts = -1, .label_preference = on_node(1)});
//   cluster->kill_node(1);  // daemon, keeper and all actors there, at once, with their memory
//   cluster->join(1);       // a worker node takes its place
//
// A node that is killed loses what it held, as a machine whose power goes; that its address answers
// "nobody listens" is the difference (a machine that says nothing: stop_node). Processes and
// connections of the cluster are struck, those of the driver are not. What tools/chaos cluster adds
// are cables between machines (network namespaces, as root).

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "troupe/clock.h"
#include "troupe/cluster.h"
#include "troupe/handle.h"
#include "troupe/link_conditions.h"
#include "troupe/status.h"

namespace troupe {

struct ChaosClusterOptions {
  int nodes = 2;
  double cpus_per_node = 1;
  // The command `troupe`, which head and nodes run. Empty: TROUPE_PROGRAM, else the one beside this
  // program, else the one in PATH.
  std::string program = {};
  // Where logs and the state of head and nodes are kept; empty: in a folder of its own under
  // TMPDIR, removed at the end.
  std::string folder = {};
  const Environment* environment = nullptr;  // null: the process's
};

// One thread at a time; the one that started it must live as long, for the kernel ends its
// processes with it.
class ChaosCluster {
 public:
  // Returns when all nodes have joined. kNotFound: there is no command `troupe`.
  static Result<std::unique_ptr<ChaosCluster>> start(const ChaosClusterOptions& options,
                                                     Deadline deadline);
  ~ChaosCluster();  // ends everything, by force where it must
  ChaosCluster(const ChaosCluster&) = delete;
  ChaosCluster& operator=(const ChaosCluster&) = delete;

  // A driver of it. Host, port and token are put in.
  Result<Cluster> connect(ConnectOptions options = {}) const;
  // "127.0.0.1:PORT"
  const std::string& address() const;
  // HOME of what is to find the cluster's token.
  const std::string& home() const;
  // The environment variable kChaosMark of all its processes.
  const std::string& mark() const;
  int node_count() const;

  // --- nodes. kInvalidArgument for a number that none has, kFailedPrecondition for one that is
  // down (or up, of join).

  bool is_up(int node) const;
  // All processes of the node at once, with the memory that they keep.
  Status kill_node(int node);
  // All of them stand still, and say nothing, until continue_node().
  Status stop_node(int node);
  Status continue_node(int node);
  // SIGTERM to its worker: it drains itself, and leaves. kDeadlineExceeded: it has not within that
  // time, and may yet; kill_node() takes it away.
  Status leave(int node, Duration patience = std::chrono::seconds(5));
  // A worker node in the place of one that was killed or left. Returns as soon as it was started;
  // wait_for_node() waits until it has joined.
  Status join(int node);
  Status wait_for_node(int node, Deadline deadline);

  // Where the actor's process runs; waits until it has one. kNotFound: on none of these nodes; why
  // it died, where it gets no process any more.
  template <typename T>
  Result<int> node_of(Cluster& driver, const ActorHandle<T>& actor, Deadline deadline) const {
    return node_of_actor(
        driver,
        [&](detail::OnActorChange changed) { return driver.watch(actor, std::move(changed)); },
        deadline);
  }

  // --- connections to a node, from other nodes and drivers; −1: to every node

  void cut(int node);  // those that are there are reset; new ones pass
  void set_link(int node, const LinkConditions& conditions);
  void stall(int node) { set_link(node, {.stalled = true}); }
  void slow(int node, Duration delay, Duration jitter = {}) {
    set_link(node, {.delay = delay, .jitter = jitter});
  }
  void mend(int node) { set_link(node, {}); }

 private:
  struct State;
  explicit ChaosCluster(std::unique_ptr<State> state);
  Result<int> node_of_actor(Cluster& driver,
                            const std::function<ActorWatch(detail::OnActorChange)>& watch,
                            Deadline deadline) const;
  const std::unique_ptr<State> state_;
};

// ActorOptions::label_selector, or label_preference, of an actor that is to run on that node.
std::map<std::string, std::string> on_node(int node);

}  // namespace troupe
