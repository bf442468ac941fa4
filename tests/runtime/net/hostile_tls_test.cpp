// Peers that speak TLS and do not belong here, and what is not TLS at all.

#include <netinet/tcp.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/limits.h"
#include "runtime/net/client_hello.h"
#include "runtime/net/handshake.h"
#include "runtime/net/tls_session.h"
#include "tests/runtime/net/tls_support.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using tests::kOtherTlsToken;
using tests::kTlsToken;
using tests::StrangeClient;
using tests::TlsServer;

constexpr std::int64_t kDayS = 24 * 3600;

Certified certificate_of(const Token& token, std::int64_t from_s = -kDayS,
                         std::int64_t until_s = kDayS) {
  const std::int64_t now_s = SystemClock().unix_time_us() / 1'000'000;
  const auto authority = cluster_authority(token.secret()).value();
  return issue_certificate(authority, {now_s + from_s, now_s + until_s}).value();
}

// A first message as this program sends it.
std::string client_hello(const std::string& name) {
  const auto [ours, theirs] = tests::socket_pair();
  auto session = TlsSession::client(kTlsToken.tls().context().value(), ours.get(), name).value();
  CHECK(session->handshake() == TlsState::kWaitRead);
  char bytes[4096];
  const ssize_t count = ::recv(theirs.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  REQUIRE(count > 0);
  return {bytes, static_cast<std::size_t>(count)};
}

// --- certificates --------------------------------------------------------------------------------

TEST_CASE("another cluster's token is refused by the client, who is told what to do") {
  TlsServer server;
  const auto refused = server.connect("head", kOtherTlsToken);
  CHECK(refused.status().code() == Code::kUnauthenticated);
  CHECK(refused.status().message().find("--token-file") != std::string::npos);
  CHECK(server.accepted_count() == 0);
}

TEST_CASE("a listener lets nobody in without a certificate of its cluster") {
  TlsServer server;
  const Certified right = certificate_of(kTlsToken);
  const Certified other_cluster = certificate_of(kOtherTlsToken);
  const Certified expired = certificate_of(kTlsToken, -9 * kDayS, -kDayS);
  const Certified early = certificate_of(kTlsToken, kDayS, 9 * kDayS);
  CHECK(StrangeClient{.certificate = &right}.run(server.address) == 0);
  CHECK(server.accepted_count() == 1);
  CHECK(StrangeClient{}.run(server.address) == SSL_AD_CERTIFICATE_REQUIRED);
  CHECK(StrangeClient{.certificate = &other_cluster}.run(server.address) == SSL_AD_UNKNOWN_CA);
  CHECK(StrangeClient{.certificate = &expired}.run(server.address) == SSL_AD_CERTIFICATE_EXPIRED);
  CHECK(StrangeClient{.certificate = &early}.run(server.address) == SSL_AD_BAD_CERTIFICATE);
  // The authority of the right name, made by somebody else: an unrelated key signed it.
  Certified forged = certificate_of(kOtherTlsToken);
  const Certified authority = cluster_authority(kTlsToken.secret()).value();
  REQUIRE(::X509_set_issuer_name(forged.certificate.get(),
                                 ::X509_get_subject_name(authority.certificate.get())) == 1);
  REQUIRE(::X509_sign(forged.certificate.get(), forged.key.get(), nullptr) > 0);
  CHECK(StrangeClient{.certificate = &forged}.run(server.address) > 0);
  // A certificate that a member was given does not make an authority of it.
  const Certified member = certificate_of(kTlsToken);
  const Certified second = issue_certificate(member, validity_from(0)).value();
  CHECK(StrangeClient{.certificate = &second}.run(server.address) > 0);
  CHECK(server.accepted_count() == 1);
}

TEST_CASE("older TLS is refused by its name") {
  TlsServer server;
  const Certified right = certificate_of(kTlsToken);
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION}) {
    CHECK(StrangeClient{.certificate = &right, .version = version}.run(server.address) ==
          SSL_AD_PROTOCOL_VERSION);
  }
  CHECK(server.accepted_count() == 0);
}

TEST_CASE(
    "clocks that differ by more than a day are named on the side that notices, and the other") {
  TlsServer server;
  for (const auto& [from, until] : {std::pair{-9 * kDayS, -kDayS}, std::pair{kDayS, 9 * kDayS}}) {
    const auto refused = server.connect("head", tests::with_validity(kTlsToken, from, until));
    CAPTURE(refused.status().to_string());
    CHECK(refused.status().code() == Code::kUnauthenticated);
    CHECK(refused.status().message().find("set the clocks") != std::string::npos);
    TlsServer elsewhere({.token = tests::with_validity(kTlsToken, from, until)});
    const auto noticed = elsewhere.connect("head");
    CHECK(noticed.status().code() == Code::kUnauthenticated);
    CHECK(noticed.status().message().find("is valid from 20") != std::string::npos);
    CHECK(noticed.status().message().find("set the clocks") != std::string::npos);
    CHECK(elsewhere.accepted_count() == 0);
  }
  CHECK(server.accepted_count() == 0);
  // Within a day they may.
  const auto close = server.connect("head", tests::with_validity(kTlsToken, -60, 60));
  CHECK_MESSAGE(close.ok(), close.status().to_string());
}

