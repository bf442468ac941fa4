#pragma once
// The connections between callers and actors: how much may go over them at once.

#include <cstdint>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/net/connection.h"

namespace troupe::detail {

// Arguments, results and items of any size that this machine can hold: at most half of the memory
// that this process may use.
net::ConnectionOptions call_connection_options();

// kResourceExhausted: `what` arrived, of so many bytes, on a connection that takes less.
Status too_large_error(std::string_view what, std::uint64_t bytes,
                       const net::ConnectionOptions& options);

}  // namespace troupe::detail
