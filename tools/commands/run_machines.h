#pragma once
// The machines that a run's ranks are on: this one alone, several that were told where the first
// one is, or nodes of a running cluster.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/client/head_client.h"
#include "scheduler/embedded/embedded_cluster.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/command.h"
#include "tools/commands/remote_hosts.h"
#include "tools/ranks/console.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

// One machine of an attempt.
struct RunMachine {
  NodeId node_id;
  std::string name;
  std::string host;  // where other machines reach it
  bool here = false;
  int processes = 1;
  std::int32_t bundle_index = -1;  // of the attempt's placement group; -1: there is none
};

// Labels of machines that join a run.
inline constexpr const char* kRunLabel = "troupe-run";              // the run's id
inline constexpr const char* kProcessesLabel = "troupe-processes";  // how many ranks it takes

// Methods wait, and are called by one thread, which is no loop's.
class RunMachines {
 public:
  using Stopped = std::function<bool()>;

  // With `address` a running cluster; else a head on this machine, which others join where the
  // options say that there are several.
  static Result<std::unique_ptr<RunMachines>> open(CommandContext& context,
                                                   const RunOptions& options,
                                                   const std::optional<std::string>& address);
  ~RunMachines();  // ends the cluster, where it is the run's own

  // The machines of the next attempt, node 0 first, as soon as they are there: all of them at
  // nodes_max, and after the last call from nodes_min on. kDeadlineExceeded names what is missing;
  // kCancelled when `stopped` says so.
  Result<std::vector<RunMachine>> gather(const Stopped& stopped);
  // Those that could take ranks now, besides what an attempt uses. Fewer than gather() would wait
  // for are no error.
  Result<std::vector<RunMachine>> present();
  // The placement group of the last gather()'s ranks; empty: there is none.
  GroupId group() const { return group_; }

  scheduler::HeadClient& head() { return *head_; }
  std::shared_ptr<scheduler::HeadClient> shared_head() { return head_; }
  net::EventLoop& loop() { return thread_->loop(); }
  const net::Token& token() const { return token_; }
  JobId job_id() const { return job_id_; }
  bool running_cluster() const { return cluster_ == nullptr; }
  // Nobody joins from elsewhere.
  bool one_machine() const;
  // To the ranks of this machine, where it is one of the run's own cluster, and of those that it
  // started.
  void signal_here(int signal);
  // Ends the run's own cluster, whose other machines end with this code.
  void end(int exit_code);

 private:
  RunMachines(CommandContext& context, const RunOptions& options)
      : context_(context), options_(options) {}
  Status connect(const net::Address& address);
  // The machines that options_.hosts names, from here, over ssh.
  // `own`: the index of this one.
  Status start_hosts(std::optional<std::size_t> own);
  Result<std::vector<RunMachine>> reserve(const Stopped& stopped);
  // kResourceExhausted where the nodes of a running cluster could not hold it if they were idle.
  Status check_possible(const wire::PlacementGroupSpec& spec);

  CommandContext& context_;
  const RunOptions& options_;
  std::unique_ptr<scheduler::EmbeddedCluster> cluster_;
  std::unique_ptr<net::LoopThread> thread_;
  std::shared_ptr<scheduler::HeadClient> head_;
  net::Token token_;
  JobId job_id_;
  GroupId group_;
  bool reserved_before_ = false;
  std::unique_ptr<RemoteHosts> remote_;  // goes first: they leave a head that is there
};

// This process's own streams, for what ranks write.
Console::Streams console_streams(CommandContext& context);

// Whether this machine is the one where the head of several is to be. kStatic: node 0. kDynamic:
// the address is one of ours.
Result<bool> is_head_machine(CommandContext& context, const RunOptions& options);

// This machine as one of the run's, until the run ends; then its exit code.
Result<int> join_run(CommandContext& context, const RunOptions& options);

}  // namespace troupe::tools
