// Encrypted connections between peers of one cluster.

#include "runtime/net/connection.h"
#include "runtime/net/handed_over.h"
#include "runtime/net/socket.h"
#include "runtime/net/tls_handshake.h"
#include "runtime/net/tls_session.h"
#include "tests/runtime/net/tls_support.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using tests::kTlsToken;
using tests::TlsServer;

// What a reader of `socket` gets of `count` bytes, each of which says where it stands.
std::size_t mistakes_in(ByteStream& stream, std::size_t count) {
  std::vector<std::uint8_t> buffer(100'000);
  std::size_t at = 0, mistakes = 0;
  while (at < count) {
    const auto part = std::span(buffer).first(std::min(buffer.size(), count - at));
    if (!receive_all(stream, std::as_writable_bytes(part), tests::patience()).ok()) return count;
    for (const std::uint8_t got : part) {
      mistakes += got != static_cast<std::uint8_t>(at++ * 2654435761u >> 13);
    }
  }
  return mistakes;
}

void write_numbered(ByteStream& stream, std::size_t count) {
  std::vector<std::uint8_t> buffer(100'003);
  for (std::size_t at = 0; at < count;) {
    const std::size_t size = std::min(buffer.size(), count - at);
    for (std::size_t i = 0; i < size; ++i) {
      buffer[i] = static_cast<std::uint8_t>((at + i) * 2654435761u >> 13);
    }
    const auto bytes = std::as_bytes(std::span(buffer).first(size));
    if (!send_all(stream, bytes, tests::patience()).ok()) return;
    at += size;
  }
}

TEST_CASE("an encrypted connection is a stream like any other, and shows nothing on the way") {
  TlsServer server;
  tests::Tap tap(server.address);
  auto socket = connect_blocking(tap.address, "actor/12/comm/run", kTlsToken, tests::patience());
  REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
  AcceptedSocket accepted = server.accepted();
  CHECK(accepted.target == "actor/12/comm/run");
  CHECK_FALSE(accepted.same_node);
  CHECK_FALSE(accepted.untouched);
  CHECK(accepted.peer.find("127.0.0.1:") == 0);
  for (const ByteStream* stream : {&*socket, &accepted.socket}) {
    CHECK(stream->encrypted());
    CHECK((::fcntl(stream->fd(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK_FALSE(accepted.socket.take_socket().valid());
  tests::send_all(*socket, "the secret of the cluster");
  CHECK(tests::receive(accepted.socket, 25) == "the secret of the cluster");
  tests::send_all(accepted.socket, "and its answer");
  CHECK(tests::receive(*socket, 14) == "and its answer");
  // Half closed, then ended.
  socket->end_writing();
  CHECK(tests::receive(accepted.socket).empty());
  tests::send_all(accepted.socket, "last words");
  accepted.socket.reset();
  CHECK(tests::receive(*socket) == "last words");
  socket->reset();
  tap.wait();
  CHECK(tap.from_client.size() > 500);
  CHECK(tap.from_client.find("secret of") == std::string::npos);
  CHECK(tap.from_server.find("answer") == std::string::npos);
  CHECK(tap.from_client.find("actor.12.troupe") != std::string::npos);  // the route is to be seen
  CHECK(tap.from_client.find("comm") == std::string::npos);             // the rest is not
}

TEST_CASE("much data in both directions at once") {
  TlsServer server;
  ByteStream here = server.connect("head").value();
  ByteStream there = server.accepted().socket;
  constexpr std::size_t kCount = 8u << 20;
  std::size_t mistakes = 0;
  std::thread writer([&] { write_numbered(here, kCount); });
  std::thread answerer([&] { write_numbered(there, kCount); });
  std::thread reader([&] { mistakes = mistakes_in(there, kCount); });
  CHECK(mistakes_in(here, kCount) == 0);
  for (auto* thread : {&writer, &answerer, &reader}) thread->join();
  CHECK(mistakes == 0);
}

TEST_CASE("keys are renewed on the way, and nobody notices") {
  const auto [a, b] = tests::socket_pair();
  const auto context = kTlsToken.tls().context().value();
  auto client = TlsSession::client(context, a.get(), "").value();
  auto server = TlsSession::server(context, b.get()).value();
  bool client_done = false, server_done = false;
  for (int i = 0; i < 10 && !(client_done && server_done); ++i) {
    client_done = client->handshake() == TlsState::kDone;
    server_done = server->handshake() == TlsState::kDone;
  }
  REQUIRE(client_done);
  REQUIRE(server_done);
  client->renew_key_after(3);
  server->renew_key_after(5);
  for (int i = 0; i < 100; ++i) {
    for (auto* from : {client.get(), server.get()}) {
      auto* to = from == client.get() ? server.get() : client.get();
      const std::string text = "record " + std::to_string(i);
      REQUIRE(from->write(bytes_of(text)).count == text.size());
      std::byte space[64];
      const TlsIo io = to->read(space);
      REQUIRE(io.state == TlsState::kDone);
      REQUIRE(tests::as_text(std::span(space).first(io.count)) == text);
    }
  }
}

TEST_CASE("frames over an encrypted connection, and its end") {
  TlsServer server;
  tests::Promise<std::string> heard;
  tests::Promise<Status> ended;
  std::shared_ptr<Connection> there;
  tests::on_loop(server.thread.loop(), [&] {
    server.on_accept = [&](AcceptedSocket socket) {
      there = make_connection(server.thread.loop(), std::move(socket.socket), socket.peer);
      there->start({.on_frame = [&](auto frame) { heard.set(tests::as_text(frame)); },
                    .on_close = [&](Status why) { ended.set(std::move(why)); }});
    };
    return 0;
  });
  LoopThread client("frames");
  tests::Promise<std::shared_ptr<Connection>> connected;
  connect(client.loop(), server.address, "head", kTlsToken, tests::patience(),
          [&](Result<ByteStream> socket) {
            connected.set(make_connection(client.loop(), std::move(socket).value(), "server"));
          });
  const auto here = connected.get();
  CHECK(here->send(tests::bytes("hello")).ok());
  CHECK(heard.get() == "hello");
  here->close(1000);
  CHECK(ended.get().code() == Code::kUnavailable);
  tests::on_loop(server.thread.loop(), [&] {
    there.reset();
    return 0;
  });
}

TEST_CASE("a peer that closes, in whatever state, has ended the connection") {
  TlsServer server;
  ByteStream here = server.connect("head").value();
  ByteStream there = server.accepted().socket;
  SUBCASE("at once") { here.reset(); }
  SUBCASE("when it has said so") {
    here.end_writing();
    here.reset();
  }
  CHECK(tests::receive(there).empty());
  std::byte byte;
  CHECK(there.read({&byte, 1}).state == StreamIo::State::kEnded);
}

TEST_CASE("what was changed on the way breaks the stream, and says why") {
  TlsServer server;
  ByteStream here = server.connect("head").value();
  ByteStream there = server.accepted().socket;
  tests::send_all(here, "untouched");
  CHECK(tests::receive(there, 9) == "untouched");
  // A record that nobody with the keys has written.
  const std::string forged = std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'x');
  REQUIRE(::send(here.fd(), forged.data(), forged.size(), MSG_NOSIGNAL) == 37);
  std::byte byte;
  StreamIo io;
  pollfd waiting{there.fd(), POLLIN, 0};
  while ((io = there.read({&byte, 1})).state == StreamIo::State::kOpen && io.count == 0) {
    REQUIRE(::poll(&waiting, 1, 10'000) == 1);
  }
  CHECK(io.state == StreamIo::State::kBroken);
  CHECK_FALSE(there.why(io).empty());
  CHECK(receive_all(there, {&byte, 1}, tests::patience()).code() == Code::kUnavailable);
}

// A reader that does not read: what is encrypted already waits, and goes when it reads.
TEST_CASE("what was taken and could not be sent leaves later") {
  TlsServer server;
  ByteStream here = server.connect("head").value();
  ByteStream there = server.accepted().socket;
  const std::vector<std::byte> piece(1u << 20, std::byte{7});
  std::size_t taken = 0;
  while (!here.unsent()) taken += here.write(piece).count;
  CHECK(here.write(piece).count == 0);
  std::vector<std::byte> got(taken);
  std::thread flusher([&] { CHECK(send_all(here, {}, tests::patience()).ok()); });
  CHECK(receive_all(there, got, tests::patience()).ok());
  flusher.join();
  CHECK_FALSE(here.unsent());
  CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{7}; }));
  std::byte byte;
  CHECK(there.read({&byte, 1}).count == 0);
}

TEST_CASE("targets of all kinds, refusals with the listener's own words") {
  TlsServer server({.check = [](const std::string& target) {
    if (target.find("no") == std::string::npos) return Status();
    return error(Code::kNotFound, "no target '{}' here: {}", target, std::string(600, 'x'));
  }});
  for (const std::string target : {"head", "actor/0123456789abcdef0123456789abcdef", "a/b/c/d",
                                   "UPPER/x_y", "-", "/", "a//b", "x.y/z"}) {
    const auto socket = server.connect(target);
    CHECK_MESSAGE(socket.ok(), target << ": " << socket.status().to_string());
    if (socket.ok()) CHECK(server.accepted().target == target);
  }
  const std::string longest(256, 'a');
  CHECK(server.connect(longest).ok());
  CHECK(server.accepted().target == longest);
  const auto refused = server.connect("node");
  CHECK(refused.status().code() == Code::kNotFound);
  CHECK(refused.status().message().find("no target 'node' here") != std::string::npos);
  CHECK(server.connect("head\n").status().code() == Code::kInvalidArgument);
}

TEST_CASE("routes and server names") {
  CHECK(route_of("head") == "head");
  CHECK(route_of("actor/12") == "actor/12");
  CHECK(route_of("actor/12/comm/run") == "actor/12");
  CHECK(server_name_of("actor/12") == "actor.12.troupe");
  CHECK(server_name_of("head") == "head.troupe");
  CHECK(route_of_server_name("actor.12.troupe") == "actor/12");
  CHECK(route_of_server_name("head.troupe") == "head");
  for (const std::string other : {"", "a/b/c", "a b", "A", "a.b", "/", "a/"}) {
    CHECK(server_name_of(other).empty());
  }
  CHECK(server_name_of(std::string(64, 'a')).empty());
  for (const std::string other : {"", "troupe", ".troupe", "a.b.c.troupe", "a..troupe", "A.troupe",
                                  "example.org", "../x.troupe"}) {
    CHECK(route_of_server_name(other).empty());
  }
}

// --- connections whose TLS another process does --------------------------------------------------

struct OtherProcess {
  LoopThread thread{"other"};
  std::unique_ptr<HandedOver> handed_over;
  tests::Promise<AcceptedSocket> accepted;
  explicit OtherProcess(TlsServer& server) {
    tests::on_loop(thread.loop(), [&] {
      handed_over = std::make_unique<HandedOver>(thread.loop(), kTlsToken, Logger::discard());
      return 0;
    });
    tests::on_loop(server.thread.loop(), [&] {
      server.on_accept = [this](AcceptedSocket socket) {
        CHECK(socket.untouched);
        auto shared = std::make_shared<AcceptedSocket>(std::move(socket));
        thread.loop().post([this, shared] {
          handed_over->accept(shared->socket.take_socket(), shared->target, shared->peer,
                              [this](AcceptedSocket a) { accepted.set(std::move(a)); });
        });
      };
      return 0;
    });
  }
  ~OtherProcess() {
    tests::on_loop(thread.loop(), [this] {
      handed_over.reset();
      return 0;
    });
  }
};

TlsServer::Options handing_over() {
  return {.check =
              [](const std::string& target) {
                return target.find("missing") == std::string::npos
                           ? Status()
                           : error(Code::kNotFound, "no {} here", target);
              },
          .hand_over = [](const std::string& route) { return route.starts_with("actor/"); }};
}

TEST_CASE("a socket is handed over untouched, and the other process does its TLS") {
  TlsServer server(handing_over());
  OtherProcess other(server);
  auto socket = server.connect("actor/12/comm/run");
  REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
  AcceptedSocket accepted = other.accepted.get();
  CHECK(accepted.target == "actor/12/comm/run");
  CHECK_FALSE(accepted.untouched);
  tests::send_all(*socket, "ping");
  CHECK(tests::receive(accepted.socket, 4) == "ping");
}

TEST_CASE("who asks for a target that is not there hears it from the listener") {
  TlsServer server(handing_over());
  const auto refused = server.connect("actor/missing/x");
  CHECK(refused.status().code() == Code::kNotFound);
  CHECK(server.accepted_count() == 0);
}

TEST_CASE("a connection that names one process and asks for another is refused by both") {
  TlsServer server(handing_over());
  OtherProcess other(server);
  const auto ask = [&](const std::string& name, const std::string& target) {
    const UniqueFd socket = tests::raw_connect(server.address);
    auto session =
        TlsSession::client(kTlsToken.tls().context().value(), socket.get(), name).value();
    const auto wait = [&](TlsState state) {
      pollfd entry{socket.get(),
                   static_cast<short>(state == TlsState::kWaitRead ? POLLIN : POLLOUT), 0};
      REQUIRE(::poll(&entry, 1, 10'000) == 1);
    };
    TlsState state;
    while ((state = session->handshake()) != TlsState::kDone) wait(state);
    REQUIRE(session->write(bytes_of(tests::target_message(target))).state == TlsState::kDone);
    std::byte answer[2] = {};
    TlsIo io;
    while ((io = session->read(answer)).state == TlsState::kWaitRead) wait(io.state);
    REQUIRE(io.state == TlsState::kDone);
    return static_cast<Code>(answer[0]);
  };
  CHECK(ask("actor.12.troupe", "actor/13") == Code::kInvalidArgument);
  CHECK(ask("head.troupe", "actor/13") == Code::kInvalidArgument);
  // Without a name the listener does the TLS, and cannot hand it over any more.
  CHECK(ask("", "actor/13") == Code::kUnavailable);
  CHECK(ask("actor.12.troupe", "actor/12/x") == Code::kOk);
  CHECK(other.accepted.get().target == "actor/12/x");
}

// --- which connections are encrypted -------------------------------------------------------------

TEST_CASE("what leaves the machine is encrypted, unless it is said otherwise") {
  const auto encrypted = [](const std::string& host, Security security) {
    return is_encrypted(security, numeric_address(host, 1).value());
  };
  for (const std::string host : {"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"}) {
    CHECK_FALSE(encrypted(host, Security::kTls));
    CHECK(encrypted(host, Security::kTlsAlways));
    CHECK_FALSE(encrypted(host, Security::kInsecure));
  }
  for (const std::string host : {"10.0.0.2", "192.168.1.1", "fe80::1", "2001:db8::1", "0.0.0.0",
                                 "::", "::ffff:10.0.0.2", "126.255.255.255", "128.0.0.1"}) {
    CHECK(encrypted(host, Security::kTls));
    CHECK_FALSE(encrypted(host, Security::kInsecure));
  }
  CHECK_FALSE(is_encrypted(Security::kTlsAlways, local_address("x").value()));
  CHECK(security_from_number(2) == Security::kInsecure);
  CHECK(security_from_number(77) == Security::kTls);
}

TEST_CASE("a listener that must not encrypt on loopback takes encrypted peers there, too") {
  TlsServer server({.token = kTlsToken.with(Security::kTls)});
  CHECK(server.connect("head", kTlsToken).ok());
  CHECK(server.connect("head", kTlsToken.with(Security::kTls)).ok());
  CHECK(server.accepted_count() == 2);
}

TEST_CASE("one side encrypts, the other does not: each names it and the way out") {
  TlsServer encrypting;
  const auto plain = encrypting.connect("head", kTlsToken.with(Security::kInsecure));
  CHECK(plain.status().code() == Code::kFailedPrecondition);
  CHECK(plain.status().message().find("takes encrypted connections alone") != std::string::npos);
  CHECK(plain.status().message().find("--insecure") != std::string::npos);
  CHECK(encrypting.accepted_count() == 0);

  TlsServer insecure({.token = kTlsToken.with(Security::kInsecure)});
  const auto secure = insecure.connect("head", kTlsToken);
  CHECK(secure.status().code() == Code::kFailedPrecondition);
  CHECK(secure.status().message().find("was started with --insecure") != std::string::npos);
  CHECK(insecure.accepted_count() == 0);
  CHECK(insecure.connect("head", kTlsToken.with(Security::kInsecure)).ok());
}

}  // namespace
}  // namespace troupe::net
