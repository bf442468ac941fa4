#include "tests/support/free_port.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace troupe::tests {

std::uint16_t free_port() {
  constexpr int kFirst = 11'000, kCount = 9'000;
  static int next = ::getpid();
  for (int tries = 0; tries < kCount; ++tries) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % kCount);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    ::close(socket);
    if (bound) return port;
  }
  FAIL("no port is free");
  return 0;
}

std::string free_port_text() { return std::to_string(free_port()); }

}  // namespace troupe::tests
