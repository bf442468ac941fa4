#pragma once
// A small node with one caller, for tests of calls.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <string>

#include "tests/actors/fake_node.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {

struct CallFixture {
  std::shared_ptr<FakeNode> node = FakeNode::start(bin_dir() + "/test_actors_host");
  std::shared_ptr<detail::ActorClient> client;
  explicit CallFixture(int rings_max = detail::kRingsMax) : client(node->make_client(rings_max)) {}
  ~CallFixture() {
    client->close();
    node->stop();
  }
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    return detail::spawn<T>(client, options, arguments...).value();
  }
};

// A method without arguments that changes nothing.
template <typename T>
inline constexpr auto kHarmlessMethod = &T::ping;

// Every test runs twice: over the socket alone, and through the ring.
struct CallsBothWays : CallFixture {
  static bool choose() {
    bool ring = false;
    SUBCASE("socket") { ring = false; }
    SUBCASE("ring") { ring = true; }
    return ring;
  }
  const bool ring;
  CallsBothWays() : CallsBothWays(choose()) {}
  explicit CallsBothWays(bool with_ring)
      : CallFixture(with_ring ? detail::kRingsMax : 0), ring(with_ring) {}

  // kHarmlessMethod<T> must be there.
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    auto handle = CallFixture::spawn<T>(options, arguments...);
    reach(handle);
    return handle;
  }
  // Calls until an answer has come the way that was chosen.
  template <typename T>
  void reach(const ActorHandle<T>& handle) {
    const auto channel = client->channel(handle.id(), detail::kActorInterface<T>);
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    do {
      REQUIRE(handle.template call<kHarmlessMethod<T>>().get(std::chrono::seconds(20)).ok());
    } while (ring && !channel->has_ring() && !patience.passed());
    REQUIRE(channel->has_ring() == ring);
  }
};

// A path that a method under test opens for writing when it is reached.
struct ReachedFifo {
  TemporaryDirectory directory;
  std::string path = directory.file("reached");
  ReachedFifo() { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  // Waits until somebody reaches it.
  void wait() const { const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); }
};

// Asks until `done()`, at most for a while.
template <typename Done>
bool eventually(Done done) {
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (!done()) {
    if (patience.passed()) return false;
  }
  return true;
}

}  // namespace troupe::tests
