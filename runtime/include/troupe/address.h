#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// Where somebody listens.
struct Address {
  std::string host;  // numeric, or a name to resolve
  std::uint16_t port = 0;
  // Abstract Unix socket of the same node; used instead of host and port where it is not empty.
  std::string local_name;
  std::string to_string() const;
};

}  // namespace troupe
