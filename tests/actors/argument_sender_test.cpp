// Constructor arguments that are too large for a spec, from their creator to every process.

#include "actors/argument_sender.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <optional>

#include "runtime/base/limits.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/test_actors.h"
#include "tests/support/no_threads.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

wire::Bytes numbered(std::size_t count) {
  wire::Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 7);
  return bytes;
}

// A creator on the actor's node, on another machine, and on another machine without encryption.
struct Creators {
  std::shared_ptr<FakeNode> node;
  std::shared_ptr<detail::ActorClient> client;
  Creators() {
    auto security = net::Security::kTls;
    bool distant = false;
    SUBCASE("on the same node") { distant = false; }
    SUBCASE("over TCP") { distant = true; }
    SUBCASE("encrypted") {
      distant = true;
      security = net::Security::kTlsAlways;
    }
    node = FakeNode::start(bin_dir() + "/test_actors_host", security);
    client = distant ? node->make_distant_client() : node->make_client();
  }
  ~Creators() {
    client->close();
    node->stop();
  }
};

TEST_CASE_FIXTURE(Creators, "large constructor arguments reach every process of the actor") {
  const wire::Bytes bytes = numbered(3u << 20);
  const Holder same(bytes, 7);
  auto holder = detail::spawn<Holder>(client, {.max_restarts = 1}, bytes, 7).value();
  CHECK(holder.call<&Holder::sum>().get(20s).value() == same.sum());
  CHECK(holder.call<&Holder::mark>().get(20s).value() == 7);
  const auto pid = holder.call<&Holder::pid>().get(20s).value();
  node->kill_process(holder.id(), SIGKILL);
  auto again = holder.with({.timeout = 20s, .retry = true});
  CHECK(again.call<&Holder::sum>().get(20s).value() == same.sum());
  CHECK(again.call<&Holder::pid>().get(20s).value() != pid);
}

TEST_CASE_FIXTURE(CallFixture, "many at once, and small ones beside them") {
  std::vector<ActorHandle<Holder>> holders;
  for (int i = 0; i < 12; ++i) {
    const std::size_t bytes = i % 3 == 0 ? 100 : limits::kSpecArgumentBytesMax + 100'000;
    holders.push_back(spawn<Holder>({}, numbered(bytes), i));
  }
  for (int i = 0; i < 12; ++i) {
    const auto& holder = holders[static_cast<std::size_t>(i)];
    CHECK(holder.call<&Holder::mark>().get(20s).value() == i);
    CHECK(holder.call<&Holder::bytes>().get(20s).value() ==
          (i % 3 == 0 ? 100 : limits::kSpecArgumentBytesMax + 100'000));
  }
}

TEST_CASE_FIXTURE(CallFixture, "arguments that no thread can send leave when one can") {
  std::optional<NoThreads> none(std::in_place);
  auto holder = spawn<Holder>({}, numbered(1u << 20), 7);
  const auto early = holder.with({.timeout = 200ms}).call<&Holder::mark>().get(20s);
  CHECK(early.status().code() == Code::kDeadlineExceeded);
  none.reset();
  CHECK(holder.call<&Holder::mark>().get(20s).value() == 7);
}

TEST_CASE_FIXTURE(CallFixture, "a refused actor's arguments are let go of") {
  auto holder = spawn<Holder>({.resources = {{"unobtainable", 1}}}, numbered(1u << 20), 1);
  CHECK(holder.call<&Holder::mark>().get(20s).status().code() == Code::kResourceExhausted);
}

TEST_CASE_FIXTURE(CallFixture, "where a later member of a gang is refused, nothing is kept") {
  const auto segments = [] {
    std::ptrdiff_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // that of the iterator itself
      const auto file = std::filesystem::read_symlink(entry.path(), gone).string();
      count += file.find("troupe-arguments") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  const auto before = segments();
  for (const ActorOptions& refused :
       {ActorOptions{.num_cpus = -1}, ActorOptions{.isolation = Isolation::kShared}}) {
    std::vector<GangMember<Holder>> gang;
    gang.emplace_back(ActorOptions(), numbered(1u << 20), 1);
    gang.emplace_back(refused, numbered(1u << 20), 2);
    CHECK(detail::spawn_gang<Holder>(client, std::move(gang), true).status().code() ==
          Code::kInvalidArgument);
    CHECK(segments() == before);
  }
}

TEST_CASE_FIXTURE(CallFixture,
                  "a creator that closes while its actor starts does not wait for it") {
  auto other = node->make_client();
  auto holder = detail::spawn<Holder>(other, {}, numbered(8u << 20), 1).value();
  node->kill_process(holder.id(), SIGSTOP);
  const TimePoint start = SystemClock().now();
  other->close();
  CHECK(SystemClock().now() - start < detail::kArgumentsWait);
}

}  // namespace
}  // namespace troupe::tests
