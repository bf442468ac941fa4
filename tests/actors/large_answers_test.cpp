// More answers than their caller reads: what it costs the actor, and that every call ends.

#include <doctest/doctest.h>

#include <semaphore>

#include "runtime/base/limits.h"
#include "tests/actors/call_actors.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/raw_caller.h"
#include "tests/actors/test_actors.h"

namespace troupe::tests::large_answers_test {
namespace {

using namespace std::chrono_literals;

// 13 answers are more than an actor gives without being read; what sockets take besides is two.
constexpr std::uint64_t kAnswerBytes = 5u << 20;
constexpr int kCalls = 24;
constexpr int kBegunAtLeast = 13;
static_assert(kBegunAtLeast * kAnswerBytes > limits::kUnreadAnswerBytesMax);

// A caller that reads when the test says so.
template <typename T>
struct SlowCaller {
  UniqueFd socket;

  SlowCaller(const FakeNode& node, ActorId id, bool local) {
    net::Address address = node.address();
    if (!local) address.local_name.clear();
    socket = net::connect_blocking(address, "actor/" + id.to_string(), node.token(),
                                   Deadline::after(20s))
                 .value()
                 .take_socket();
    const detail::ActorInterface& interface = detail::kActorInterface<T>;
    wire::Bind bind{id, std::string(interface.type), ClientId{7, 7}, {}};
    for (const auto& method : interface.methods) {
      bind.methods.push_back({std::string(method.name), method.hash});
    }
    say(socket, bind);
    REQUIRE(std::get<wire::BindReply>(hear(socket).value()).status.ok());
  }
  template <auto Method, typename... A>
  void call(std::uint64_t sequence, A... arguments) {
    const std::size_t method =
        detail::method_index<Method>(std::remove_cvref_t<decltype(T::methods)>{});
    say(socket, wire::Call{sequence, static_cast<std::uint32_t>(method), 60'000'000,
                           detail::encode_arguments(std::tuple<A...>(arguments...))});
  }
  template <typename Message>
  Message next() {
    const auto message = hear(socket);
    REQUIRE(message);
    return std::get<Message>(*message);
  }
};

// How many answers were begun, once there are no more; asked by another caller, who is served.
template <typename T>
int begun(const ActorHandle<T>& bulk, int calls = kCalls) {
  const auto made = [&] { return bulk.template call<&T::made>().get(20s).value(); };
  REQUIRE(eventually([&] { return made() >= kBegunAtLeast; }));
  for (int i = 0; i < 50; ++i) REQUIRE(made() < calls);
  return made();
}

TEST_CASE_FIXTURE(CallFixture, "answers wait for a caller that does not read, and others do not") {
  bool local = false;
  SUBCASE("over TCP") { local = false; }
  SUBCASE("over a local socket") { local = true; }
  auto bulk = spawn<Bulk>({});
  REQUIRE(bulk.call<&Bulk::ping>().get(20s).ok());
  SlowCaller<Bulk> slow(*node, bulk.id(), local);
  for (std::uint64_t i = 1; i <= kCalls; ++i) slow.call<&Bulk::make>(i, kAnswerBytes);
  CHECK(begun(bulk) < kCalls);
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    const auto reply = slow.next<wire::CallReply>();
    CHECK(reply.sequence == i);
    REQUIRE_MESSAGE(reply.status.ok(), reply.status.to_string());
    CHECK(reply.result.size() >= kAnswerBytes);
    CHECK(reply.result.back() == static_cast<std::byte>(i));
  }
}

TEST_CASE_FIXTURE(CallFixture, "a pool of threads waits for a caller that does not read, too") {
  auto bulk = spawn<BulkPool>({});
  REQUIRE(bulk.call<&BulkPool::ping>().get(20s).ok());
  SlowCaller<BulkPool> slow(*node, bulk.id(), true);
  for (std::uint64_t i = 1; i <= kCalls; ++i) slow.call<&BulkPool::make>(i, kAnswerBytes);
  CHECK(begun(bulk) < kCalls);
  for (std::uint64_t i = 1; i <= kCalls; ++i) CHECK(slow.next<wire::CallReply>().status.ok());
  CHECK(bulk.call<&BulkPool::made>().get(20s).value() == kCalls);
}

TEST_CASE_FIXTURE(CallFixture, "a stream waits for a caller that does not read") {
  auto bulk = spawn<Bulk>({});
  REQUIRE(bulk.call<&Bulk::ping>().get(20s).ok());
  SlowCaller<Bulk> slow(*node, bulk.id(), true);
  slow.call<&Bulk::stream>(1, kCalls, kAnswerBytes);
  say(slow.socket, wire::StreamCredit{1, 1000});
  CHECK(begun(bulk) < kCalls);
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    const auto item = slow.next<wire::StreamItem>();
    CHECK(item.index == i);
    CHECK(item.item.size() >= kAnswerBytes);
  }
  CHECK(slow.next<wire::CallReply>().status.ok());
}

TEST_CASE_FIXTURE(CallFixture,
                  "calls whose caller goes without reading do not keep others waiting") {
  auto bulk = spawn<Bulk>({});
  REQUIRE(bulk.call<&Bulk::ping>().get(20s).ok());
  {
    SlowCaller<Bulk> slow(*node, bulk.id(), true);
    for (std::uint64_t i = 1; i <= kCalls; ++i) slow.call<&Bulk::make>(i, kAnswerBytes);
    CHECK(begun(bulk) < kCalls);
  }
  // What was accepted runs.
  CHECK(eventually([&] { return bulk.call<&Bulk::made>().get(20s).value() == kCalls; }));
}

