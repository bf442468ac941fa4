#include "tests/security/stranger.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "runtime/net/handshake.h"

namespace troupe::tests {
namespace {

constexpr int kHearPatienceMs = 20'000;

const net::Nonce kStrangersNonce{};

}  // namespace

UniqueFd dial(const net::Address& address) {
  sockaddr_storage to{};
  socklen_t length = 0;
  if (address.local_name.empty()) {
    auto* internet = reinterpret_cast<sockaddr_in*>(&to);
    internet->sin_family = AF_INET;
    internet->sin_port = htons(address.port);
    internet->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    length = sizeof *internet;
  } else {
    auto* local = reinterpret_cast<sockaddr_un*>(&to);
    local->sun_family = AF_UNIX;
    std::memcpy(local->sun_path + 1, address.local_name.data(), address.local_name.size());
    length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.local_name.size());
  }
  UniqueFd socket(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), length) == 0);
  return socket;
}

bool say_bytes(const UniqueFd& socket, const wire::Bytes& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

wire::Bytes hear(const UniqueFd& socket, std::size_t count) {
  wire::Bytes heard;
  while (heard.size() < count) {
    pollfd waiting{socket.get(), POLLIN, 0};
    REQUIRE(::poll(&waiting, 1, kHearPatienceMs) == 1);
    std::byte chunk[4096];
    const ssize_t got =
        ::recv(socket.get(), chunk, std::min(sizeof chunk, count - heard.size()), 0);
    if (got <= 0) break;
    heard.insert(heard.end(), chunk, chunk + got);
  }
  return heard;
}

wire::Bytes hear_all(const UniqueFd& socket) { return hear(socket, ~std::size_t{0}); }

wire::Bytes frames_of(const std::vector<wire::Bytes>& messages) {
  wire::Bytes frames;
  for (const auto& message : messages) {
    const auto length = static_cast<std::uint32_t>(message.size());
    const auto header = std::as_bytes(std::span(&length, 1));
    frames.insert(frames.end(), header.begin(), header.end());
    frames.insert(frames.end(), message.begin(), message.end());
  }
  return frames;
}

wire::Bytes hello_bytes() {
  wire::Bytes bytes(net::kHandshakeMagic.begin(), net::kHandshakeMagic.end());
  const std::uint32_t version = net::kHandshakeVersion;
  const auto number = std::as_bytes(std::span(&version, 1));
  bytes.insert(bytes.end(), number.begin(), number.end());
  bytes.insert(bytes.end(), kStrangersNonce.begin(), kStrangersNonce.end());
  return bytes;
}

wire::Bytes proof_bytes(const net::Token& token, const wire::Bytes& challenge,
                        const std::string& target) {
  REQUIRE(challenge.size() == net::kChallengeBytes);
  net::Nonce server;
  std::copy_n(challenge.begin() + net::kPreambleBytes, server.size(), server.begin());
  const auto mac = net::handshake_mac(token, net::kClientLabel, kStrangersNonce, server, target);
  wire::Bytes bytes(mac.begin(), mac.end());
  bytes.push_back(static_cast<std::byte>(target.size() & 0xff));
  bytes.push_back(static_cast<std::byte>(target.size() >> 8));
  for (const char c : target) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

}  // namespace troupe::tests
