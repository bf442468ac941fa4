// How many calls an actor runs at once, and how many may wait.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

// peer: RayClusterModeTest.MaxConcurrentTest
TEST_CASE_FIXTURE(CallsBothWays, "three calls that wait for each other, with concurrency 3") {
  auto meeting = spawn<Meeting>({.max_concurrency = 3});
  std::vector<Future<bool>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(meeting.call<&Meeting::meet>(3));
  for (auto& call : calls) CHECK(call.get(20s).value());
}

TEST_CASE_FIXTURE(CallsBothWays, "no more than the limit are inside at once") {
  auto meeting = spawn<Meeting>({.max_concurrency = 2});
  auto first = meeting.call<&Meeting::meet>(3);
  auto second = meeting.call<&Meeting::meet>(3);
  auto third = meeting.with({.timeout = 50ms}).call<&Meeting::inside>();
  CHECK(third.get(20s).status().code() == Code::kDeadlineExceeded);
  node->kill_process(meeting.id(), SIGKILL);
  CHECK_FALSE(first.get(20s).ok());
  CHECK_FALSE(second.get(20s).ok());
}

TEST_CASE_FIXTURE(CallsBothWays, "an actor may wait for itself where it has room for the call") {
  auto alone = spawn<Meeting>({});
  CHECK(alone.call<&Meeting::ask_itself>().get(20s).status().code() == Code::kFailedPrecondition);
  auto two = spawn<Meeting>({.max_concurrency = 2});
  CHECK(two.call<&Meeting::ask_itself>().get(20s).value() == 0);
}

TEST_CASE_FIXTURE(CallsBothWays, "groups do not wait for each other") {
  auto groups = spawn<Groups>({});
  const ReachedFifo fifo;
  auto held = groups.call<&Groups::hold>(fifo.path);
  fifo.wait();
  CHECK(groups.call<&Groups::next>(1).get(20s).value());
  CHECK(groups.call<&Groups::open>().get(20s).ok());
  CHECK(held.get(20s).value());
}

TEST_CASE_FIXTURE(CallsBothWays, "in a group with a limit of one, calls run in order") {
  auto groups = spawn<Groups>({.max_pending_calls = 1000});
  std::vector<Future<bool>> calls;
  for (int i = 1; i <= 500; ++i) calls.push_back(groups.call<&Groups::next>(i));
  int wrong = 0;
  for (auto& call : calls) wrong += call.get(20s).value() ? 0 : 1;
  CHECK(wrong == 0);
}

template <typename T, typename Hold, typename Touch>
void check_overload(const ActorHandle<T>& handle, Hold hold, Touch touch, std::size_t room) {
  (void)handle;
  const ReachedFifo fifo;
  auto busy = hold(fifo.path);
  fifo.wait();
  std::vector<Future<int>> calls;
  for (std::size_t i = 0; i < room + 20; ++i) calls.push_back(touch());
  // What is refused is refused at once, what fits waits.
  for (std::size_t i = room; i < calls.size(); ++i) {
    CHECK(calls[i].get(20s).status().code() == Code::kOverloaded);
  }
  for (std::size_t i = 0; i < room; ++i) CHECK_FALSE(calls[i].ready());
  busy.cancel();
  for (std::size_t i = 0; i < room; ++i) CHECK(calls[i].get(20s).ok());
}

TEST_CASE_FIXTURE(CallsBothWays, "more calls than may wait are answered overloaded") {
  auto narrow = spawn<Narrow>({});
  const auto hold = [&](const std::string& path) { return narrow.call<&Narrow::hold>(path); };
  const auto touch = [&] { return narrow.call<&Narrow::touch>(); };
  check_overload(narrow, hold, touch, 5);
}

TEST_CASE_FIXTURE(CallsBothWays, "the options overrule how many calls may wait") {
  auto narrow = spawn<Narrow>({.max_pending_calls = 9});
  const auto hold = [&](const std::string& path) { return narrow.call<&Narrow::hold>(path); };
  const auto touch = [&] { return narrow.call<&Narrow::touch>(); };
  check_overload(narrow, hold, touch, 9);
}

TEST_CASE_FIXTURE(CallsBothWays, "what waits in a full group counts, and can be cancelled") {
  auto groups = spawn<Groups>({});
  const ReachedFifo fifo;
  auto held = groups.call<&Groups::hold>(fifo.path);
  fifo.wait();
  std::vector<Future<int>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(groups.call<&Groups::touch>());
  CHECK(groups.call<&Groups::touch>().get(20s).status().code() == Code::kOverloaded);
  calls[2].cancel();
  CHECK(calls[2].get(20s).status().code() == Code::kCancelled);
  // Its place is free again, when the actor has heard of it.
  CHECK(eventually([&] { return groups.call<&Groups::open>().get(20s).ok(); }));
  CHECK(held.get(20s).value());
  for (std::size_t i = 0; i < 5; ++i) {
    if (i != 2) CHECK(calls[i].get(20s).ok());
  }
}

TEST_CASE_FIXTURE(CallFixture, "limits that make no sense are refused") {
  const auto code_of = [&](const ActorOptions& options) {
    return detail::spawn<Meeting>(client, options).status().code();
  };
  CHECK(code_of({.max_concurrency = -1}) == Code::kInvalidArgument);
  CHECK(code_of({.max_concurrency = 100'000}) == Code::kInvalidArgument);
  CHECK(code_of({.max_pending_calls = 1 << 20}) == Code::kInvalidArgument);
  auto ledger = spawn<Ledger>({.max_concurrency = 2});
  const Status refused = ledger.call<&Ledger::add>(1).get(20s).status();
  CHECK(refused.code() == Code::kActorDied);
  CHECK(refused.message().find("kExactlyOnce") != std::string::npos);
}

}  // namespace
}  // namespace troupe::tests
