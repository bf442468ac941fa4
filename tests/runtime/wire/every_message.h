#pragma once
// Every message of every family, by reflection: one that is added is among them.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/wire/call_messages.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "runtime/wire/object_messages.h"
#include "tests/runtime/wire/filled.h"

namespace troupe::tests {

// In the family's order.
template <typename Family>
struct EveryMessage {
  std::vector<std::string> names;
  std::vector<Family> filled;
  std::vector<Family> empty;  // a protocol version is 0
};
template <typename Family>
EveryMessage<Family> every_message(const Aim* aim = nullptr);
// Whether all fields are the same, compared by reflection.
template <typename Family>
bool same_message(const Family& a, const Family& b);

// Compiled once, in every_message.cpp, for all programs that use them.
#define TROUPE_OF_FAMILIES(Extern)         \
  TROUPE_OF_FAMILY(Extern, ControlMessage) \
  TROUPE_OF_FAMILY(Extern, HostMessage)    \
  TROUPE_OF_FAMILY(Extern, KeeperMessage)  \
  TROUPE_OF_FAMILY(Extern, ObjectMessage)  \
  TROUPE_OF_FAMILY(Extern, CallMessage)
#define TROUPE_OF_FAMILY(Extern, Family)                                              \
  Extern template EveryMessage<wire::Family> every_message<wire::Family>(const Aim*); \
  Extern template bool same_message<wire::Family>(const wire::Family&, const wire::Family&);
TROUPE_OF_FAMILIES(extern)

}  // namespace troupe::tests
