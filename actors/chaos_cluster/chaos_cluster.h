#pragma once
// A cluster to be struck, for tests and chaos runs: a head and worker nodes on this machine, each
// part a process as on a cluster of machines, a proxy before each node. Needs no privileges.
//
//   auto cluster = ChaosCluster::start({.nodes = 3}, Deadline::after(30s)).value();
//   auto driver = cluster->connect().value();
//   auto counter = driver.spawn<Counter>({.max_restarts = -1, .label_preference = on_node(1)});
//   cluster->kill_node(1);     // the daemon, its keeper and all actors there, at once, with their
//   memory cluster->join(1);          // a worker node takes its place
//
// A node that is killed loses what it held, as a machine whose power goes; that its address answers
// "nobody listens" is the difference (a machine that says nothing: stop_node). Processes and
// connections of the cluster are struck, those of the driver are not. What tools/chaos cluster adds
// are cables between machines (network namespaces, as root).

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster.h"
#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/ids.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/fault_proxy.h"
#include "runtime/process/child_program.h"

namespace troupe {

struct ChaosClusterOptions {
  int nodes = 2;
  double cpus_per_node = 1;
  // The command `troupe`, which head and nodes run. Empty: TROUPE_PROGRAM, else the one beside this
  // program, else the one in PATH.
  std::string program;
  // Where logs and the state of head and nodes are kept; empty: in a folder of its own under
  // TMPDIR, removed at the end.
  std::string folder;
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
  const std::string& address() const { return address_; }
  // HOME of what is to find the cluster's token.
  const std::string& home() const { return home_; }
  // The environment variable kChaosMark of all its processes.
  const std::string& mark() const { return mark_; }
  int node_count() const { return static_cast<int>(nodes_.size()); }

  // --- nodes. kInvalidArgument for a number that none has, kFailedPrecondition for one that is
  // down (or up, of join).

  bool is_up(int node) const;
  // All processes of the node at once, with the memory that they keep.
  Status kill_node(int node);
  // All of them stand still, and say nothing, until continue_node().
  Status stop_node(int node);
  Status continue_node(int node);
  // SIGTERM to its worker: it drains itself, and leaves.
  Status leave(int node);
  // A worker node in the place of one that was killed or left. Returns as soon as it was started;
  // wait_for_node() waits until it has joined.
  Status join(int node);
  Status wait_for_node(int node, Deadline deadline);

  // Where the actor's process runs; waits until it has one. kNotFound: on none of these nodes; why
  // it died, where it gets no process any more.
  template <typename T>
  Result<int> node_of(Cluster& driver, const ActorHandle<T>& actor, Deadline deadline) const {
    const auto place = std::make_shared<Place>();
    const ActorWatch watch =
        driver.watch(actor, [place](const ActorInfo& info) { place->changed(info); });
    return number_of(driver, TROUPE_TRY(place->wait(deadline)));
  }

  // --- connections to a node, from other nodes and drivers; −1: to every node

  void cut(int node);  // those that are there are reset; new ones pass
  void set_link(int node, const net::LinkConditions& conditions);
  void stall(int node) { set_link(node, {.stalled = true}); }
  void slow(int node, Duration delay, Duration jitter = {}) {
    set_link(node, {.delay = delay, .jitter = jitter});
  }
  void mend(int node) { set_link(node, {}); }

 private:
  // Which node an actor's process is on.
  class Place {
   public:
    void changed(const ActorInfo& info);
    Result<NodeId> wait(Deadline deadline);

   private:
    Mutex mutex_;
    CondVar changed_;
    std::optional<NodeId> node_ TROUPE_GUARDED_BY(mutex_);
    Status dead_ TROUPE_GUARDED_BY(mutex_);  // for good: why
  };
  struct Node {
    std::uint16_t port = 0, proxy_port = 0;
    std::unique_ptr<process::ChildProgram> worker;  // null: it is down
    int starts = 0;
    std::string log_path;  // of its last start
  };
  ChaosCluster() = default;
  static Result<int> number_of(Cluster& driver, const NodeId& id);
  Status start_head(Deadline deadline);
  // On the proxies' loop; returns when it is done.
  void in_loop(const std::function<void()>& work);
  Status open_proxy(int node);
  void close_proxy(int node);
  Status start_worker(int node);
  Result<Node*> node_that_is(bool up, int node);
  Status signal_all(int node, int signal);
  void on_proxies(int node, const std::function<void(net::FaultProxy&)>& work);

  PosixFileSystem files_;
  std::string program_, folder_, home_, mark_;
  std::uint16_t port_ = 0;  // of the head
  std::string address_;     // of it, HOST:PORT
  bool own_folder_ = false;
  double cpus_per_node_ = 1;
  net::LoopThread proxies_thread_{"proxies"};
  std::vector<std::unique_ptr<net::FaultProxy>> proxies_;  // loop thread
  std::unique_ptr<process::ChildProgram> head_;
  std::vector<Node> nodes_;
};

// ActorOptions::label_selector, or label_preference, of an actor that is to run on that node.
std::map<std::string, std::string> on_node(int node);

}  // namespace troupe
