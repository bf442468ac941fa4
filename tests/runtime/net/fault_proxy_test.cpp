#include "runtime/net/fault_proxy.h"

#include <poll.h>

#include <thread>

#include "runtime/net/transport.h"
#include "tests/runtime/net/support.h"

namespace troupe::net {
namespace {

using std::chrono::milliseconds;
using tests::on_loop;
using tests::Promise;

const Token kProxyToken(32, std::byte{7});

std::string read_exactly(int fd, std::size_t count) {
  std::string text(count, '\0');
  std::size_t have = 0;
  while (have < count) {
    pollfd one{fd, POLLIN, 0};
    if (::poll(&one, 1, 10'000) != 1) break;
    const ssize_t n = ::recv(fd, text.data() + have, count - have, 0);
    if (n <= 0) break;
    have += static_cast<std::size_t>(n);
  }
  text.resize(have);
  return text;
}
// What the next read says: bytes, the end (0) or an error (−1); −2 where nothing comes in time.
int next_read(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
  if (::poll(&one, 1, timeout_ms) == 0) return -2;
  char byte = 0;
  return static_cast<int>(::recv(fd, &byte, 1, MSG_DONTWAIT));
}
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    REQUIRE(n > 0);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// A listener behind a proxy; both ends of a connection through it.
struct Link {
  LoopThread thread{"proxy"};
  EventLoop& loop = thread.loop();
  SystemRandom random;
  Logger log = Logger::to_stderr("test", LogLevel::kOff);
  std::unique_ptr<Listener> listener;
  std::unique_ptr<FaultProxy> proxy;
  std::vector<std::unique_ptr<Promise<int>>> accepted;
  std::size_t arrived = 0;

  Link() {
    for (int i = 0; i < 4; ++i) accepted.push_back(std::make_unique<Promise<int>>());
    on_loop(loop, [&] {
      ListenOptions options;
      options.host = "127.0.0.1";
      listener = listen(loop, options, kProxyToken, random, log, [this](AcceptedSocket socket) {
                   accepted[arrived++]->set(socket.socket.take_socket().release());
                 }).value();
      proxy = make_fault_proxy(loop, {.target = listener->address()}).value();
      return 0;
    });
  }
  ~Link() {
    on_loop(loop, [&] {
      proxy.reset();
      listener.reset();
      return 0;
    });
  }
  std::pair<UniqueFd, UniqueFd> connect() {
    const auto index = connected++;
    UniqueFd near = connect_blocking(proxy->address(), "target", kProxyToken,
                                     Deadline::after(std::chrono::seconds(10)))
                        .value()
                        .take_socket();
    return {std::move(near), UniqueFd(accepted[index]->get())};
  }
  template <typename Work>
  auto at(Work work) {
    return on_loop(loop, [&] { return work(*proxy); });
  }
  std::size_t connected = 0;
};

int done(FaultProxy&) { return 0; }

TEST_CASE("the proxy carries a handshake and then bytes, both ways, and ends") {
  Link link;
  auto [near, far] = link.connect();
  const std::string much(3'000'000, 'x');
  std::thread writer([&, fd = near.get()] { write_all(fd, much + "."); });
  CHECK(read_exactly(far.get(), much.size() + 1) == much + ".");
  writer.join();
  write_all(far.get(), "answer");
  CHECK(read_exactly(near.get(), 6) == "answer");
  // An end of stream passes in its direction alone.
  ::shutdown(near.get(), SHUT_WR);
  CHECK(next_read(far.get(), 10'000) == 0);
  write_all(far.get(), "late");
  CHECK(read_exactly(near.get(), 4) == "late");
  far.reset();
  CHECK(next_read(near.get(), 10'000) == 0);
  CHECK(link.at([](FaultProxy& proxy) { return proxy.accepted_count(); }) == 1);
  CHECK(link.at([](FaultProxy& proxy) { return proxy.byte_count(LinkDirection::kToTarget); }) >
        much.size());
}

TEST_CASE("a cut resets both ends; new connections pass") {
  Link link;
  auto [near, far] = link.connect();
  link.at([](FaultProxy& proxy) {
    proxy.cut();
    return done(proxy);
  });
  CHECK(next_read(near.get(), 10'000) == -1);
  CHECK(next_read(far.get(), 10'000) == -1);
  auto [again, there] = link.connect();
  write_all(again.get(), "hello");
  CHECK(read_exactly(there.get(), 5) == "hello");
}

TEST_CASE("a stall holds everything back and loses nothing") {
  Link link;
  auto [near, far] = link.connect();
  const auto stall = [&](bool on) {
    link.at([on](FaultProxy& proxy) {
      proxy.set_both({.stalled = on});
      return done(proxy);
    });
  };
  stall(true);
  write_all(near.get(), "abc");
  CHECK(next_read(far.get(), 50) == -2);
  stall(false);
  CHECK(read_exactly(far.get(), 3) == "abc");
}

TEST_CASE("a delay is one direction's, keeps the order, and is at least what it says") {
  Link link;
  auto [near, far] = link.connect();
  link.at([](FaultProxy& proxy) {
    proxy.set(LinkDirection::kToTarget, {.delay = milliseconds(60), .jitter = milliseconds(20)});
    return done(proxy);
  });
  const auto began = std::chrono::steady_clock::now();
  std::string sent;
  for (char c = 'a'; c <= 'z'; ++c) {
    write_all(near.get(), std::string(1, c));
    sent += c;
  }
  CHECK(read_exactly(far.get(), 26) == sent);
  CHECK(std::chrono::steady_clock::now() - began >= milliseconds(40));
  // The way back is as fast as ever: it arrives while the other one is still under way.
  write_all(near.get(), "slow");
  write_all(far.get(), "quick");
  CHECK(read_exactly(near.get(), 5) == "quick");
  CHECK(read_exactly(far.get(), 4) == "slow");
}

TEST_CASE("a bandwidth bounds what passes in a time") {
  Link link;
  auto [near, far] = link.connect();
  link.at([](FaultProxy& proxy) {
    proxy.set(LinkDirection::kToTarget, {.bytes_per_s = 1'000'000});
    return done(proxy);
  });
  const std::string text(200'000, 'y');
  const auto began = std::chrono::steady_clock::now();
  std::thread writer([&, fd = near.get()] { write_all(fd, text); });
  CHECK(read_exactly(far.get(), text.size()) == text);
  writer.join();
  CHECK(std::chrono::steady_clock::now() - began >= milliseconds(190));
}

TEST_CASE("half open: one end is told, the other is not") {
  Link link;
  auto [near, far] = link.connect();
  link.at([](FaultProxy& proxy) {
    proxy.half_open(LinkDirection::kToTarget);
    return done(proxy);
  });
  CHECK(next_read(far.get(), 10'000) == -1);
  CHECK(next_read(near.get(), 50) == -2);
  write_all(near.get(), "into nothing");
  CHECK(next_read(near.get(), 50) == -2);
}

TEST_CASE("connections are refused where they are to be, and where nobody listens") {
  Link link;
  const auto attempt = [&] {
    return connect_blocking(link.proxy->address(), "target", kProxyToken,
                            Deadline::after(std::chrono::seconds(10)))
        .status()
        .code();
  };
  link.at([](FaultProxy& proxy) {
    proxy.refuse(true);
    return done(proxy);
  });
  CHECK(attempt() == Code::kUnavailable);
  link.at([&](FaultProxy& proxy) {
    proxy.refuse(false);
    link.listener.reset();
    return done(proxy);
  });
  CHECK(attempt() == Code::kUnavailable);
  CHECK(link.at([](FaultProxy& proxy) { return proxy.connection_count(); }) == 0);
}

TEST_CASE("a taken port is said to be one") {
  Link link;
  const auto status = on_loop(link.loop, [&] {
    return make_fault_proxy(link.loop, {.port = link.proxy->address().port}).status();
  });
  CHECK(status.code() == Code::kAlreadyExists);
}

}  // namespace
}  // namespace troupe::net
