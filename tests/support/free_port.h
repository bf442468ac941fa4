#pragma once
// A port for a program that a test starts.

#include <cstdint>
#include <string>

namespace troupe::tests {

// A TCP port that no socket of this machine is bound to, another one at each call. It lies below
// the ports that the kernel gives to connections: suites that run beside this one take many of
// those, and the program binds this one a while after it was found free.
std::uint16_t free_port();
std::string free_port_text();

}  // namespace troupe::tests
