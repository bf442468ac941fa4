#pragma once
// Addresses as people and environment variables write them.

#include <string>

#include "runtime/base/status.h"
#include "runtime/net/transport.h"

namespace troupe::net {

// "HOST:PORT", "[V6]:PORT"; `what` names the option or variable in messages. kInvalidArgument.
// Address::to_string is the inverse.
Result<Address> parse_address(const std::string& text, const std::string& what);

}  // namespace troupe::net
