// What an actor saves has a copy on another node: the loss of a node loses no acknowledged call.
#include <doctest/doctest.h>

#include <numeric>
#include <set>
#include <thread>

#include "actors/session/callee_session.h"
#include "actors/state_copy.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/chaos_cluster/tally.h"
#include "tests/support/test_data.h"
#include "troupe/chaos_cluster.h"
#include "troupe/deliveries.h"
#include "troupe/serialize.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

Deadline in_time() { return Deadline::after(30s); }

struct Kept {
  explicit Kept(int nodes) : cluster(ChaosCluster::start({.nodes = nodes}, in_time()).value()) {}
  std::unique_ptr<ChaosCluster> cluster;
  Cluster driver = cluster
                       ->connect({.program = bin_dir() + "/test_actors_chaos_cluster_host",
                                  .follow_output = false})
                       .value();
  ActorHandle<Ledger> ledger =
      driver.spawn<Ledger>({.max_restarts = -1, .replicas = 1, .label_preference = on_node(0)})
          .value();

  Result<std::int64_t> add(std::int64_t number) {
    return ledger.with({.timeout = 30s, .retry = true}).call<&Ledger::add>(number).get(30s);
  }
  std::vector<std::int64_t> entries() {
    return ledger.with({.timeout = 30s, .retry = true}).call<&Ledger::entries>().get(30s).value();
  }
  Result<ActorHandle<detail::StateCopy>> copy() {
    return driver.get_actor<detail::StateCopy>("state-copy/" + ledger.id().to_string());
  }
  int node() { return cluster->node_of(driver, ledger, in_time()).value(); }
};

std::vector<std::int64_t> up_to(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

TEST_CASE("a node is lost with what an actor saved there: the copy goes on, and has one again") {
  Kept kept(3);
  std::int64_t number = 0;
  for (int loss = 0; loss < 3; ++loss) {
    for (int i = 0; i < 5; ++i) REQUIRE(kept.add(++number).value() == number);
    const int node = kept.node();
    CAPTURE(node);
    REQUIRE(kept.cluster->kill_node(node).ok());
    // The call that finds it out is answered too, and once: nobody is told of a loss.
    const auto next = kept.add(++number);
    REQUIRE_MESSAGE(next.ok(), next.status().to_string());
    CHECK(kept.node() != node);
    CHECK(kept.entries() == up_to(number));
    REQUIRE(kept.cluster->join(node).ok());
    REQUIRE(kept.cluster->wait_for_node(node, in_time()).ok());
  }
}

TEST_CASE("calls go on while nodes are killed: each that was acknowledged had its effect, once") {
  Kept kept(3);
  Deliveries log;
  std::atomic<bool> done{false};
  std::atomic<int> acknowledged{0};
  std::thread caller([&] {
    for (std::int64_t number = 1; !done; ++number) {
      log.sent(static_cast<std::uint64_t>(number));
      const auto added = kept.add(number);
      if (!added.ok()) continue;
      log.acknowledged(static_cast<std::uint64_t>(number));
      ++acknowledged;
    }
  });
  for (int loss = 0; loss < 3; ++loss) {
    CHECK(eventually([&, before = acknowledged.load()] { return acknowledged > before + 50; }));
    const int node = kept.node();
    REQUIRE(kept.cluster->kill_node(node).ok());
    CHECK(eventually([&] { return kept.node() != node; }));
    REQUIRE(kept.cluster->join(node).ok());
    REQUIRE(kept.cluster->wait_for_node(node, in_time()).ok());
  }
  done = true;
  caller.join();
  for (const std::int64_t number : kept.entries()) log.seen(static_cast<std::uint64_t>(number));
  CHECK_MESSAGE(log.exactly_once().ok(), log.exactly_once().to_string());
}

TEST_CASE("the node with the copy is lost: another one has it, before anybody saves again") {
  Kept kept(3);
  REQUIRE(kept.add(1).ok());
  REQUIRE(kept.node() == 0);
  const auto copy_at = [&]() -> int {
    const auto copy = kept.copy();
    return copy.ok() ? kept.cluster->node_of(kept.driver, *copy, in_time()).value_or(-1) : -1;
  };
  const int first = copy_at();
  REQUIRE(first > 0);
  REQUIRE(kept.cluster->kill_node(first).ok());
  CHECK(eventually([&] { return copy_at() == 3 - first; }));
  // A call comes behind the copying: it is in the actor's line.
  CHECK(kept.entries() == up_to(1));
  REQUIRE(kept.cluster->kill_node(0).ok());
  CHECK(kept.entries() == up_to(1));
}

TEST_CASE("the copy holds every answer, of which each save gave it its own alone") {
  Kept kept(2);
  for (std::int64_t number = 1; number <= 100; ++number) REQUIRE(kept.add(number).ok());
  const auto held = kept.copy().value().call<&detail::StateCopy::hand_over>(1).get(30s).value();
  CHECK(held.number == 100);
  Decoder in(held.answered);
  std::set<std::uint64_t> answered;
  int saves = 0;
  for (; in.remaining() > 0; ++saves) {
    detail::AnsweredCalls calls;
    REQUIRE(Codec<detail::AnsweredCalls>::decode(in, calls));
    REQUIRE(calls.callers.size() == 1);
    for (const auto& [number, frame] : calls.callers[0].answers) answered.insert(number);
  }
  CHECK(answered.size() == 100);
  CHECK(saves > 1);
  CHECK(saves < 100);
  // It refuses what adds to a save that it does not hold.
  detail::CopiedState gap{.generation = 1, .number = 102, .answered_since = true};
  const Status refused = kept.copy().value().call<&detail::StateCopy::keep>(gap).get(30s);
  CHECK(refused.code() == Code::kDataLoss);
}

TEST_CASE("a process that dies goes on with what its node keeps, and its copy with it") {
  Kept kept(2);
  REQUIRE(kept.add(1).ok());
  REQUIRE(kept.driver.kill(kept.ledger, {.allow_restart = true}).ok());
  REQUIRE(kept.add(2).ok());
  REQUIRE(kept.node() == 0);
  REQUIRE(kept.cluster->kill_node(0).ok());
  CHECK(kept.entries() == up_to(2));
}

TEST_CASE("state and copy are lost together: that is told") {
  Kept kept(2);
  REQUIRE(kept.add(1).ok());
  REQUIRE(kept.cluster->stop_node(1).ok());
  REQUIRE(kept.cluster->kill_node(0).ok());
  REQUIRE(kept.cluster->kill_node(1).ok());
  REQUIRE(kept.cluster->join(0).ok());
  const auto next = kept.add(2);
  CHECK(next.status().code() == Code::kActorDied);
  CHECK(next.status().message().find("is lost with node") != std::string::npos);
}

TEST_CASE("on the only node it goes on without a copy; with another node it has one") {
  Kept kept(1);
  REQUIRE(kept.add(1).ok());
  CHECK(kept.entries() == up_to(1));
  const auto nothing = kept.driver.spawn<Tally>({.num_cpus = 0, .replicas = 1})
                           .value()
                           .call<&Tally::add>(1)
                           .get(10s);
  CHECK(nothing.status().message().find("it has no save() and load()") != std::string::npos);
  CHECK_FALSE(kept.driver.spawn<Ledger>({.replicas = 2}).ok());
  CHECK_FALSE(kept.driver.spawn<Ledger>({.replicas = 1, .isolation = Isolation::kShared}).ok());
}

}  // namespace
}  // namespace troupe::tests
