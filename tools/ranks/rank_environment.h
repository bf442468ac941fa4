#pragma once
// The variables that tell a rank's process its place in the world: torchrun's variables
// (torch/distributed/elastic/agent/server/local_elastic_agent.py).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

struct RankPlace {
  int rank = 0;
  int local_rank = 0;
  int group_rank = 0;  // the number of its node
  int local_world_size = 1;
};

struct World {
  int size = 1;
  int nodes = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
  int restart_count = 0;
};

// `launcher`: the launcher's own environment, whose OMP_NUM_THREADS and
// TORCH_NCCL_ASYNC_ERROR_HANDLING stand. TORCHELASTIC_USE_AGENT_STORE is False: no store of ours
// listens at MASTER_PORT, so rank 0 makes it.
std::map<std::string, std::string> rank_environment(const RunOptions& options, const World& world,
                                                    const RankPlace& place,
                                                    const std::string& error_file,
                                                    const Environment& launcher);

// The words of the rank's command line. ${local_rank} and $local_rank become its number; `$$` stays
// as it is, which torchrun turns into `$`.
std::vector<std::string> rank_words(const RunOptions& options, int local_rank);

// Before a line that goes to a file and onto the console, too: "[default0]:", or
// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE with ${role_name}, ${rank} and ${local_rank}.
std::string line_prefix(const RunOptions& options, const RankPlace& place,
                        const Environment& launcher);

}  // namespace troupe::tools
