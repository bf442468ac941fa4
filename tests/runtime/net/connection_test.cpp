#include "runtime/net/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/base/limits.h"
#include "tests/runtime/net/support.h"

namespace troupe::net {
namespace {

using tests::as_text;
using tests::on_loop;
using tests::Promise;

// Two connections over a socket pair, each on its own loop.
struct Two {
  LoopThread loop_a{"a"};
  LoopThread loop_b{"b"};
  std::shared_ptr<Connection> a;
  std::shared_ptr<Connection> b;

  explicit Two(const ConnectionOptions& options = {}) {
    auto [first, second] = tests::socket_pair();
    a = make_connection(loop_a.loop(), std::move(first), "a's peer", options);
    b = make_connection(loop_b.loop(), std::move(second), "b's peer", options);
  }
  void start(LoopThread& loop, Connection& connection, Connection::Handlers handlers) {
    on_loop(loop.loop(), [&] {
      connection.start(std::move(handlers));
      return 0;
    });
  }
};

TEST_CASE("frames arrive in order, from the loop's thread and from others") {
  Two two;
  constexpr int kCount = 3000;
  std::vector<std::uint32_t> seen[3];
  int total = 0;
  Promise<bool> done;
  two.start(two.loop_b, *two.b,
            {.on_frame =
                 [&](std::span<const std::byte> frame) {
                   std::uint32_t words[2];
                   std::memcpy(words, frame.data(), sizeof(words));
                   seen[words[0]].push_back(words[1]);
                   if (++total == 3 * kCount) done.set(true);
                 },
             .on_close = [](const Status&) {}});
  const auto send_all = [&](std::uint32_t sender) {
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const std::uint32_t words[2] = {sender, i};
      Bytes frame(8 + (i % 7 == 0 ? 5000 : 0));
      std::memcpy(frame.data(), words, sizeof(words));
      if (!two.a->send(std::move(frame)).ok()) std::abort();
    }
  };
  std::thread first([&] { send_all(0); });
  std::thread second([&] { send_all(1); });
  two.loop_a.loop().post([&] { send_all(2); });
  first.join();
  second.join();
  CHECK(done.get());
  for (const auto& numbers : seen) {
    CHECK(numbers.size() == kCount);
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
  }
}

TEST_CASE("frames that wait for company arrive in order, among those that do not") {
  Two two;
  constexpr std::uint32_t kCount = 5000;
  std::vector<std::uint32_t> seen;
  Promise<bool> done;
  two.start(two.loop_b, *two.b,
            {.on_frame =
                 [&](std::span<const std::byte> frame) {
                   std::uint32_t number;
                   std::memcpy(&number, frame.data(), sizeof number);
                   seen.push_back(number);
                   if (seen.size() == kCount) done.set(true);
                 },
             .on_close = [](const Status&) {}});
  for (std::uint32_t i = 0; i < kCount; ++i) {
    Bytes frame(i % 97 == 0 ? 40'000 : 4);
    std::memcpy(frame.data(), &i, sizeof i);
    CHECK((i % 11 == 5 ? two.a->send(std::move(frame)) : two.a->send_soon(std::move(frame))).ok());
    if (i % 500 == 0) two.a->flush();
  }
  CHECK(done.get());  // also the last, which nothing followed
  CHECK(std::is_sorted(seen.begin(), seen.end()));
}

TEST_CASE("a frame that waits for company leaves by itself, at flush(), and before an end") {
  for (const int how : {0, 1, 2}) {
    Two two;
    Promise<std::string> seen;
    two.start(two.loop_b, *two.b,
              {.on_frame = [&](std::span<const std::byte> frame) { seen.set(as_text(frame)); },
               .on_close = [](const Status&) {}});
    two.start(two.loop_a, *two.a, {.on_frame = [](auto) {}, .on_close = [](const Status&) {}});
    CHECK(two.a->send_soon({std::byte{'x'}}).ok());
    if (how == 1) two.a->flush();
    if (how == 2) two.a->close(1000);
    CHECK(seen.get() == "x");
  }
}

TEST_CASE("a frame larger than the socket's buffer, there and back") {
  Two two;
  Promise<std::size_t> answer;
  Bytes large(20u << 20, std::byte{7});
  two.start(two.loop_b, *two.b,
            {.on_frame =
                 [&](std::span<const std::byte> frame) {
                   CHECK(two.b->send(Bytes(frame.begin(), frame.end())).ok());
                 },
             .on_close = [](const Status&) {}});
  two.start(two.loop_a, *two.a,
            {.on_frame =
                 [&](std::span<const std::byte> frame) {
                   answer.set(std::memcmp(frame.data(), large.data(), large.size()) == 0
                                  ? frame.size()
                                  : 0);
                 },
             .on_close = [](const Status&) {}});
  CHECK(two.a->send(large).ok());
  CHECK(answer.get() == large.size());
}

TEST_CASE("a Unix socket over which something large is sent gets room for it") {
  ConnectionOptions options;
  options.attachment_bytes_max = 8u << 20;
  auto [first, second] = tests::socket_pair();
  const int fd = first.get();
  const auto room = [fd] {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0);
    return bytes;
  };
  const int usual = room();
  // Where the system allows no more than the usual, it stays so.
  int most = 2 << 20;
  (void)::setsockopt(second.get(), SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
  socklen_t length = sizeof most;
  REQUIRE(::getsockopt(second.get(), SOL_SOCKET, SO_SNDBUF, &most, &length) == 0);
  LoopThread loop{"a"};
  const auto connection = make_connection(loop.loop(), std::move(first), "peer", options);
  REQUIRE(connection->send(Bytes(10), std::make_shared<const Bytes>(1000)).ok());
  CHECK(room() == usual);
  REQUIRE(connection->send(Bytes(10), std::make_shared<const Bytes>(1u << 20)).ok());
  CHECK(room() >= most);
}

TEST_CASE("the peer's end is told once; sending fails afterwards") {
  Two two;
  Promise<Status> closed;
  two.start(two.loop_a, *two.a,
            {.on_frame = [](auto) {}, .on_close = [&](Status why) { closed.set(why); }});
  two.b->close();
  const Status why = closed.get();
  CHECK(why.code() == Code::kUnavailable);
  CHECK(why.message().find("a's peer") != std::string::npos);
  CHECK(two.a->send(Bytes(3)).code() == Code::kUnavailable);
}

TEST_CASE("close with a flush sends what waits, however large") {
  Two two;
  Promise<std::size_t> received;
  std::size_t total = 0;
  for (int i = 0; i < 20; ++i) CHECK(two.a->send(Bytes(1u << 20)).ok());
  two.a->close(10'000);
  CHECK(two.a->send(Bytes(1)).code() == Code::kUnavailable);
  two.start(two.loop_b, *two.b,
            {.on_frame = [&](std::span<const std::byte> frame) { total += frame.size(); },
             .on_close = [&](const Status&) { received.set(total); }});
  CHECK(received.get() == 20u << 20);
}

TEST_CASE("close without a flush, while the peer does not read, ends at once") {
  Two two;
  for (int i = 0; i < 20; ++i) CHECK(two.a->send(Bytes(1u << 20)).ok());
  two.a->close();
  Promise<Status> closed;
  two.start(two.loop_b, *two.b,
            {.on_frame = [](auto) {}, .on_close = [&](Status why) { closed.set(why); }});
  CHECK(closed.get().message().find("middle of a frame") != std::string::npos);
}

TEST_CASE("a flush ends at its deadline when the peer never reads") {
  Two two;
  CHECK(two.a->send(Bytes(8u << 20)).ok());
  two.a->close(20);
  // The peer sees the end though it read nothing before; how much got through is not our concern.
  const int done = on_loop(two.loop_a.loop(), [] { return 1; });
  CHECK(done == 1);
  Promise<bool> later;
  two.loop_a.loop().call_after(std::chrono::milliseconds(40), [&] { later.set(true); });
  CHECK(later.get());
  Promise<Status> closed;
  two.start(two.loop_b, *two.b,
            {.on_frame = [](auto) {}, .on_close = [&](Status why) { closed.set(why); }});
  CHECK(closed.get().message().find("middle of a frame") != std::string::npos);
}

TEST_CASE("a peer that does not read is Overloaded at the limit, not before") {
  ConnectionOptions options;
  options.queue_bytes_max = 4u << 20;
  Two two(options);
  Status status;
  int sent = 0;
  while (status.ok() && sent < 100) {
    status = two.a->send(Bytes(1u << 20));
    ++sent;
  }
  CHECK(status.code() == Code::kOverloaded);
  CHECK(sent >= 4);
  CHECK(two.a->send(Bytes(65u << 20)).code() == Code::kInvalidArgument);
}

TEST_CASE("small frames have room where large ones have none; when much was read, that is told") {
  ConnectionOptions options;
  options.queue_bytes_max = 4u << 20;
  options.low_water_bytes = 2u << 20;  // more than sockets take
  Two two(options);
  Promise<std::size_t> drained;
  two.start(two.loop_a, *two.a,
            {.on_frame = [](auto) {},
             .on_close = [](const Status&) {},
             .on_drained = [&] { drained.set(two.a->queued_bytes()); }});
  int large = 0;
  while (large < 100 && two.a->send(Bytes(1u << 20)).ok()) ++large;
  REQUIRE(large < 100);
  CHECK(two.a->queued_bytes() > 2u << 20);
  int small = 0;
  while (small < 1000 && two.a->send(Bytes(limits::kSmallFrameBytesMax)).ok()) ++small;
  CHECK(small * limits::kSmallFrameBytesMax >= limits::kSmallFramesReserveBytes / 2);
  CHECK(small < 1000);
  std::atomic<int> arrived = 0;
  Promise<bool> all;
  two.start(two.loop_b, *two.b,
            {.on_frame =
                 [&](auto) {
                   if (++arrived == large + small) all.set(true);
                 },
             .on_close = [](const Status&) {}});
  CHECK(drained.get() <= options.low_water_bytes);
  CHECK(all.get());
}

TEST_CASE("an oversized frame ends the connection as a protocol error") {
  auto [first, second] = tests::socket_pair();
  LoopThread loop("test");
  const auto connection = make_connection(loop.loop(), std::move(first), "stranger");
  Promise<Status> closed;
  on_loop(loop.loop(), [&] {
    connection->start({.on_frame = [](auto) {}, .on_close = [&](Status why) { closed.set(why); }});
    return 0;
  });
  REQUIRE(::send(second.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0) == 18);
  CHECK(closed.get().code() == Code::kProtocol);
}

TEST_CASE("what has arrived of a frame that is not complete is counted") {
  auto [first, second] = tests::socket_pair();
  LoopThread loop("test");
  const auto connection = make_connection(loop.loop(), std::move(first), "slow peer");
  on_loop(loop.loop(), [&] {
    connection->start({.on_frame = [](auto) {}, .on_close = [](const Status&) {}});
    return 0;
  });
  // The first bytes of a frame's header: no frame comes of them.
  REQUIRE(::send(second.get(), "\0\0", 2, 0) == 2);
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  std::uint64_t received = 0;
  while (received < 2 && !patience.passed()) {
    received = on_loop(loop.loop(), [&] { return connection->received_bytes(); });
  }
  CHECK(received == 2);
  connection->close(0);
}

TEST_CASE("a handler may close and destroy the connection it is called by") {
  for (const bool destroy : {false, true}) {
    Two two;
    Promise<int> done;
    int frames = 0;
    two.start(two.loop_b, *two.b,
              {.on_frame =
                   [&](auto) {
                     ++frames;
                     if (destroy) {
                       two.b.reset();
                     } else {
                       two.b->close();
                     }
                     two.loop_b.loop().post([&] { done.set(frames); });
                   },
               .on_close = [](const Status&) { FAIL("not after the owner's close"); }});
    two.loop_a.loop().post([&] {
      for (int i = 0; i < 10; ++i) (void)two.a->send(Bytes(3));
    });
    CHECK(done.get() == 1);
  }
}

TEST_CASE("handlers that hold their connection are let go of at the end") {
  LoopThread loop("test");
  auto [first, second] = tests::socket_pair();
  std::weak_ptr<Connection> alive;
  {
    auto connection = make_connection(loop.loop(), std::move(first), "peer");
    alive = connection;
    on_loop(loop.loop(), [&] {
      connection->start({.on_frame = [connection](auto) {}, .on_close = [](const Status&) {}});
      return 0;
    });
    connection->close();
  }
  on_loop(loop.loop(), [] { return 0; });
  CHECK(alive.expired());
}

}  // namespace
}  // namespace troupe::net
