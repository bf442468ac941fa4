#pragma once
// A run whose processes `srun` started, one or several on each node. The first task of each node
// takes part: on node 0 it leads. Further tasks are their node's places for ranks: they wait, and
// end as the first one does.
//
// The token reaches the other nodes in a file of the folder that the job was submitted from, which
// only its owner may read, and which goes with the run: neither arguments nor variables hold it.

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "tools/commands/command.h"
#include "tools/launchers/slurm.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

class SlurmStep {
 public:
  // Null outside of a step, in one of a single task, and where a running cluster is used.
  static Result<std::unique_ptr<SlurmStep>> enter(CommandContext& context);
  ~SlurmStep();  // end(1), unless it has ended
  SlurmStep(const SlurmStep&) = delete;
  SlurmStep& operator=(const SlurmStep&) = delete;

  const SlurmTask& task() const { return task_; }
  bool first_of_node() const { return task_.local_id == 0; }
  // Further tasks: the exit code of their node's first one, once it ends. Signals that SLURM sends
  // to all tasks are the first one's. kUnavailable where there is none.
  Result<int> wait_for_first();
  // The first task of a node: what finds the token; other nodes wait until it is there.
  // kDeadlineExceeded.
  Result<std::map<std::string, std::string>> share_token();
  // For `troupe train`: the launchers' variables as they would be for this step. Those that were
  // given stand, but for a node's number that is 0 on all nodes.
  Result<std::map<std::string, std::string>> launch_variables();
  // Tells the node's other tasks.
  void end(int exit_code);

 private:
  SlurmStep(CommandContext& context, SlurmTask task) : context_(context), task_(std::move(task)) {}
  Status listen();
  void serve();

  CommandContext& context_;
  const SlurmTask task_;
  std::string token_file_;
  UniqueFd socket_;
  UniqueFd ending_;
  int exit_code_ = 1;
  std::thread thread_;
};

}  // namespace troupe::tools