TEST_CASE("a recorded handshake, played again, never gets in") {
  TlsServer server;
  std::string recorded;
  {
    tests::Tap tap(server.address);
    auto socket = connect_blocking(tap.address, "head", kTlsToken, tests::patience());
    REQUIRE(socket.ok());
    socket->reset();
    (void)server.accepted();
    tap.wait();
    recorded = tap.from_client;
  }
  for (int i = 0; i < 100; ++i) {
    const UniqueFd socket = tests::raw_connect(server.address);
    tests::send_all(socket, recorded);
    ::shutdown(socket.get(), SHUT_WR);
    (void)tests::receive(socket);
  }
  CHECK(server.accepted_count() == 1);
}

// --- what is no TLS, or not much of it -----------------------------------------------------------

TEST_CASE("other protocols get no answer") {
  TlsServer server;
  for (const std::string text : {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "SSH-2.0-x\r\n", "x",
                                 "\x15\x03\x01", "\x80\x2e\x01\x03\x01"}) {
    const UniqueFd socket = tests::raw_connect(server.address);
    tests::send_all(socket, text);
    CHECK(tests::receive(socket).empty());
  }
  const auto after = server.connect("head");
  CHECK_MESSAGE(after.ok(), after.status().to_string());
}

TEST_CASE("a first message in pieces is waited for, one that ends early is let go") {
  TlsServer server;
  const std::string hello = client_hello("head.troupe");
  {
    const UniqueFd socket = tests::raw_connect(server.address);
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    for (const char byte : hello) tests::send_all(socket, std::string(1, byte));
    CHECK(tests::receive(socket, 3) == std::string("\x16\x03\x03", 3));
  }
  for (std::size_t size = 1; size < hello.size(); size += 7) {
    const UniqueFd socket = tests::raw_connect(server.address);
    tests::send_all(socket, hello.substr(0, size));
    ::shutdown(socket.get(), SHUT_WR);
    CHECK(tests::receive(socket).empty());
  }
  TlsServer impatient({.timeout = 30ms});
  const UniqueFd slow = tests::raw_connect(impatient.address);
  tests::send_all(slow, hello.substr(0, 100));
  CHECK(tests::receive(slow).empty());
  const UniqueFd silent = tests::raw_connect(impatient.address);
  tests::send_all(silent, hello);
  CHECK(tests::receive(silent).size() > 100);  // its answer, and then the end
  CHECK(impatient.accepted_count() == 0);
}

TEST_CASE("a first message of a size that no honest one has ends at its first bytes") {
  TlsServer server;
  const UniqueFd socket = tests::raw_connect(server.address);
  tests::send_all(socket, "\x16\x03\x01\xff\xff");
  CHECK(tests::receive(socket).empty());
  const UniqueFd empty = tests::raw_connect(server.address);
  tests::send_all(empty, std::string("\x16\x03\x01\0\0", 5));
  CHECK(tests::receive(empty).empty());
}

TEST_CASE("a peer that is not known may send 64 KiB and no more") {
  const auto [ours, theirs] = tests::socket_pair();
  auto session = TlsSession::server(kTlsToken.tls().context().value(), ours.get()).value();
  // A first message of 124 KiB, in records as large as they may be.
  constexpr std::size_t kRecordBytes = 16384;
  const std::string header("\x16\x03\x01\x40\0", 5);
  std::string record = header + std::string("\1\1\xf0\0", 4) + std::string(kRecordBytes - 4, 'x');
  TlsState state = TlsState::kWaitRead;
  std::size_t sent = 0;
  while (state == TlsState::kWaitRead && sent < 2 * limits::kHandshakeBytesMax) {
    tests::send_all(theirs, record);
    sent += record.size();
    record = header + std::string(kRecordBytes, 'x');
    state = session->handshake();
  }
  CHECK(state == TlsState::kBroken);
  CHECK(session->failure("the peer").message().find("more than 65536 bytes") != std::string::npos);
  CHECK(sent <= limits::kHandshakeBytesMax + record.size());
}

