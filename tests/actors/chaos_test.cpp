#include "troupe/chaos.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/actors/fake_node.h"
#include "tests/actors/test_actors.h"
#include "tests/support/no_threads.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct UnderFire {
  std::shared_ptr<FakeNode> node = FakeNode::start(bin_dir() + "/test_actors_host");
  std::shared_ptr<detail::ActorClient> client = node->make_client();
  ActorHandle<Counter> counter =
      detail::spawn<Counter>(client, {.name = "victim", .max_restarts = 20}, 0).value();
  RandomKiller killer_of(const ActorHandle<Counter>& victim, const KillerOptions& options) const {
    return detail::Access::make<RandomKiller>(client, std::vector{victim.id()}, options);
  }
  ~UnderFire() {
    client->close();
    node->stop();
  }
};

TEST_CASE_FIXTURE(UnderFire, "an actor's process is found, killed, and followed by another one") {
  const auto before = process_of(counter, Deadline::after(20s)).value();
  CHECK(before.name == "victim");
  CHECK(before.pid == counter.call<&Counter::pid>().get(20s).value());
  REQUIRE(strike(before, ActorFault::kKill).ok());
  const auto after = wait_until_back(counter, before, Deadline::after(20s)).value();
  CHECK(after.generation > before.generation);
  CHECK(after.pid != before.pid);
  // It has ended and been waited for: its number is nobody's, or another one's.
  CHECK(strike(before, ActorFault::kKill).code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(UnderFire, "a stopped process is silent until it is continued") {
  const auto process = process_of(counter, Deadline::after(20s)).value();
  REQUIRE(strike(process, ActorFault::kStop).ok());
  auto sum = counter.call<&Counter::add>(5);
  const auto silent = counter.with({.timeout = 50ms}).call<&Counter::get>().get(20s);
  CHECK(silent.status().code() == Code::kDeadlineExceeded);
  REQUIRE(strike(process, ActorFault::kContinue).ok());
  CHECK(sum.get(20s).value() == 5);
}

TEST_CASE_FIXTURE(UnderFire, "what is no actor's process is not struck") {
  const Status self = strike({.name = "me", .pid = ::getpid()}, ActorFault::kStop);
  CHECK(self.code() == Code::kNotFound);
  CHECK(self.message().find("not an actor's") != std::string::npos);
  CHECK(strike({.name = "none", .pid = 1 << 30}, ActorFault::kKill).code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(UnderFire, "a random killer keeps to its budget and reports every strike") {
  auto killer = killer_of(
      counter, {.seed = 3, .strikes_max = 5, .pause = 5ms, .stop_share = 0.4, .stop_for = 5ms});
  const auto report = killer.finish(Deadline::after(60s));
  REQUIRE_MESSAGE(report.ok(), report.status().to_string());
  REQUIRE(report->strikes.size() == 5);
  CHECK(report->count(ActorFault::kKill) + report->count(ActorFault::kStop) == 5);
  for (const auto& strike : report->strikes) {
    CHECK(strike.victim.name == "victim");
    CHECK(strike.back_after > 0ns);
  }
  CHECK(report->back_after_quantile(0.5) <= report->back_after_quantile(1));
  CHECK(counter.call<&Counter::add>(1).get(20s).ok());
}

TEST_CASE_FIXTURE(UnderFire, "a random killer goes on where others kill its victim before it") {
  auto killer = killer_of(counter, {.seed = 5, .strikes_max = 8, .pause = 1ms});
  for (int i = 0; i < 8; ++i) {
    const auto process = process_of(counter, Deadline::after(20s)).value();
    (void)strike(process, ActorFault::kKill);
  }
  const auto report = killer.finish(Deadline::after(60s));
  CHECK_MESSAGE(report.ok(), report.status().to_string());
}

TEST_CASE_FIXTURE(UnderFire, "a victim that does not come back is the killer's error") {
  auto mortal = detail::spawn<Counter>(client, {.name = "mortal"}, 0).value();
  auto killer = killer_of(mortal, {.strikes_max = 3, .pause = 0ms});
  const auto report = killer.finish(Deadline::after(60s));
  CHECK(report.status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(UnderFire, "a killer without a thread says so") {
  const NoThreads none;
  auto killer = killer_of(counter, {.strikes_max = 3, .pause = 0ms});
  CHECK(killer.finish(Deadline::after(60s)).status().code() == Code::kResourceExhausted);
}

TEST_CASE_FIXTURE(UnderFire, "without time the killer stops early") {
  auto killer = killer_of(counter, {.strikes_max = 1000, .pause = 10s});
  const auto report = killer.finish(Deadline::after(1ms));
  REQUIRE(report.ok());
  CHECK(report->strikes.size() <= 1);
}

}  // namespace
}  // namespace troupe::tests
