#pragma once
// A whole cluster inside a driver's process: head and node on one loop, on the loopback interface,
// with a token that nobody else knows, and without files.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "runtime/wire/types.h"
#include "scheduler/node/node_daemon.h"

namespace troupe::scheduler {

struct EmbeddedOptions {
  double num_cpus = 0;  // 0: the CPUs this process may use
  std::map<std::string, double> resources;  // besides
  std::string log_dir;                      // empty: no log files
  OutputSink on_output;
  LogLevel log_level = LogLevel::kWarning;
  // Another address than loopback and a token that others know: then worker nodes of other machines
  // may join. Empty: private.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  net::Token token;
};

class EmbeddedCluster {
 public:
  static Result<std::unique_ptr<EmbeddedCluster>> start(const EmbeddedOptions& options);
  ~EmbeddedCluster();  // stop()
  EmbeddedCluster(const EmbeddedCluster&) = delete;
  EmbeddedCluster& operator=(const EmbeddedCluster&) = delete;

  const net::Address& head_address() const;
  const net::Token& token() const;
  const NodeId& node_id() const;
  // Ends all actors and waits for their processes' ends. Any thread but the cluster's own loop.
  void stop();

 private:
  struct State;
  explicit EmbeddedCluster(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::scheduler