TEST_CASE("a thousand half-open handshakes keep nobody out and are closed in time") {
  rlimit descriptors{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
  descriptors.rlim_cur = descriptors.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
  const std::string hello = client_hello("head.troupe");
  const auto knock = [&](TlsServer& server) {
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 1000; ++i) {
      strangers.push_back(tests::raw_connect(server.address));
      // Nothing, a piece, or a whole first message.
      if (i % 3 == 1) tests::send_all(strangers.back(), hello.substr(0, 60));
      if (i % 3 == 2) tests::send_all(strangers.back(), hello);
    }
    return strangers;
  };
  {
    TlsServer patient({.timeout = 10min});
    const auto strangers = knock(patient);
    CHECK(patient.connect("head").ok());
    char byte = 0;
    CHECK(::recv(strangers.front().get(), &byte, 1, MSG_DONTWAIT) == -1);  // it is still open
    CHECK(patient.accepted_count() == 1);
  }
  TlsServer server({.timeout = 100ms});
  const auto strangers = knock(server);
  for (const UniqueFd& stranger : strangers) (void)tests::receive(stranger);  // all have ended
  CHECK(server.accepted_count() == 0);
}

TEST_CASE("a stranger cannot find out which targets there are") {
  TlsServer server({.check =
                        [](const std::string& target) {
                          return target == "actor/1" ? Status()
                                                     : error(Code::kNotFound, "no {}", target);
                        },
                    .hand_over = [](const std::string& route) { return route != "actor/1"; }});
  for (const std::string name : {"actor.1.troupe", "actor.2.troupe", "", "example.org"}) {
    CHECK(StrangeClient{.server_name = name}.run(server.address) == SSL_AD_CERTIFICATE_REQUIRED);
  }
  CHECK(server.accepted_count() == 0);
}

// --- listeners that are no Troupe

TEST_CASE("a client names what does not answer as a Troupe listener does") {
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  REQUIRE(::bind(listening.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  REQUIRE(::listen(listening.get(), 4) == 0);
  REQUIRE(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0);
  const Address address{.host = "127.0.0.1", .port = ntohs(at.sin_port), .local_name = {}};
  LoopThread loop("client");
  struct Case {
    std::string answer;
    Code code;
  };
  for (const Case& c : {Case{"HTTP/1.1 400 Bad Request\r\n\r\n", Code::kProtocol},
                        Case{std::string("\x15\x03\x03\0\2\2\x28", 7), Code::kProtocol},
                        Case{std::string("\x16\x03\x03\xff\xff", 5), Code::kProtocol},
                        Case{"", Code::kUnavailable}}) {
    std::thread server([&] {
      const UniqueFd peer(::accept(listening.get(), nullptr, nullptr));
      (void)tests::receive(peer, 100);
      tests::send_all(peer, c.answer);
      ::shutdown(peer.get(), SHUT_WR);
      char scrap[4096];
      while (::recv(peer.get(), scrap, sizeof(scrap), 0) > 0) {
      }
    });
    const auto refused = connect_blocking(address, "head", kTlsToken, tests::patience());
    CHECK(refused.status().code() == c.code);
    CHECK(refused.status().message().find("127.0.0.1") != std::string::npos);
    server.join();
  }
}

// --- the first message's reader

TEST_CASE("the name is found in whole first messages, and their beginnings ask for the rest") {
  const std::string hello = client_hello("actor.12.troupe");
  const auto parse = [](std::string_view text) { return parse_client_hello(bytes_of(text)); };
  const auto whole = parse(hello);
  CHECK(whole.state == ClientHello::State::kComplete);
  CHECK(whole.server_name == "actor.12.troupe");
  CHECK(parse(hello + "what follows").server_name == "actor.12.troupe");
  for (std::size_t size = 0; size < hello.size(); ++size) {
    const auto part = parse(hello.substr(0, size));
    REQUIRE(part.state == ClientHello::State::kIncomplete);
    REQUIRE(part.bytes_wanted == (size < 5 ? 5 : hello.size()));
  }
  CHECK(parse(client_hello("")).state == ClientHello::State::kComplete);
  CHECK(parse(client_hello("")).server_name.empty());
  for (const std::string& text :
       {std::string("x"), std::string("\x16\x02", 2), std::string("\x16\x03\x01\0\3", 5),
        std::string("\x16\x03\x01\x40\0", 5)}) {
    CHECK(parse(text).state == ClientHello::State::kMalformed);
  }
}

TEST_CASE(
    "damaged first messages are complete, incomplete or malformed, and nothing else happens") {
  const std::string hello = client_hello("actor.12.troupe");
  SeededRandom random(7);
  int malformed_count = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string damaged = hello;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    if (random.below(4) == 0) damaged.resize(random.below(damaged.size()));
    // A copy of its own size, so that a reader beyond the end is seen by the address sanitizer.
    const std::vector<char> exact(damaged.begin(), damaged.end());
    const auto parsed = parse_client_hello(std::as_bytes(std::span(exact)));
    malformed_count += parsed.state == ClientHello::State::kMalformed;
    if (parsed.state == ClientHello::State::kIncomplete) {
      REQUIRE(parsed.bytes_wanted > exact.size());
      REQUIRE(parsed.bytes_wanted <= limits::kClientHelloBytesMax);
    }
  }
  CHECK(malformed_count > 1000);
}

}  // namespace
}  // namespace troupe::net
