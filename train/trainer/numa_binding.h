#pragma once
// A process's threads beside the device that they serve.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

inline constexpr const char* kNumaNodes = "/sys/devices/system/node";

// The numbers of a list as the kernel writes them: "0-3,8". kDataLoss where it is none.
Result<std::vector<int>> parse_number_list(std::string_view text);

// Lets the calling thread, and those that it starts from now on, run on the processors of this NUMA
// node alone, as far as they might run there before: what they touch first, pinned memory too, lies
// in its memory. What was done, for a log; empty: the machine has no other nodes, or no processors
// of this one are the process's. Errors: what the kernel says. `nodes`: kNumaNodes.
Result<std::string> bind_to_numa_node(FileSystem& files, int node,
                                      const std::string& nodes = kNumaNodes);

}  // namespace troupe::train
