// Asynchronous methods: coroutines on the actor's thread.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE_FIXTURE(CallsBothWays, "an asynchronous method is called like any other") {
  auto async = spawn<Async>({});
  auto peer = spawn<Nester>({});
  const std::string text(1000, 'x');
  CHECK(async.call<&Async::length>(text, peer).get(20s).value() == 1000);
  const std::string large(200'000, 'x');  // over the ring: read in the caller's memory
  CHECK(async.call<&Async::length>(large, peer).get(20s).value() == 200'000);
  CHECK(async.call<&Async::twice>(21).get(20s).value() == 42);
}

// peer: RayClusterModeTest.ExceptionTest.Method
TEST_CASE_FIXTURE(CallsBothWays, "what it throws and what it refuses arrive as of any method") {
  auto async = spawn<Async>({.name = "a"});
  const Status thrown = async.call<&Async::fail>("on purpose").get(20s).status();
  CHECK(thrown.code() == Code::kActorError);
  CHECK(thrown.message().find("on purpose") != std::string::npos);
  CHECK(thrown.context("method") == "Async::fail");
  CHECK(async.call<&Async::fail>("").get(20s).status().code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(CallsBothWays, "get() in it is refused") {
  auto async = spawn<Async>({});
  auto peer = spawn<Nester>({});
  REQUIRE(async.call<&Async::block>(peer).get(20s).ok());
  const std::string blocked = async.call<&Async::blocked>().get(20s).value();
  INFO(blocked);
  CHECK(blocked.find("co_await") != std::string::npos);
}

TEST_CASE_FIXTURE(CallsBothWays, "others begin at a co_await only where the actor says so") {
  auto peer = spawn<Nester>({});
  auto one = spawn<Async>({});
  std::vector<Future<void>> visits;
  for (int i = 0; i < 4; ++i) visits.push_back(one.call<&Async::visit>(peer));
  CHECK(one.call<&Async::log>().get(20s).value() == "bebebebe");
  auto many = spawn<Async>({.max_concurrency = 8});
  auto waiting = many.call<&Async::wait_for_release>();
  CHECK(many.call<&Async::log>().get(20s).value() == "b");
  REQUIRE(many.call<&Async::release>().get(20s).ok());
  CHECK(waiting.get(20s).value() == 1);
  CHECK(many.call<&Async::log>().get(20s).value() == "be");
}

TEST_CASE_FIXTURE(CallsBothWays, "a cancelled one cancels what it awaits") {
  auto async = spawn<Async>({.max_concurrency = 2});
  auto peer = spawn<Nester>({});
  const TemporaryDirectory directory;
  const std::string fifo = directory.file("reached");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  auto nested = async.call<&Async::nest>(peer, fifo);
  { const UniqueFd reached(::open(fifo.c_str(), O_RDONLY | O_CLOEXEC)); }
  nested.cancel();
  CHECK(nested.get(1s).code() == Code::kCancelled);
  CHECK(peer.call<&Nester::stopped>().get(20s).value());
  CHECK(eventually([&] {
    return async.call<&Async::last>().get(20s).value().find("was cancelled") != std::string::npos;
  }));
}

TEST_CASE_FIXTURE(CallsBothWays, "one that is suspended ends with its process") {
  auto async = spawn<Async>({.max_concurrency = 2});
  auto waiting = async.call<&Async::wait_for_release>();
  REQUIRE(async.call<&Async::log>().get(20s).value() == "b");
  REQUIRE(detail::kill_actor(client, async.id(), {.grace = 5s}).ok());
  CHECK(waiting.get(20s).status().code() == Code::kActorDied);
}

}  // namespace
}  // namespace troupe::tests
