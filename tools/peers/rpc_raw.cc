// What the machine can do at best: blocking calls of the kernel over a Unix or TCP socket, 64 bytes
// back for what went there. See rpc_measure.h.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "rpc_measure.h"

namespace {

using namespace rpc_measure;

constexpr std::size_t kSmall = 64;

void read_all(int socket, char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t got = ::recv(socket, bytes, count, MSG_WAITALL);
    if (got <= 0) fail("the raw connection broke");
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
}
void write_all(int socket, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t sent = ::send(socket, bytes, count, MSG_NOSIGNAL);
    if (sent <= 0) fail("the raw connection broke");
    bytes += sent;
    count -= static_cast<std::size_t>(sent);
  }
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  sockaddr* any() { return reinterpret_cast<sockaddr*>(&bytes); }
};

Address address_of(const Plan& plan) {
  Address address;
  if (plan.way == "unix") {
    auto* local = reinterpret_cast<sockaddr_un*>(&address.bytes);
    local->sun_family = AF_UNIX;
    std::strncpy(local->sun_path, plan.socket().c_str(), sizeof local->sun_path - 1);
    address.length = sizeof *local;
  } else {
    auto* loopback = reinterpret_cast<sockaddr_in*>(&address.bytes);
    loopback->sin_family = AF_INET;
    loopback->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    loopback->sin_port = htons(static_cast<std::uint16_t>(plan.port));
    address.length = sizeof *loopback;
  }
  return address;
}

int socket_of(const Plan& plan) {
  return ::socket(plan.way == "unix" ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
}

void no_delay(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Each message: how many bytes follow, then they.
template <typename Ready>
void serve(const Plan& plan, Ready ready) {
  const int listening = socket_of(plan);
  Address address = address_of(plan);
  if (::bind(listening, address.any(), address.length) != 0 || ::listen(listening, 8) != 0 ||
      ::getsockname(listening, address.any(), &address.length) != 0) {
    fail("no socket to listen at");
  }
  ready(plan.way == "unix" ? 0 : ntohs(reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_port));
  std::string bytes(64 * kMiB, '\0');
  for (;;) {
    const int socket = ::accept(listening, nullptr, nullptr);
    no_delay(socket);
    std::uint64_t count = 0;
    while (::recv(socket, &count, sizeof count, MSG_WAITALL) == sizeof count &&
           count <= bytes.size()) {
      read_all(socket, bytes.data(), count);
      write_all(socket, bytes.data(), kSmall);
    }
    ::close(socket);
  }
}

// The pieces leave in one call, as a frame and its header do.
void once(int socket, std::string& message) {
  const std::uint64_t count = message.size() - sizeof count;
  std::memcpy(message.data(), &count, sizeof count);
  write_all(socket, message.data(), message.size());
  char answer[kSmall];
  read_all(socket, answer, kSmall);
}

int connected(const Plan& plan) {
  const int socket = socket_of(plan);
  Address address = address_of(plan);
  if (::connect(socket, address.any(), address.length) != 0) fail("no connection");
  no_delay(socket);
  return socket;
}

void call(const Plan& plan) {
  const int socket = connected(plan);
  std::string small(sizeof(std::uint64_t) + kSmall, '\1');
  sync_calls(plan, "sync", [&] { once(socket, small); });
  for (const auto& [name, bytes] : {std::pair{"1 MiB", kMiB}, std::pair{"64 MiB", 64 * kMiB}}) {
    std::string message(sizeof(std::uint64_t) + bytes, '\1');
    large_calls(plan, name, bytes, [&] { once(socket, message); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run(
      argc, argv, [](const auto& plan, auto ready) { serve(plan, ready); }, call);
}
