// Callers on other machines, as far as they know: what they say to an actor's process is encrypted.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>

#include "tests/actors/fake_node.h"
#include "tests/actors/test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct DistantFixture {
  std::shared_ptr<FakeNode> node =
      FakeNode::start(bin_dir() + "/test_actors_host", net::Security::kTlsAlways);
  std::shared_ptr<detail::ActorClient> client = node->make_distant_client();
  ~DistantFixture() {
    client->close();
    node->stop();
  }
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    return detail::spawn<T>(client, options, arguments...).value();
  }
};

TEST_CASE_FIXTURE(DistantFixture, "calls over an encrypted connection, small and large") {
  auto counter = spawn<Counter>({.name = "c"}, 10);
  std::vector<Future<int>> sums;
  for (int i = 1; i <= 100; ++i) sums.push_back(counter.call<&Counter::add>(1));
  for (int i = 1; i <= 100; ++i)
    CHECK(sums[static_cast<std::size_t>(i - 1)].get(20s).value() == 10 + i);
  const wire::Bytes big(5 << 20, std::byte{3});
  CHECK(counter.call<&Counter::echo>(big).get(20s).value() == big);
  CHECK(counter.call<&Counter::fail>("as ever").get(20s).status().code() == Code::kActorError);
}

TEST_CASE_FIXTURE(DistantFixture, "an actor that is killed is reached again, encrypted again") {
  auto counter = spawn<Counter>({.max_restarts = 1}, 5);
  CHECK(counter.call<&Counter::add>(1).get(20s).value() == 6);
  node->kill_process(counter.id(), SIGKILL);
  CHECK(counter.with({.timeout = 20s, .retry = true}).call<&Counter::get>().get(20s).value() == 6);
}

TEST_CASE_FIXTURE(DistantFixture, "raw connections are encrypted, too") {
  auto peer = spawn<RawPeer>({});
  auto raw = client->connect_to(peer.id(), "echo/7", Deadline::after(20s));
  REQUIRE_MESSAGE(raw.ok(), raw.status().to_string());
  CHECK_FALSE(raw->same_node);
  CHECK(raw->stream.encrypted());
  std::string text(7, '\0');
  CHECK(
      receive_all(raw->stream, std::as_writable_bytes(std::span(text)), Deadline::after(20s)).ok());
  CHECK(text == "/echo/7");
}

TEST_CASE_FIXTURE(DistantFixture, "a caller that does not encrypt is not let in") {
  auto counter = spawn<Counter>({}, 0);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  const auto refused =
      net::connect_blocking({.host = node->address().host, .port = node->address().port},
                            "actor/" + counter.id().to_string(),
                            node->token().with(net::Security::kInsecure), Deadline::after(20s));
  CHECK(refused.status().code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::tests
