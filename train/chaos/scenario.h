#pragma once
// A scenario of `troupe chaos run`: which faults strike a training, on which cluster.
//
//   seed: 7                       # of random rates and victims (1)
//   faults:
//     - kill@step=4,rank=1        # as in --chaos
//     - fault: stop               # or its keys
//       every: 10
//   cluster: loopback             # embedded | loopback; by default what the faults need
//   nodes: 2                      # worker nodes of the loopback cluster

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/chaos/fault.h"

namespace troupe::train {

struct Scenario {
  std::uint64_t seed = 1;
  std::vector<Fault> faults;
  // Head and workers of its own on this machine, each a process; else all within the driver.
  bool loopback = false;
  std::int64_t nodes = 2;
};

// From the document that the YAML (or JSON) file holds, and the faults of `more` besides. Errors
// name the entry: "faults[2]: …". kInvalidArgument too where a fault names a node that there is
// not, or strikes what an embedded cluster has not, and that was asked for.
Result<Scenario> scenario_from_json(const json::Value& document, std::vector<Fault> more = {});

}  // namespace troupe::train
