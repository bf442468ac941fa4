#pragma once
// The node daemon: processes, sockets, descriptors and the clock around the node's state machine.
//
// It listens on one TCP port and on an abstract Unix socket, keeps the control connection to the
// head, starts actors' processes, and hands them their callers' connections.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/random.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "scheduler/node/gpu_devices.h"
#include "scheduler/node/log_pipes.h"
#include "scheduler/node/node_state.h"
#include "troupe/log.h"

namespace troupe::scheduler {

// Whose children the actors' processes are.
enum class Parent {
  // This process's: its end is theirs.
  kDaemon,
  // A keeper's (runtime/process/keeper.h). They, and the memory that is kept for them, outlive a
  // daemon that is killed for keeper_hold; a daemon that starts meanwhile with the same node_id
  // goes
  // on where that one stopped.
  kKeeper,
  // Those of a keeper that ends as soon as this daemon is gone, however it went, and with it the
  // processes and all that these have started, also what has left their process groups.
  kKeeperOfThisDaemon,
};

struct NodeOptions : Timing {
  NodeId node_id;                  // empty: a random one
  std::string name;                // host name; the head makes it unique
  std::string host = "127.0.0.1";  // numeric address: to bind, and for others to connect to
  std::uint16_t port = 0;          // 0: a free one
  // Where others connect to instead, where something passes connections on to this node.
  std::optional<net::Address> advertised;
  net::Address head;
  net::Token token;
  // A file that holds the token, absolute: the programs of jobs are told of it (TROUPE_TOKEN_FILE).
  // Empty: there is none, and the node refuses jobs.
  std::string token_file;
  wire::Resources resources;
  // The devices behind the amount of GPUs among the resources: fewer are an amount that no device
  // stands for. `nvml` reads them; null: nobody does.
  NodeGpus gpus;
  std::shared_ptr<Nvml> nvml;
  std::map<std::string, std::string> labels;
  std::string log_dir;         // actors' output goes to LOG_DIR/ACTOR-ID.log; empty: no files
  OutputListener on_output;    // actors' output; may be empty
  OutputLimits output_limits;  // of each actor, for on_output and for those who follow it from afar
  // Shared memory for objects, at most; 0: 30 % of what is available when it is first used. And
  // where they go when it is full; empty: a folder in the system's for temporary files.
  std::uint64_t object_memory_bytes = 0;
  std::string object_spill_dir;
  // Where packages are kept (package_cache.h), and how many bytes of them; empty: nowhere, and the
  // node runs nothing that needs one.
  std::string package_directory;
  std::uint64_t package_bytes_max = 10ull << 30;
  // The daemon's own lines; empty: standard error.
  LogSink log_sink;
  LogLevel log_level = LogLevel::kInfo;
  // The program that images are compared with besides the one at their path; empty: this one.
  std::string executable;
  Parent parent = Parent::kDaemon;
  // Programs (wire::Program) read the standard input of this process.
  bool programs_read_input = false;
  std::string keeper_program;  // that the keeper runs (process::keeper_main); empty: this one
  // Loop thread. With the name that the head gave; once.
  std::function<void(const std::string& name)> on_registered;
  // Loop thread; once, last; the daemon may be destroyed by work posted from it. Ok: it was asked
  // to end. kDeadlineExceeded, naming the address: no head answered. Otherwise why the head
  // refused.
  std::function<void(Status)> on_stopped;
};

class NodeDaemon {
 public:
  // Listens and begins to join the head, which need not be there yet. Loop thread; the loop must
  // outlive the daemon. kAlreadyExists for a taken port, or a daemon of this node that runs;
  // kInvalidArgument for times that contradict each other (runtime/base/timing.h).
  static Result<std::unique_ptr<NodeDaemon>> start(net::EventLoop& loop, NodeOptions options);
  virtual ~NodeDaemon() = default;  // stop(); loop thread

  // Takes nothing new, ends the actors when they have finished what is queued, within
  // shutdown_grace, then leaves the head, which starts those that may be started again elsewhere;
  // on_stopped follows. Loop thread.
  virtual void leave(const std::string& reason) = 0;
  // SIGKILLs every actor's process group and closes everything at once; when it returns nothing is
  // left. on_stopped does not follow. Loop thread.
  virtual void stop() = 0;
  // Sends a signal to the process group of every program (wire::Program) that runs here. Loop
  // thread.
  virtual void signal_programs(int signal) = 0;
  // What the cluster was stopped for, once on_stopped was called with ok; else empty. Loop thread.
  virtual const std::string& end_reason() const = 0;

  virtual const wire::NodeInfo& info() const = 0;
  // For tests. Loop thread.
  virtual const NodeState& state() const = 0;
};

}  // namespace troupe::scheduler
