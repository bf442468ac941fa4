#pragma once
// A whole cluster inside one process: head, one node and their loop, on the loopback interface.
//
// The token is random and stays in memory, so does the journal; no file is written unless `log_dir`
// asks for it. Actors' processes end with this process, however it ends.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/types.h"
#include "scheduler/node/log_pipes.h"
#include "troupe/log.h"

namespace troupe::scheduler {

struct EmbeddedOptions {
  double num_cpus = 0;  // 0: the CPUs this process may use
  // Units of further resources, or of "memory" and "GPU" instead of those detected.
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  OutputSink on_output;        // actors' output, line by line, on the cluster's thread
  std::uint64_t object_memory_bytes = 0;  // as NodeOptions
  std::string object_spill_dir;
  OutputLimits output_limits;  // of each actor, for on_output and for drivers elsewhere
  std::string log_dir;         // actors' output into files there; empty: none
  LogSink log_sink;            // head's and node's own lines; empty: standard error
  LogLevel log_level = LogLevel::kWarning;
  // What actors' processes have started ends with this process, too, also what has left their
  // process groups. Costs a process that watches (Parent::kKeeperOfThisDaemon).
  bool ends_descendants = false;
  bool programs_read_input = false;  // as NodeOptions::programs_read_input
  // Another address of this machine than loopback, and a token that others know: then worker nodes
  // of other machines may join.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one
  net::Token token;        // empty: a random one
};

class EmbeddedCluster {
 public:
  // Returns when the node has joined. Not on a loop's thread. kInvalidArgument for amounts that are
  // negative or no numbers.
  static Result<std::unique_ptr<EmbeddedCluster>> start(const EmbeddedOptions& options = {});
  ~EmbeddedCluster();  // stop()
  EmbeddedCluster(const EmbeddedCluster&) = delete;
  EmbeddedCluster& operator=(const EmbeddedCluster&) = delete;

  // Waits for the end of the head after HeadClient::stop_cluster. Any thread but the cluster's.
  void wait_for_end(Duration timeout);
  // Ends every actor's process, the node and the head; when it returns nothing is left. Any thread
  // but the cluster's.
  void stop();

  const net::Address& head_address() const;
  const net::Token& token() const;
  // To every program that its node runs. Any thread but the cluster's.
  void signal_programs(int signal);
  NodeId node_id() const;
  const wire::NodeInfo& node() const;
  net::EventLoop& loop();

 private:
  struct State;
  explicit EmbeddedCluster(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::scheduler
