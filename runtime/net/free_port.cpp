#include "runtime/net/free_port.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/base/file_system.h"
#include "troupe/unique_fd.h"

namespace troupe::net {

Result<std::uint16_t> free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (::bind(socket.get(), address, size) != 0 ||
      ::getsockname(socket.get(), address, &size) != 0) {
    return errno_status(errno, "find a free port on", "this machine");
  }
  return ntohs(at.sin_port);
}

}  // namespace troupe::net
