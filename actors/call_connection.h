#pragma once
// The connections between callers and actors: how much may go over them at once.

#include "runtime/net/connection.h"

namespace troupe::detail {

// Arguments, results and items of any size that this machine can hold: at most half of the memory
// that this process may use.
net::ConnectionOptions call_connection_options();

}  // namespace troupe::detail
