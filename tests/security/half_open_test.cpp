// A thousand strangers who begin a handshake and say no more: each costs little for 5 s, and others
// come in meanwhile.

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "runtime/net/handshake.h"
#include "tests/security/live_cluster.h"
#include "tests/security/stranger.h"

namespace troupe::tests {
namespace {

const net::Token kHalfOpenToken(32, std::byte{0x5a});
constexpr std::size_t kStrangers = 1000;

// Beginnings of a handshake: nothing, the first byte, half a greeting, a greeting without a proof.
wire::Bytes beginning(std::size_t number) {
  wire::Bytes whole = hello_bytes();
  constexpr std::array<std::size_t, 4> kSizes{0, 1, 20, net::kHelloBytes};
  whole.resize(kSizes[number % kSizes.size()]);
  return whole;
}

struct Strangers {
  TimePoint begun;
  std::vector<UniqueFd> sockets;

  explicit Strangers(const net::Address& address) : begun(SystemClock().now()) {
    for (std::size_t i = 0; i < kStrangers; ++i) {
      sockets.push_back(dial(address));
      REQUIRE(say_bytes(sockets.back(), beginning(i)));
    }
  }
  // How many the other side has not ended, now.
  std::size_t open_count() const {
    std::size_t open = 0;
    for (const UniqueFd& socket : sockets) {
      std::byte bytes[net::kChallengeBytes + 1];
      const ssize_t count = ::recv(socket.get(), bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
      pollfd look{socket.get(), POLLIN | POLLRDHUP, 0};
      (void)::poll(&look, 1, 0);
      if (count != 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) ++open;
    }
    return open;
  }
  // Waits for the end of all of them. A challenge is all that any of them got.
  void wait_for_end() {
    for (const UniqueFd& socket : sockets) {
      const auto heard = hear_all(socket);
      CHECK((heard.empty() || heard.size() == net::kChallengeBytes));
    }
  }
};

bool enough_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 16'384);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= 5000;
}

TEST_CASE("a thousand half-open handshakes at head and node: closed in time, others come in") {
  if (!enough_descriptors()) {
    MESSAGE("SKIPPED: this needs 5000 descriptors");
    return;
  }
  LiveCluster cluster(kHalfOpenToken);
  auto purse = cluster.spawn("purse");
  Strangers at_head(cluster.head());
  Strangers at_node(cluster.node());

  // While all of them hang there, others are let in: at the head, at the node, to the actor.
  const auto deadline = Deadline::after(kClusterPatience);
  CHECK(net::connect_blocking(cluster.head(), "head", kHalfOpenToken, deadline).ok());
  CHECK(net::connect_blocking(cluster.node(), "node", kHalfOpenToken, deadline).ok());
  CHECK(purse.call<&Purse::put>(3).get(kClusterPatience).value() == 3);
  CHECK(cluster.spawn("second").call<&Purse::count>().get(kClusterPatience).value() == 0);
  // They were there all the while; a machine that took as long as they are given cannot tell.
  const std::size_t open = at_head.open_count() + at_node.open_count();
  if (SystemClock().now() - at_head.begun < limits::kHandshakeTimeout) {
    CHECK(open == 2 * kStrangers);
  }

  at_head.wait_for_end();
  at_node.wait_for_end();
  // Not before their time.
  CHECK(SystemClock().now() - at_node.begun >= limits::kHandshakeTimeout);
  CHECK(purse.call<&Purse::put>(4).get(kClusterPatience).value() == 7);
}

TEST_CASE("more strangers than are waited for: the oldest go, others come in") {
  if (!enough_descriptors()) return;
  LiveCluster cluster(kHalfOpenToken);
  Strangers first(cluster.head());
  Strangers second(cluster.head());
  CHECK(net::connect_blocking(cluster.head(), "head", kHalfOpenToken,
                              Deadline::after(kClusterPatience))
            .ok());
  // The first comers had to leave at once.
  static_assert(2 * kStrangers > limits::kHandshakePendingMax);
  for (std::size_t i = 0; i < 2 * kStrangers - limits::kHandshakePendingMax; ++i) {
    CHECK(hear_all(first.sockets[i]).size() <= net::kChallengeBytes);
  }
}

}  // namespace
}  // namespace troupe::tests
