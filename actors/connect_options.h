#pragma once
// What Cluster::connect takes from the environment.

#include "actors/cluster.h"
#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"

namespace troupe::detail {

// `options` with nothing left open but the job, where it belongs to none. kNotFound where nothing
// names a cluster or its token, with how to name it; kInvalidArgument names a variable that makes
// no sense.
Result<ConnectOptions> complete(ConnectOptions options, const Environment& environment,
                                FileSystem& files);

}  // namespace troupe::detail
