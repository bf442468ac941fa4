#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/unix_socket.h"

namespace troupe::collective {
namespace {

Status socket_error(const char* call) {
  return error(Code::kResourceExhausted, "loopback link: {} failed: {}", call,
               std::strerror(errno));
}

// Two connected TCP sockets over loopback.
Result<std::pair<UniqueFd, UniqueFd>> tcp_pair() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd connecting(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || !connecting.valid()) return socket_error("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0) return socket_error("bind");
  if (::listen(listener.get(), 1) != 0) return socket_error("listen");
  if (::getsockname(listener.get(), generic, &length) != 0) return socket_error("getsockname");
  if (::connect(connecting.get(), generic, length) != 0) return socket_error("connect");
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.valid()) return socket_error("accept");
  return std::pair<UniqueFd, UniqueFd>(std::move(connecting), std::move(accepted));
}

}  // namespace

Result<std::vector<std::vector<PeerLink>>> make_local_links(const std::vector<int>& nodes) {
  std::vector<std::vector<PeerLink>> links(nodes.size());
  for (std::size_t a = 0; a < nodes.size(); ++a) {
    for (std::size_t b = a + 1; b < nodes.size(); ++b) {
      const bool same_node = nodes[a] == nodes[b];
      auto [end_a, end_b] = TROUPE_TRY(same_node ? memory::socket_pair() : tcp_pair());
      links[a].push_back({static_cast<int>(b), same_node, std::move(end_a)});
      links[b].push_back({static_cast<int>(a), same_node, std::move(end_b)});
    }
  }
  return links;
}

}  // namespace troupe::collective
