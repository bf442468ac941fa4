// Calls made inside calls: deadlines and cancellation go on with them.

#include <doctest/doctest.h>

#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE_FIXTURE(CallsBothWays, "a call made inside a method has at most the outer's deadline") {
  auto outer = spawn<Nester>({});
  auto inner = spawn<Nester>({});
  const auto limited = outer.with({.timeout = 30s});
  const auto inherited = limited.call<&Nester::remaining_of_nested_ms>(inner, true).get(20s);
  REQUIRE_MESSAGE(inherited.ok(), inherited.status().to_string());
  CHECK(*inherited <= 30'000);
  CHECK(*inherited > 0);
  const auto own = limited.call<&Nester::remaining_of_nested_ms>(inner, false).get(20s);
  REQUIRE_MESSAGE(own.ok(), own.status().to_string());
  CHECK(*own > 1'800'000);
}

TEST_CASE_FIXTURE(CallsBothWays, "a deadline that was inherited says so") {
  auto outer = spawn<Nester>({.name = "outer"});
  auto inner = spawn<Nester>({.name = "inner"});
  const ReachedFifo fifo;
  auto nested = outer.with({.timeout = 100ms}).call<&Nester::nest>(inner, fifo.path, true);
  fifo.wait();
  const Status out_of_time = nested.get(20s);
  // Its method ends at the same moment, and what it says may come first.
  CHECK((out_of_time.ok() || out_of_time.code() == Code::kDeadlineExceeded));
  CHECK(out_of_time.to_string().find("inherited") == std::string::npos);
  const std::string last = outer.call<&Nester::last_text>().get(20s).value();
  INFO(last);
  CHECK(last.find("inherited from the call of Nester::nest") != std::string::npos);
  // The method that nobody waits for any more was told to stop.
  CHECK(inner.call<&Nester::stopped>().get(20s).value());
}

TEST_CASE_FIXTURE(CallsBothWays, "cancelling a running call stops it and the calls it made") {
  auto outer = spawn<Nester>({});
  auto inner = spawn<Nester>({});
  const ReachedFifo fifo;
  auto running = outer.call<&Nester::nest>(inner, fifo.path, true);
  fifo.wait();
  running.cancel();
  CHECK(running.get(1s).code() == Code::kCancelled);
  // Both ended: what was called later is answered, and the inner one saw the request.
  CHECK(inner.call<&Nester::stopped>().get(20s).value());
  const std::string last = outer.call<&Nester::last_text>().get(20s).value();
  INFO(last);
  CHECK(last.find("the call inside which it was made was cancelled") != std::string::npos);
}

TEST_CASE_FIXTURE(CallsBothWays, "a call that does not inherit outlives the one that made it") {
  auto outer = spawn<Nester>({});
  auto inner = spawn<Nester>({});
  const ReachedFifo fifo;
  auto running = outer.call<&Nester::nest>(inner, fifo.path, false);
  fifo.wait();
  running.cancel();
  CHECK(running.get(1s).code() == Code::kCancelled);
  CHECK_FALSE(outer.with({.timeout = 50ms}).call<&Nester::last_text>().get(20s).ok());
}

TEST_CASE_FIXTURE(CallsBothWays, "a deadline asks the method that runs to stop") {
  auto actor = spawn<Nester>({});
  const ReachedFifo fifo;
  auto running = actor.with({.timeout = 50ms}).call<&Nester::run_until_stopped>(fifo.path);
  fifo.wait();
  CHECK(running.get(20s).code() == Code::kDeadlineExceeded);
  CHECK(actor.call<&Nester::stopped>().get(20s).value());
}

TEST_CASE_FIXTURE(CallsBothWays, "calls that wait for each other in a circle are told so") {
  auto a = spawn<Nester>({.name = "a"});
  auto b = spawn<Nester>({.name = "b"});
  auto c = spawn<Nester>({.name = "c"});
  using Ring = std::vector<ActorHandle<Nester>>;
  // A row of waits is none.
  CHECK(a.call<&Nester::around>(Ring{b, c}, std::size_t{0}).get(20s).ok());
  const Status circle = a.call<&Nester::around>(Ring{b, c, a}, std::size_t{0}).get(20s).status();
  INFO(circle.to_string());
  CHECK(circle.code() == Code::kFailedPrecondition);
  CHECK(circle.message().find("a cycle of calls") != std::string::npos);
  for (const char* name : {"around of a", "around of b", "around of c"}) {
    CHECK(circle.message().find(name) != std::string::npos);
  }
  // The actors are free again.
  CHECK(a.call<&Nester::around>(Ring{b, c}, std::size_t{0}).get(20s).ok());
}

}  // namespace
}  // namespace troupe::tests
