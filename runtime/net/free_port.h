#pragma once
// Ports of this machine that nobody uses.

#include <cstdint>

#include "runtime/base/status.h"

namespace troupe::net {

// A TCP port that was free a moment ago at every IPv4 address of this machine.
Result<std::uint16_t> free_port();

}  // namespace troupe::net
