#pragma once
// Processes of one chaos run, found among all others by a variable that they inherited.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

// The variable; its value is different for every run. Nothing of Troupe reads it.
inline constexpr const char* kChaosMark = "TROUPE_CHAOS_RUN";
// Of a worker node's processes: the node's number.
inline constexpr const char* kChaosNodeMark = "TROUPE_CHAOS_NODE";

enum class ProcessRole { kOther, kTrainer, kController, kKeeper, kDaemon, kHead };

struct MarkedProcess {
  pid_t pid = -1;
  pid_t parent = -1;
  ProcessRole role = ProcessRole::kOther;
  int rank = -1;     // of trainers: as its command line says
  int node = -1;     // of a worker node's
  char state = '?';  // as ps shows it; Z: ended
};

// The role and rank that a command line (its words) says.
MarkedProcess role_of(const std::vector<std::string>& command_line);

// All that run now, in the order of their numbers. Watchers of `--watch` are kOther: the processes
// that they watch over are the daemons.
std::vector<MarkedProcess> marked_processes(const std::string& mark);

}  // namespace troupe::chaos