TEST_CASE_FIXTURE(CallFixture, "arguments and results above a frame, by the socket and by TCP") {
  constexpr std::uint64_t kBytes = limits::kFrameBytesMax + 4321;
  wire::Bytes bytes(kBytes);
  for (std::size_t i = 0; i < bytes.size(); i += 1021) bytes[i] = static_cast<std::byte>(i / 1021);
  auto counter = spawn<Counter>({}, 0);
  const auto echoed = counter.call<&Counter::echo>(bytes).get(20s);
  REQUIRE_MESSAGE(echoed.ok(), echoed.status().to_string());
  CHECK(*echoed == bytes);
  const auto again = counter.with({.retry = true}).call<&Counter::echo>(bytes).get(20s);
  REQUIRE_MESSAGE(again.ok(), again.status().to_string());
  CHECK(*again == bytes);
}

TEST_CASE_FIXTURE(CallFixture, "a burst of large arguments waits with its caller") {
  constexpr std::size_t kBytes = 48u << 20;
  constexpr int kBurst = 8;  // more than a connection's queue took
  auto counter = spawn<Counter>({}, 0);
  const wire::Bytes bytes(kBytes, std::byte{1});
  std::vector<Future<std::uint64_t>> sizes;
  std::vector<Future<int>> numbers;
  for (int i = 0; i < kBurst; ++i) {
    sizes.push_back(counter.call<&Counter::size_of>(bytes));
    numbers.push_back(counter.call<&Counter::add>(1));
  }
  for (int i = 0; i < kBurst; ++i) {
    const auto size = sizes[static_cast<std::size_t>(i)].get(20s);
    REQUIRE_MESSAGE(size.ok(), size.status().to_string());
    CHECK(*size == kBytes);
    // In order, whichever of them had to wait.
    CHECK(numbers[static_cast<std::size_t>(i)].get(20s).value() == i + 1);
  }
}

TEST_CASE_FIXTURE(CallFixture,
                  "results above what a caller takes are refused, by method and size") {
  net::ConnectionOptions connections = detail::call_connection_options();
  connections.attachment_bytes_max = 100'000;
  const auto careful = node->make_client(0, connections);
  auto bulk = spawn<Bulk>({.name = "bulk"});
  const auto handle = detail::handle_to<Bulk>(careful, bulk.id());
  const Status refused = handle.call<&Bulk::make>(200'000).get(20s).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.context("method") == "Bulk::make");
  CHECK_MESSAGE(refused.message().find("a result of 20000") != std::string::npos,
                refused.to_string());
  CHECK(refused.message().find("at most 100000 at once") != std::string::npos);
  auto items = handle.call<&Bulk::stream>(3, 200'000);
  const Status item = items.next(20s).status();
  CHECK(item.code() == Code::kResourceExhausted);
  CHECK_MESSAGE(item.message().find("an item of the stream of 2000") != std::string::npos,
                item.to_string());
  CHECK(handle.call<&Bulk::ping>().get(20s).ok());
  careful->close();
}

TEST_CASE_FIXTURE(CallFixture,
                  "constructor arguments of light actors above the limit are refused") {
  const auto refused = [](const Status& status) {
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_MESSAGE(status.message().find("first call") != std::string::npos, status.to_string());
    CHECK(status.message().find("1048576") != std::string::npos);
  };
  const std::string large(limits::kActorSpecBytesMax, 'x');
  const Status environment =
      detail::spawn<Counter>(client, {.environment = {{"X", std::string(70'000, 'x')}}}, 1)
          .status();
  CHECK(environment.code() == Code::kInvalidArgument);
  CHECK(environment.message().find("environment of Counter has 70001") != std::string::npos);
  const ActorOptions light{.isolation = Isolation::kShared};
  refused(detail::spawn<Broken>(client, light, large).status());
  refused(detail::spawn_many<Broken>(client, 10, light, large).status());
  refused(detail::spawn_each<Broken>(client, 20, light, [&](std::size_t) {
            return large.substr(0, large.size() / 10);
          }).status());
  CHECK(node->started() == 0);
}

// As many answers lie in shared memory as may wait for a socket; those behind them do that.
TEST_CASE("large answers to calls through the ring come while and after the loop is busy") {
  constexpr int kRingCalls = 2 * kCalls;
  CallsBothWays calls(true);
  auto bulk = calls.spawn<Bulk>({});
  const auto second = calls.node->make_client();
  const auto watching = detail::handle_to<Bulk>(second, bulk.id());
  const auto channel = second->channel(bulk.id(), detail::kActorInterface<Bulk>);
  REQUIRE(eventually(
      [&] { return watching.call<&Bulk::ping>().get(20s).ok() && channel->has_ring(); }));
  auto done = std::make_shared<std::binary_semaphore>(0);
  calls.node->loop().post([done] { (void)done->try_acquire_for(20s); });
  std::vector<Future<wire::Bytes>> answers;
  for (int i = 0; i < kRingCalls; ++i) answers.push_back(bulk.call<&Bulk::make>(kAnswerBytes));
  CHECK(begun(watching, kRingCalls) < kRingCalls);
  done->release();
  for (int i = 0; i < kRingCalls; ++i) {
    auto future = std::move(answers[static_cast<std::size_t>(i)]);
    const auto answer = future.get(20s);
    REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
    CHECK(answer->size() == kAnswerBytes);
    CHECK(answer->back() == static_cast<std::byte>(i + 1));
  }
  second->close();
}

}  // namespace
}  // namespace troupe::tests::large_answers_test
