// Peers that have no token: nothing gets in, nothing hangs, nothing is kept.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/random.h"
#include "runtime/net/handshake.h"
#include "runtime/net/transport.h"
#include "tests/runtime/net/support.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

const Token kHostileToken(32, std::byte{0x5a});

struct BesiegedServer {
  LoopThread thread{"server"};
  SystemRandom random;
  std::unique_ptr<Listener> listener;
  int accepted_count = 0;  // loop thread
  Address address;

  explicit BesiegedServer(Duration timeout = tests::kPatience, std::size_t handshakes_max = 1024) {
    ListenOptions options;
    options.host = "127.0.0.1";
    options.handshake_timeout = timeout;
    options.handshakes_max = handshakes_max;
    tests::on_loop(thread.loop(), [&] {
      listener = listen(thread.loop(), options, kHostileToken, random, Logger::discard(),
                        [this](AcceptedSocket) { ++accepted_count; })
                     .value();
      address = listener->address();
      return 0;
    });
  }
  ~BesiegedServer() {
    tests::on_loop(thread.loop(), [&] {
      listener.reset();
      return 0;
    });
  }
  // After all that the loop has begun.
  int accepted() {
    return tests::on_loop(thread.loop(), [this] { return accepted_count; });
  }
  bool still_serves() {
    return connect_blocking(address, "head", kHostileToken, Deadline::after(tests::kPatience)).ok();
  }
};

