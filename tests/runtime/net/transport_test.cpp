#include "runtime/net/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <optional>

#include "runtime/base/near_socket.h"
#include "runtime/net/connection.h"
#include "tests/runtime/net/support.h"
#include "tests/support/no_threads.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using tests::Promise;

const Token kToken(32, std::byte{0x5a});
const Token kOtherToken(32, std::byte{0x5b});

Deadline patience() { return Deadline::after(tests::kPatience); }

ListenOptions loopback(std::string local_name = {}) {
  ListenOptions options;
  options.host = "127.0.0.1";
  options.local_name = std::move(local_name);
  return options;
}

// A listener on a loop thread that keeps what it accepts.
struct Server {
  LoopThread thread{"server"};
  SystemRandom random;
  std::unique_ptr<Listener> listener;
  Promise<AcceptedSocket> accepted;
  Address address;

  explicit Server(const ListenOptions& options = loopback(), TargetCheck check = nullptr,
                  const Logger& log = Logger::discard()) {
    tests::on_loop(thread.loop(), [&] {
      auto made = listen(
          thread.loop(), options, kToken, random, log,
          [this](AcceptedSocket socket) { accepted.set(std::move(socket)); }, std::move(check));
      listener = std::move(made).value();
      address = listener->address();
      return 0;
    });
  }
  ~Server() {
    tests::on_loop(thread.loop(), [&] {
      listener.reset();
      return 0;
    });
  }
};

// The two sockets are ends of one stream in which nothing was read too far.
void check_joined(const UniqueFd& a, const UniqueFd& b) {
  char text[3] = {};
  REQUIRE(::write(a.get(), "ab", 2) == 2);
  REQUIRE(::read(b.get(), text, 2) == 2);
  CHECK(std::string(text) == "ab");
  REQUIRE(::write(b.get(), "cd", 2) == 2);
  REQUIRE(::read(a.get(), text, 2) == 2);
  CHECK(std::string(text) == "cd");
}

TEST_CASE("connect, authenticate and name a target, over TCP and over the local socket") {
  const std::string local = "troupe-test-" + std::to_string(::getpid());
  for (const bool same_node : {false, true}) {
    Server server(loopback(local));
    Address address = server.address;
    CHECK(address.port != 0);
    if (same_node) address.local_name = local;
    auto socket = connect_blocking(address, "actor/12/comm/run", kToken, patience());
    REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
    AcceptedSocket accepted = server.accepted.get();
    CHECK(accepted.target == "actor/12/comm/run");
    CHECK(accepted.same_node == same_node);
    CHECK((accepted.peer == "local") == same_node);
    CHECK((::fcntl(accepted.socket.fd(), F_GETFL) & O_NONBLOCK) == 0);
    CHECK((::fcntl(socket->fd(), F_GETFL) & O_NONBLOCK) == 0);
    CHECK((::fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC) != 0);
    check_joined(socket->take_socket(), accepted.socket.take_socket());
  }
}

std::string algorithm_of(const ByteStream& socket) {
  std::array<char, 32> name{};
  socklen_t size = name.size() - 1;
  REQUIRE(::getsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
  return name.data();
}

// 127.0.0.2 is reached from 127.0.0.1: addresses as between machines.
TEST_CASE(
    "a connection within the machine is not paced, one between machines is as the system wants") {
  const std::string systems = algorithm_of(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)));
  if (systems == "reno")
    MESSAGE("on this system there is nothing to choose: it has Reno everywhere");
  for (const bool near : {true, false}) {
    ListenOptions options = loopback();
    if (!near) options.host = "127.0.0.2";
    Server server(options);
    auto socket = connect_blocking(server.address, "head", kToken, patience());
    REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
    const AcceptedSocket accepted = server.accepted.get();
    CHECK(within_machine(socket->fd()) == near);
    CHECK(within_machine(accepted.socket.fd()) == near);
    CHECK(algorithm_of(*socket) == (near ? "reno" : systems));
    CHECK(algorithm_of(accepted.socket) == (near ? "reno" : systems));
  }
}

TEST_CASE("a host name is looked up") {
  Server server;
  Address address = server.address;
  address.host = "localhost";
  CHECK(connect_blocking(address, "head", kToken, patience()).ok());
}

TEST_CASE("a host name that no thread can look up is an error") {
  Server server;
  Address address = server.address;
  address.host = "localhost";
  const tests::NoThreads none;
  const Status refused = connect_blocking(address, "head", kToken, patience()).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.message().find("look up localhost") != std::string::npos);
}

TEST_CASE("connecting from a loop") {
  Server server;
  LoopThread client("client");
  Promise<bool> done;
  connect(
      client.loop(), server.address, "head", kToken, patience(),
      [&](Result<ByteStream> socket) { done.set(socket.ok() && client.loop().in_loop_thread()); });
  CHECK(done.get());
}

