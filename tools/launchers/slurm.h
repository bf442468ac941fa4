#pragma once
// What SLURM tells a task of a step that `srun` started (man srun, "OUTPUT ENVIRONMENT VARIABLES").

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"

namespace troupe::tools {

// "node[01-04,7],gpu-x" in its order: as `scontrol show hostnames`. Several brackets multiply, the
// leftmost slowest; the first number of a range fixes the width. kInvalidArgument with the
// position.
Result<std::vector<std::string>> parse_node_list(std::string_view text);

// "2(x3),1": the tasks of each node. kInvalidArgument with the position.
Result<std::vector<int>> parse_tasks_per_node(std::string_view text);

struct SlurmTask {
  std::string step;  // "JOB.STEP", with ".RESTART" behind it where the job was queued again
  std::vector<std::string> nodes;
  std::vector<int> tasks;  // of each node
  int node = 0;            // this task's
  int local_id = 0;        // within its node
  std::string submit_dir;

  int nodes_count() const { return static_cast<int>(nodes.size()); }
  int tasks_here() const { return tasks[static_cast<std::size_t>(node)]; }
  bool several_nodes() const { return nodes.size() > 1; }
  // The port of the run's head, the same for all tasks of the step and seldom that of another.
  int port() const;
};

// Whether srun started this process, as the only task of its step too.
bool in_slurm_step(const Environment& environment);

// Nothing outside of a step, and in a step of one task, which needs nobody. kInvalidArgument names
// the variable that contradicts another.
Result<std::optional<SlurmTask>> read_slurm_task(const Environment& environment);

// The file by which the tasks of a step share their token: in the folder that the job was submitted
// from, which all nodes have.
std::string slurm_token_file(const SlurmTask& task);

// What is to be said where a node's number was given, and is 0 on all nodes, since the batch
// script's shell expanded it; empty: it is this node's.
std::string expanded_node_rank(const SlurmTask& task, int given, int nodes);

}  // namespace troupe::tools
