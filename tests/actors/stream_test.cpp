// Streams: many results of one call, as fast as they are taken.

#include <doctest/doctest.h>
#include <signal.h>

#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE_FIXTURE(CallsBothWays, "all items come, in order, then the end") {
  auto source = spawn<Source>({});
  auto numbers = source.call<&Source::count_to>(1000);
  for (int i = 1; i <= 1000; ++i) {
    const auto number = numbers.next(20s);
    REQUIRE_MESSAGE(number.ok(), number.status().to_string());
    REQUIRE(*number == i);
  }
  CHECK(numbers.next(20s).value() == std::nullopt);
  CHECK(numbers.next(20s).value() == std::nullopt);
  auto none = source.call<&Source::count_to>(0);
  CHECK(none.next(20s).value() == std::nullopt);
}

TEST_CASE_FIXTURE(CallsBothWays, "the actor goes no further than the window") {
  auto source = spawn<Source>({});
  auto numbers = source.with({.stream_window = 4}).call<&Source::count_to>(100);
  const auto produced = [&] { return source.call<&Source::produced>().get(20s).value(); };
  CHECK(eventually([&] { return produced() == 4; }));
  for (int i = 0; i < 50; ++i) REQUIRE(produced() == 4);
  CHECK(numbers.next(20s).value() == 1);
  CHECK(numbers.next(20s).value() == 2);
  CHECK(eventually([&] { return produced() == 6; }));
  for (int i = 0; i < 50; ++i) REQUIRE(produced() == 6);
  for (int i = 3; i <= 100; ++i) REQUIRE(numbers.next(20s).value() == i);
  CHECK(numbers.next(20s).value() == std::nullopt);
}

TEST_CASE_FIXTURE(CallsBothWays, "an error comes after the items before it") {
  auto source = spawn<Source>({.name = "s"});
  auto thrown = source.call<&Source::fail_after>(3, "on purpose");
  for (int i = 1; i <= 3; ++i) CHECK(thrown.next(20s).value() == i);
  const Status why = thrown.next(20s).status();
  CHECK(why.code() == Code::kActorError);
  CHECK(why.message().find("on purpose") != std::string::npos);
  CHECK(why.context("method") == "Source::fail_after");
  CHECK(thrown.next(20s).status().code() == Code::kActorError);
  auto refused = source.call<&Source::fail_after>(1, "");
  CHECK(refused.next(20s).value() == 1);
  CHECK(refused.next(20s).status().code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(CallsBothWays, "cancelling it, or letting go of it, ends it in the actor") {
  auto source = spawn<Source>({});
  const auto ended = [&] { return source.call<&Source::ended>().get(20s).value(); };
  auto numbers = source.with({.stream_window = 2}).call<&Source::count_to>(1000);
  CHECK(numbers.next(20s).value() == 1);
  numbers.cancel();
  Status status;
  while (status.ok()) status = numbers.next(20s).status();
  CHECK(status.code() == Code::kCancelled);
  CHECK(eventually([&] { return ended() == 1; }));
  {
    auto dropped = source.with({.stream_window = 2}).call<&Source::count_to>(1000);
    CHECK(dropped.next(20s).value() == 1);
  }
  CHECK(eventually([&] { return ended() == 2; }));
}

TEST_CASE_FIXTURE(CallsBothWays, "the actor's death is an error after the items that came") {
  auto source = spawn<Source>({});
  auto numbers = source.with({.stream_window = 3}).call<&Source::count_to>(1000);
  CHECK(eventually([&] { return source.call<&Source::produced>().get(20s).value() == 3; }));
  // They have come: the answer to a later call came after them.
  CHECK(numbers.next(20s).value() == 1);
  node->kill_process(source.id(), SIGKILL);
  Status status;
  int last = 1;
  for (;;) {
    const auto number = numbers.next(20s);
    status = number.status();
    if (!number.ok()) break;
    REQUIRE(*number == last + 1);
    ++last;
  }
  CHECK(last >= 3);
  CHECK(status.code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(CallsBothWays, "its deadline covers the whole stream") {
  auto source = spawn<Source>({});
  auto numbers = source.with({.timeout = 100ms, .stream_window = 2}).call<&Source::count_to>(10);
  CHECK(numbers.next(20s).value() == 1);
  CHECK(eventually([&] { return source.call<&Source::ended>().get(20s).value() == 1; }));
  Status status;
  while (status.ok()) status = numbers.next(20s).status();
  CHECK(status.code() == Code::kDeadlineExceeded);
}

TEST_CASE_FIXTURE(CallsBothWays, "actors take streams from each other without waiting") {
  auto source = spawn<Source>({});
  auto other = spawn<Source>({});
  CHECK(source.call<&Source::sum>(other, 100).get(20s).value() == 5050);
  auto squares = source.call<&Source::squares>(other, 30);
  for (std::int64_t i = 1; i <= 30; ++i) REQUIRE(squares.next(20s).value() == i * i);
  CHECK(squares.next(20s).value() == std::nullopt);
}

TEST_CASE_FIXTURE(CallFixture, "what makes no sense for a stream is refused") {
  auto source = spawn<Source>({});
  CHECK(source.with({.retry = true}).call<&Source::count_to>(1).next(20s).status().code() ==
        Code::kInvalidArgument);
  CHECK(source.with({.stream_window = 0}).call<&Source::count_to>(1).next(20s).status().code() ==
        Code::kInvalidArgument);
  ActorHandle<Source> nobody;
  CHECK(nobody.call<&Source::count_to>(1).next(1s).status().code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::tests
