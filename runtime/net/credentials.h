#pragma once
// What a process must have to take part in a cluster: its token, and how its connections are
// protected.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "troupe/token.h"

namespace troupe::net {

// A shorter token could be guessed.
inline constexpr std::size_t kTokenBytesMin = 16;

using troupe::Security;
using troupe::Token;

// From a peer or a file: a number that this version does not know becomes kTls, the strict one.
Security security_from_number(int number);

}  // namespace troupe::net
