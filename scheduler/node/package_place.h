#pragma once
// A package where it is unpacked on this node, for the processes of its job.

#include <map>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

struct PackagePlace {
  wire::Package package;  // empty: there is none, and what follows changes nothing
  std::string directory;  // that of its hash

  // What lies at `path` in any node's copy of the package lies there in ours; others stay.
  std::string here(const std::string& path) const;
  std::string working_folder() const;
  // Its libraries, before others in LD_LIBRARY_PATH. `daemon`: what the process inherits.
  void tell(std::map<std::string, std::string>& environment, const Environment& daemon) const;
};

}  // namespace troupe::scheduler
