#include "runtime/base/near_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string_view>

namespace troupe {

bool within_machine(int socket) {
  sockaddr_storage mine{}, theirs{};
  socklen_t my_size = sizeof mine, their_size = sizeof theirs;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&mine), &my_size) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) != 0 ||
      mine.ss_family != theirs.ss_family)
    return false;
  if (mine.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(mine).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(theirs).sin_addr.s_addr;
  if (mine.ss_family == AF_INET6)
    return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(mine).sin6_addr,
                       &reinterpret_cast<const sockaddr_in6&>(theirs).sin6_addr,
                       sizeof(in6_addr)) == 0;
  return false;
}

void end_pacing(int socket) {
  constexpr std::string_view kAlgorithm = "reno";
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kAlgorithm.data(), kAlgorithm.size());
}

}  // namespace troupe
