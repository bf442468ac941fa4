#pragma once
// Starting a program, and knowing its process by a descriptor that cannot come to mean another one.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::process {

struct DescriptorMapping {
  int parent = -1;  // ours; stays ours
  int child = -1;   // its number in the new process
};

struct SpawnOptions {
  // The program. Its path, or a descriptor of its file (then the path only serves in messages): the
  // very image that was opened, even where the path has been written anew since.
  std::string path;
  int executable_fd = -1;
  std::vector<std::string> argv;  // with argv[0]
  // Variables besides, or instead of, those of this process.
  std::map<std::string, std::string> environment;
  bool inherit_environment = true;
  // Descriptors 0, 1 and 2 are inherited where nothing is mapped to them; no other one is.
  std::vector<DescriptorMapping> descriptors;
  std::string working_directory;  // empty: ours
  // Leader of a process group of its own, whose number is its pid.
  bool new_process_group = true;
  // Leader of a session of its own, and of its process group: it may read a terminal that is our
  // standard input, whichever process group that terminal is in the foreground for.
  bool new_session = false;
  // Sent by the kernel when the *thread* that called spawn() ends; 0: none.
  int parent_death_signal = 0;
};

// The caller's own child: it must be waited for (watch_exit or wait).
struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;
};

// Starts the program; when this returns ok, its image has been loaded. Signals begin at their
// defaults, unblocked. Failures carry the path: kNotFound, kPermissionDenied, kResourceExhausted, …
// Any thread. About as cheap for a process of many gigabytes as for a small one: the new process
// borrows our memory until it runs its own program (as with vfork).
Result<Child> spawn(const SpawnOptions& options);

}  // namespace troupe::process