TEST_CASE("another token is refused, by the client already") {
  Server server;
  const auto refused = connect_blocking(server.address, "head", kOtherToken, patience());
  CHECK(refused.status().code() == Code::kUnauthenticated);
  CHECK(refused.status().message().find("--token-file") != std::string::npos);
  CHECK_FALSE(server.accepted.is_set());
}

TEST_CASE("the listener's check decides about targets, after authentication") {
  std::atomic<int> lines{0};
  Server server(
      loopback(),
      [](const std::string& target) {
        if (target == "head") return Status();
        return error(Code::kNotFound, "no target '{}' here: {}", target, std::string(600, 'x'));
      },
      Logger("server", LogLevel::kInfo, [&](LogLevel, std::string_view) { ++lines; }));
  const auto refused = connect_blocking(server.address, "node", kToken, patience());
  CHECK(refused.status().code() == Code::kNotFound);
  CHECK(refused.status().message().find("no target 'node' here") != std::string::npos);
  CHECK(connect_blocking(server.address, "head", kToken, patience()).ok());
  CHECK(server.accepted.get().target == "head");
  CHECK(lines == 0);  // who was refused was told, and nobody else can do anything about it
}

TEST_CASE("target names that cannot be are refused") {
  Server server;
  CHECK(connect_blocking(server.address, "", kToken, patience()).status().code() ==
        Code::kInvalidArgument);
  CHECK(
      connect_blocking(server.address, std::string(257, 'a'), kToken, patience()).status().code() ==
      Code::kInvalidArgument);
  CHECK(connect_blocking(server.address, "head\n", kToken, patience()).status().code() ==
        Code::kInvalidArgument);
  CHECK(connect_blocking(server.address, std::string(256, 'a'), kToken, patience()).ok());
}

TEST_CASE("nobody listens") {
  Address free_port;
  {
    Server server;
    free_port = server.address;
  }
  CHECK(connect_blocking(free_port, "head", kToken, patience()).status().code() ==
        Code::kUnavailable);
  const Address local{.host = {}, .port = 0, .local_name = "troupe-test-nobody"};
  CHECK(connect_blocking(local, "head", kToken, patience()).status().code() == Code::kUnavailable);
  const Address nameless{.host = "no-such-host.invalid", .port = 1, .local_name = {}};
  const auto lost = connect_blocking(nameless, "head", kToken, patience());
  CHECK(lost.status().code() == Code::kUnavailable);
  CHECK(lost.status().message().find("no-such-host.invalid") != std::string::npos);
}

TEST_CASE("who accepts and stays silent is left at the deadline") {
  auto loop = make_event_loop();
  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::listen(silent.get(), 4) == 0);
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  REQUIRE(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
  const auto* port = reinterpret_cast<const std::uint8_t*>(&name) + 2;
  const Address address{.host = "127.0.0.1",
                        .port = static_cast<std::uint16_t>(port[0] << 8 | port[1]),
                        .local_name = {}};
  const auto late = connect_blocking(address, "head", kToken, Deadline::after(20ms));
  CHECK(late.status().code() == Code::kDeadlineExceeded);
  CHECK(late.status().message().find("waiting for its answer") != std::string::npos);
}

TEST_CASE("a taken port, a taken local name, an address that is not ours, a short token") {
  Server server(loopback("troupe-test-taken"));
  const auto status_of = [&](const ListenOptions& options, const Token& token = kToken) {
    return tests::on_loop(server.thread.loop(), [&] {
      return listen(server.thread.loop(), options, token, server.random, Logger::discard(),
                    [](AcceptedSocket) {})
          .status();
    });
  };
  ListenOptions options = loopback();
  options.port = server.address.port;
  CHECK(status_of(options).code() == Code::kAlreadyExists);
  CHECK(status_of(loopback("troupe-test-taken")).code() == Code::kAlreadyExists);
  options.port = 0;
  options.host = "192.0.2.77";
  CHECK(status_of(options).code() == Code::kInvalidArgument);
  options.host = "localhost";
  CHECK(status_of(options).code() == Code::kInvalidArgument);
  CHECK(status_of(loopback(), Token(8)).code() == Code::kInvalidArgument);
  CHECK(status_of(ListenOptions()).code() == Code::kInvalidArgument);
}

TEST_CASE("a listener may be destroyed by what it accepts") {
  LoopThread thread("server");
  SystemRandom random;
  std::unique_ptr<Listener> listener;
  Promise<Address> address;
  Promise<bool> gone;
  thread.loop().post([&] {
    listener =
        listen(thread.loop(), loopback(), kToken, random, Logger::discard(), [&](AcceptedSocket) {
          listener.reset();
          gone.set(true);
        }).value();
    address.set(listener->address());
  });
  CHECK(connect_blocking(address.get(), "head", kToken, patience()).ok());
  CHECK(gone.get());
}

}  // namespace
}  // namespace troupe::net
