#pragma once
// NCCL's and PyTorch's variables of the environment as Troupe reads and sets them.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"

namespace troupe::train {

// How long one wait of a communicator may take, and why so long.
struct NcclTimeout {
  Duration limit{};
  std::string source;  // "ddp_timeout", "AXOLOTL_NCCL_TIMEOUT", "the default"
  // What the environment says besides that has no effect here, one sentence each.
  std::vector<std::string> notices;
};

// configured: the key ddp_timeout where the configuration gives it; it comes first. Then
// AXOLOTL_NCCL_TIMEOUT and NCCL_TIMEOUT, seconds; else 1800 s. Errors: kInvalidArgument (a variable
// that counts and is no positive number of seconds).
Result<NcclTimeout> nccl_timeout(const Environment& environment,
                                 std::optional<Duration> configured);

struct EnvironmentSetting {
  std::string name, value;
  std::string reason;  // for a notice
};

// What the hardware's topology says of a pair of ranks of one host.
struct PeerAccess {
  int rank = 0, other = 0;
  bool possible = false;
};

// NCCL_P2P_DISABLE=1 where a pair lacks peer access, as NCCL's own detection may hang there;
// nothing where all have it, or where the user has set the variable, to whatever.
std::optional<EnvironmentSetting> peer_access_setting(const Environment& environment,
                                                      std::span<const PeerAccess> pairs);

// NCCL_COMM_BLOCKING=0 where the user has set it to anything else: it comes before what a
// communicator is made with, and a call that blocks has no deadline.
std::optional<EnvironmentSetting> nonblocking_setting(const Environment& environment);

// Of "NAME=value" texts, the last one null (environ): what a user says to communicators, which goes
// to trainers on nodes that were started elsewhere. NCCL_*, TORCH_NCCL_*, AXOLOTL_NCCL_TIMEOUT and
// TROUPE_NCCL; not NCCL_HOSTID, which is a process's own.
std::map<std::string, std::string> communicator_variables(const char* const* variables);

// Before NCCL is first used in this process: it reads its variables once. Not thread-safe, like
// all changes of the environment.
void apply_setting(const EnvironmentSetting& setting);

}  // namespace troupe::train
