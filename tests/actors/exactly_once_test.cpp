// An actor that says so runs each call once, whatever dies.

#include <doctest/doctest.h>
#include <signal.h>

#include <random>

#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE_FIXTURE(CallsBothWays, "killed between the save and the answer: not run twice") {
  auto ledger = spawn<Ledger>({.max_restarts = 1, .run = kDieBeforeThirdAnswer});
  const auto surely = ledger.with({.timeout = 20s, .retry = true});
  CHECK(surely.call<&Ledger::add>(1).get(20s).value() == 1);
  CHECK(surely.call<&Ledger::add>(10).get(20s).value() == 11);
  // Its process dies with the answer, and two calls behind it wait for the next one.
  auto third = surely.call<&Ledger::add>(100);
  auto fourth = surely.call<&Ledger::add>(1000);
  auto fifth = surely.call<&Ledger::sum>();
  CHECK(third.get(20s).value() == 111);
  CHECK(fourth.get(20s).value() == 1111);
  CHECK(fifth.get(20s).value() == 1111);
  CHECK(node->started() == 2);
}

TEST_CASE_FIXTURE(CallsBothWays, "without retry it is told apart: it may have run, and has once") {
  auto ledger = spawn<Ledger>({.max_restarts = 1, .run = kDieBeforeThirdAnswer});
  for (int i = 0; i < 2; ++i) REQUIRE(ledger.call<&Ledger::add>(1).get(20s).ok());
  CHECK(ledger.call<&Ledger::add>(1).get(20s).status().code() == Code::kUnavailable);
  CHECK(ledger.with({.retry = true}).call<&Ledger::sum>().get(20s).value() == 3);
}

TEST_CASE_FIXTURE(CallsBothWays, "killed at random moments: every call counts exactly once") {
  auto ledger = spawn<Ledger>({.max_restarts = 100, .restart_window = 0ms});
  auto other_client = node->make_client();
  const auto other = detail::handle_to<Ledger>(other_client, ledger.id());
  std::mt19937 random(11);
  int expected = 0;
  for (int round = 0; round < 6; ++round) {
    std::vector<Future<int>> calls;
    const int count = 50 + static_cast<int>(random() % 100);
    const int kill_after = static_cast<int>(random() % static_cast<unsigned>(count));
    for (int i = 0; i < count; ++i) {
      const auto& handle = i % 3 == 0 ? other : ledger;
      calls.push_back(handle.with({.timeout = 20s, .retry = true}).call<&Ledger::add>(1));
      if (i == kill_after) node->kill_process(ledger.id(), SIGKILL);
    }
    for (auto& call : calls) {
      const auto result = call.get(20s);
      REQUIRE_MESSAGE(result.ok(), result.status().to_string());
    }
    expected += count;
    REQUIRE(ledger.with({.retry = true}).call<&Ledger::sum>().get(20s).value() == expected);
  }
  other_client->close();
}

}  // namespace
}  // namespace troupe::tests
