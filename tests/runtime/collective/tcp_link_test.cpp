// What a link makes of its socket.

#include "runtime/collective/tcp_link.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "runtime/collective/cpu_communicator.h"

namespace troupe::collective {
namespace {

std::string congestion_control(int socket) {
  std::array<char, 32> name{};
  socklen_t size = name.size() - 1;
  REQUIRE(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
  return name.data();
}

bool choose(int socket, std::string_view algorithm) {
  return ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(), algorithm.size()) == 0;
}

TEST_CASE("a link within a machine is not paced, one between machines is the system's affair") {
  for (const bool near : {true, false}) {
    auto links = make_local_links({0, 1}).value();
    ByteStream stream = std::move(links[0][0].stream);
    const int fd = stream.fd();
    if (!choose(fd, "bbr") && !choose(fd, "cubic")) {
      MESSAGE("skipped: this system has no congestion control but Reno");
      return;
    }
    const std::string systems = congestion_control(fd);
    const TcpLink link(std::move(stream), near);
    CHECK(congestion_control(fd) == (near ? "reno" : systems));
  }
}

int buffer_bytes(int socket, int which) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  REQUIRE(::getsockopt(socket, SOL_SOCKET, which, &bytes, &size) == 0);
  return bytes;
}

TEST_CASE("the kernel sizes a link's buffers: what may be asked for is less on most systems") {
  auto links = make_local_links({0, 1}).value();
  ByteStream stream = std::move(links[0][0].stream);
  const int fd = stream.fd();
  const int sending = buffer_bytes(fd, SO_SNDBUF), receiving = buffer_bytes(fd, SO_RCVBUF);
  const TcpLink link(std::move(stream), false);
  CHECK(buffer_bytes(fd, SO_SNDBUF) == sending);
  CHECK(buffer_bytes(fd, SO_RCVBUF) == receiving);
}

}  // namespace
}  // namespace troupe::collective
