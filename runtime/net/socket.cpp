#include "runtime/net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/base/near_socket.h"

namespace troupe {

std::string Address::to_string() const {
  if (!local_name.empty()) return "local socket " + local_name;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

namespace net {
namespace {

constexpr int kLargeSendBufferBytes = 2 << 20;

Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failure != 0) {
    return error(Code::kUnavailable, "cannot find the host '{}': {}", host,
                 ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    SocketAddress address;
    if (item->ai_addrlen > sizeof(address.storage)) continue;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.length = item->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) return error(Code::kUnavailable, "the host '{}' has no address", host);
  return addresses;
}

void set_option(int fd, int level, int option, int value) {
  // Best effort: a kernel that lacks one of them still carries the traffic.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

std::string to_string(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address.family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  } else {
    return "local";
  }
  return Address{.host = text, .port = port_of(address), .local_name = {}}.to_string();
}

std::uint16_t port_of(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  if (address.family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return 0;
}

bool is_loopback(const SocketAddress& address) {
  constexpr std::uint8_t kLoopbackNet = 127;
  if (address.family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return ntohl(v4->sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  if (address.family() == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) ||
           (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == kLoopbackNet);
  }
  return false;
}

bool is_encrypted(Security security, const SocketAddress& other) {
  if (other.family() == AF_UNIX || security == Security::kInsecure) return false;
  return security == Security::kTlsAlways || !is_loopback(other);
}

Result<SocketAddress> local_address(const std::string& name) {
  SocketAddress address;
  auto* local = reinterpret_cast<sockaddr_un*>(&address.storage);
  // The first byte of an abstract name is zero.
  if (name.empty() || name.size() + 1 > sizeof(local->sun_path)) {
    return error(Code::kInvalidArgument, "a local socket's name has 1 to {} bytes, not {}",
                 sizeof(local->sun_path) - 1, name.size());
  }
  local->sun_family = AF_UNIX;
  std::memcpy(local->sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<SocketAddress> numeric_address(const std::string& host, std::uint16_t port) {
  auto found = look_up(host, port, AI_NUMERICHOST);
  if (!found.ok()) {
    return error(Code::kInvalidArgument, "'{}' is not a numeric address such as 10.0.0.1", host);
  }
  return found->front();
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port) {
  return look_up(host, port, AI_ADDRCONFIG);
}

Result<UniqueFd> make_socket(int family, bool non_blocking) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | (non_blocking ? SOCK_NONBLOCK : 0), 0));
  if (!fd.valid()) return errno_status(errno, "open", "a socket");
  return fd;
}

void set_stream_options(int fd, int family) {
  if (family == AF_UNIX) return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

void set_near_options(int fd) {
  if (within_machine(fd)) end_pacing(fd);
}

void set_large_send_buffer(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return;
  if (address.ss_family != AF_UNIX) return;
  // Above the system's limit (net.core.wmem_max) only for who may configure the network.
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kLargeSendBufferBytes,
                   sizeof(kLargeSendBufferBytes)) != 0) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, kLargeSendBufferBytes);
  }
}

void set_low_water(int fd, std::size_t bytes) {
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

bool has_ended(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) == 1 && entry.revents != 0;
}

void end_refused(int fd) {
  ::shutdown(fd, SHUT_WR);
  std::byte scrap[4096];
  for (std::size_t taken = 0; taken < limits::kHandshakeBytesMax; taken += sizeof(scrap)) {
    if (::recv(fd, scrap, sizeof(scrap), MSG_DONTWAIT) <= 0) return;
  }
}

long peer_uid(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return -1;
  return static_cast<long>(credentials.uid);
}

void set_blocking(int fd, bool blocking) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace net
}  // namespace troupe
