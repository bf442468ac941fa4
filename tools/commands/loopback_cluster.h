#pragma once
// A cluster of its own on this machine, each part a process as on a cluster of machines: a head and
// worker nodes that are started again when they die, a proxy before each node.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/fault_proxy.h"
#include "tools/commands/child_program.h"

namespace troupe::tools {

struct LoopbackOptions {
  std::string folder;  // its HOME, logs and state
  std::string mark;    // marked_processes.h
  int nodes = 2;
  double cpus_per_node = 1;
};

class LoopbackCluster {
 public:
  // Waits until all nodes have joined. The calling thread must live as long as the cluster.
  static Result<std::unique_ptr<LoopbackCluster>> start(FileSystem& files,
                                                        const LoopbackOptions& options,
                                                        Deadline deadline);
  ~LoopbackCluster();  // ends everything, by force where it must

  // "127.0.0.1:PORT"
  const std::string& address() const { return address_; }
  // What a driver of it needs in its environment, besides the mark.
  const std::string& home() const { return home_; }

  // Sets what the connections to a node meet; −1: to every node.
  void set_link(int node, const net::LinkConditions& conditions);
  void cut(int node);

 private:
  LoopbackCluster() = default;
  Status start_head(FileSystem& files, const LoopbackOptions& options, Deadline deadline);
  Status start_node(FileSystem& files, const LoopbackOptions& options, int number,
                    Deadline deadline);
  void on_proxies(int node, const std::function<void(net::FaultProxy&)>& work);

  std::string home_, address_;
  net::LoopThread proxies_thread_{"proxies"};
  std::vector<std::unique_ptr<net::FaultProxy>> proxies_;  // loop thread
  std::unique_ptr<ChildProgram> head_;
  std::vector<std::unique_ptr<ChildProgram>> nodes_;
};

}  // namespace troupe::tools
