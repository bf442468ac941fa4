#pragma once
// A small node with one caller, for tests of calls.

#include <doctest/doctest.h>

#include <chrono>
#include <memory>

#include "actors/spawn.h"
#include "tests/actors/fake_node.h"
#include "tests/support/test_data.h"

namespace troupe::tests {

struct CallFixture {
  std::shared_ptr<FakeNode> node = FakeNode::start(bin_dir() + "/test_actors_host");
  std::shared_ptr<detail::ActorClient> client;
  explicit CallFixture(int roads_max = detail::kRoadsMax) : client(node->make_client(roads_max)) {}
  ~CallFixture() {
    client->close();
    node->stop();
  }
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    return detail::spawn<T>(client, options, arguments...).value();
  }
};

// Every test runs twice: over the socket alone, and over the fast road.
struct CallsByBothRoads : CallFixture {
  static bool choose() {
    bool ring = false;
    SUBCASE("socket") { ring = false; }
    SUBCASE("ring") { ring = true; }
    return ring;
  }
  const bool ring;
  CallsByBothRoads() : CallsByBothRoads(choose()) {}
  explicit CallsByBothRoads(bool with_ring)
      : CallFixture(with_ring ? detail::kRoadsMax : 0), ring(with_ring) {}

  // T has a method ping() that changes nothing.
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    auto handle = CallFixture::spawn<T>(options, arguments...);
    const auto channel = client->channel(handle.id(), detail::kActorInterface<T>);
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    do {
      const auto answered = handle.template call<&T::ping>().get(std::chrono::seconds(20));
      REQUIRE_MESSAGE(answered.ok(), answered.to_string());
    } while (ring && !channel->has_fast_road() && !patience.passed());
    REQUIRE(channel->has_fast_road() == ring);
    return handle;
  }
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