// A client that says what it likes.
class RawClient {
 public:
  explicit RawClient(const Address& address)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  }
  void send(const Bytes& data) {
    (void)::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL);
  }
  // `count` bytes, or fewer where the other side ended.
  Bytes receive(std::size_t count) {
    Bytes data;
    while (data.size() < count) {
      pollfd waiting{socket_.get(), POLLIN, 0};
      REQUIRE(::poll(&waiting, 1, 10'000) == 1);
      std::byte chunk[256];
      const ssize_t got =
          ::recv(socket_.get(), chunk, std::min(count - data.size(), sizeof(chunk)), 0);
      if (got <= 0) break;
      data.insert(data.end(), chunk, chunk + got);
    }
    return data;
  }
  Bytes receive_all() { return receive(100'000); }
  void end() { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  UniqueFd socket_;
};

Bytes hello(std::uint8_t version, const Nonce& nonce) {
  Bytes out(kHandshakeMagic.begin(), kHandshakeMagic.end());
  out.insert(out.end(), {std::byte{version}, std::byte{0}, std::byte{0}, std::byte{0}});
  out.insert(out.end(), nonce.begin(), nonce.end());
  return out;
}

Bytes proof(const Token& token, const Nonce& client, const Bytes& challenge,
            const std::string& target) {
  Nonce server;
  std::copy_n(challenge.begin() + kPreambleBytes, kNonceBytes, server.begin());
  const auto mac = handshake_mac(token, kClientLabel, client, server, target);
  Bytes out(mac.begin(), mac.end());
  out.push_back(static_cast<std::byte>(target.size() & 0xff));
  out.push_back(static_cast<std::byte>(target.size() >> 8));
  for (const char c : target) out.push_back(static_cast<std::byte>(c));
  return out;
}

const Nonce kNonce{};

TEST_CASE("garbage and other protocols are cut off at the first wrong byte, without an answer") {
  BesiegedServer server;
  for (const char* text :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x02\x01\x02", "x", "\x89TROUBLE"}) {
    RawClient client(server.address);
    client.send(tests::bytes(text));
    CHECK(client.receive_all().empty());
  }
  SeededRandom random(5);
  for (int i = 0; i < 100; ++i) {
    Bytes noise(1 + random.below(3000));
    random.fill(noise);
    noise[0] = std::byte{0x88};
    RawClient client(server.address);
    client.send(noise);
    CHECK(client.receive_all().empty());
  }
  CHECK(server.still_serves());
  CHECK(server.accepted() == 1);
}

TEST_CASE("another version is told ours") {
  constexpr std::uint32_t kOther = kHandshakeVersion + 1;
  BesiegedServer server;
  RawClient client(server.address);
  client.send(hello(kOther, kNonce));
  const Bytes answer = client.receive_all();
  REQUIRE(answer.size() == kPreambleBytes);
  CHECK(answer[8] == std::byte{kHandshakeVersion});

  // And the connecting side names both.
  SystemRandom random;
  ClientHandshake handshake(kHostileToken, "head", "10.0.0.1:7", random);
  const Bytes other = hello(kOther, kNonce);
  std::copy_n(other.begin(), kPreambleBytes, handshake.space().begin());
  const Status status = handshake.filled(kPreambleBytes).status();
  CHECK(status.code() == Code::kProtocol);
  CHECK(status.message().find(fmt::format("version {} and this program version {}", kOther,
                                          kHandshakeVersion)) != std::string::npos);
}

TEST_CASE("what is not Troupe is named as such by the connecting side") {
  SystemRandom random;
  ClientHandshake handshake(kHostileToken, "head", "10.0.0.1:80", random);
  const Bytes http = tests::bytes("HTTP/1.1 400");
  std::copy(http.begin(), http.end(), handshake.space().begin());
  CHECK(handshake.filled(http.size()).status().code() == Code::kProtocol);
}

TEST_CASE("a wrong proof gets the fixed refusal, whatever target it names") {
  BesiegedServer server;
  Bytes first_refusal;
  for (const std::string& target : {std::string("head"), std::string("node"), std::string()}) {
    for (const Token& token : {Token(32, std::byte{1}), Token(31, std::byte{0x5a}), Token()}) {
      RawClient client(server.address);
      client.send(hello(kHandshakeVersion, kNonce));
      const Bytes challenge = client.receive(kChallengeBytes);
      REQUIRE(challenge.size() == kChallengeBytes);
      client.send(proof(token, kNonce, challenge, target));
      const Bytes refusal = client.receive_all();
      REQUIRE(refusal.size() > kAnswerBytes);
      CHECK(refusal[0] == static_cast<std::byte>(Code::kUnauthenticated));
      if (first_refusal.empty()) first_refusal = refusal;
      CHECK(refusal == first_refusal);
    }
  }
  CHECK(server.accepted() == 0);
}

TEST_CASE("a proof for another target, and the server's own proof sent back, are refused") {
  BesiegedServer server;
  {
    RawClient client(server.address);
    client.send(hello(kHandshakeVersion, kNonce));
    Bytes bytes = proof(kHostileToken, kNonce, client.receive(kChallengeBytes), "head");
    bytes.back() = std::byte{'p'};
    client.send(bytes);
    CHECK(client.receive_all()[0] == static_cast<std::byte>(Code::kUnauthenticated));
  }
  {
    RawClient client(server.address);
    client.send(hello(kHandshakeVersion, kNonce));
    const Bytes challenge = client.receive(kChallengeBytes);
    Bytes reflected(challenge.end() - kMacBytes, challenge.end());
    reflected.insert(reflected.end(), {std::byte{0}, std::byte{0}});
    client.send(reflected);
    CHECK(client.receive_all()[0] == static_cast<std::byte>(Code::kUnauthenticated));
  }
  CHECK(server.accepted() == 0);
}

TEST_CASE("a target longer than allowed is refused before it is read") {
  BesiegedServer server;
  RawClient client(server.address);
  client.send(hello(kHandshakeVersion, kNonce));
  (void)client.receive(kChallengeBytes);
  client.send(Bytes(kProofBytes, std::byte{0xff}));
  CHECK(client.receive_all()[0] == static_cast<std::byte>(Code::kUnauthenticated));
}

TEST_CASE("a recorded handshake, played again a thousand times, never gets in") {
  BesiegedServer server;
  Bytes recorded_proof;
  {
    RawClient client(server.address);
    client.send(hello(kHandshakeVersion, kNonce));
    recorded_proof = proof(kHostileToken, kNonce, client.receive(kChallengeBytes), "head");
    client.send(recorded_proof);
    REQUIRE(client.receive(kAnswerBytes) == Bytes(kAnswerBytes));
  }
  CHECK(server.accepted() == 1);
  for (int i = 0; i < 1000; ++i) {
    RawClient client(server.address);
    client.send(hello(kHandshakeVersion, kNonce));
    (void)client.receive(kChallengeBytes);
    client.send(recorded_proof);
    REQUIRE(client.receive_all()[0] == static_cast<std::byte>(Code::kUnauthenticated));
  }
  CHECK(server.accepted() == 1);
}

TEST_CASE("truncated handshakes and half-open connections end") {
  BesiegedServer server;
  const Bytes whole = hello(kHandshakeVersion, kNonce);
  for (std::size_t size = 0; size < whole.size(); size += 4) {
    RawClient client(server.address);
    client.send(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    client.end();
    CHECK(client.receive_all().empty());
  }
  CHECK(server.still_serves());
}

TEST_CASE("a handshake that is sent byte by byte works, one that stops is ended by the timeout") {
  {
    BesiegedServer server;
    RawClient client(server.address);
    for (const std::byte byte : hello(kHandshakeVersion, kNonce)) client.send({byte});
    const Bytes challenge = client.receive(kChallengeBytes);
    for (const std::byte byte : proof(kHostileToken, kNonce, challenge, "head"))
      client.send({byte});
    CHECK(client.receive(kAnswerBytes) == Bytes(kAnswerBytes));
  }
  BesiegedServer impatient(30ms);
  RawClient silent(impatient.address);
  RawClient slow(impatient.address);
  slow.send({kHandshakeMagic[0]});
  CHECK(silent.receive_all().empty());
  CHECK(slow.receive_all().empty());
  CHECK(impatient.accepted() == 0);
}

TEST_CASE("strangers cannot keep others out: beyond the limit the oldest is dropped") {
  BesiegedServer server(tests::kPatience, 4);
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 12; ++i) {
    strangers.push_back(std::make_unique<RawClient>(server.address));
    strangers.back()->send({kHandshakeMagic[0]});
  }
  CHECK(server.still_serves());
  for (int i = 0; i < 8; ++i) CHECK(strangers[static_cast<std::size_t>(i)]->receive_all().empty());
}

TEST_CASE("not a byte beyond the handshake is read") {
  LoopThread thread("server");
  SystemRandom random;
  tests::Promise<AcceptedSocket> accepted;
  std::unique_ptr<Listener> listener;
  ListenOptions options;
  options.host = "127.0.0.1";
  const Address address = tests::on_loop(thread.loop(), [&] {
    listener = listen(thread.loop(), options, kHostileToken, random, Logger::discard(),
                      [&](AcceptedSocket socket) { accepted.set(std::move(socket)); })
                   .value();
    return listener->address();
  });
  RawClient client(address);
  client.send(hello(kHandshakeVersion, kNonce));
  Bytes bytes = proof(kHostileToken, kNonce, client.receive(kChallengeBytes), "head");
  for (const char c : std::string("next")) bytes.push_back(static_cast<std::byte>(c));
  client.send(bytes);
  const AcceptedSocket socket = accepted.get();
  char text[5] = {};
  REQUIRE(::recv(socket.socket.fd(), text, 4, MSG_WAITALL) == 4);
  CHECK(std::string(text) == "next");
  tests::on_loop(thread.loop(), [&] {
    listener.reset();
    return 0;
  });
}

}  // namespace
}  // namespace troupe::net
