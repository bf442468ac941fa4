#pragma once
// What Cluster::connect takes from its surroundings where it is not told: the cluster, its token
// and the job, from where the command line takes them (scheduler/client/find_cluster.h).

#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "scheduler/client/find_cluster.h"
#include "troupe/cluster.h"

namespace troupe::detail {

struct CompleteOptions {
  ConnectOptions options;  // nothing is left open but the job, where it belongs to none
  // For errors: who named the cluster, and the file that the token came from; may be empty.
  scheduler::ClusterPlace place;
  std::string token_file;
};

// Errors as find_cluster's; kNotFound where there is no token, kInvalidArgument names a variable
// that makes no sense.
Result<CompleteOptions> complete(ConnectOptions options, const Environment& environment,
                                 FileSystem& files);

}  // namespace troupe::detail
