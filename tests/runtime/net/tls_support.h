#pragma once
// A listener that encrypts on loopback too, a wire that is listened to, and a client that says what
// it likes in TLS.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <thread>

#include "runtime/net/certificates.h"
#include "runtime/net/tls_context.h"
#include "runtime/net/transport.h"
#include "tests/runtime/net/support.h"

namespace troupe::tests {

using net::Security;
using net::Token;

inline const Token kTlsToken =
    Token(std::vector<std::byte>(32, std::byte{0x5a}), Security::kTlsAlways);
inline const Token kOtherTlsToken =
    Token(std::vector<std::byte>(32, std::byte{0x5b}), Security::kTlsAlways);

inline Deadline patience() { return Deadline::after(kPatience); }

// Accepts until it goes; the last accepted one is to be had.
class TlsServer {
 public:
  struct Options {
    Token token = kTlsToken;
    Duration timeout = kPatience;
    std::size_t handshakes_max = 4096;
    net::TargetCheck check;
    std::function<bool(const std::string&)> hand_over;
  };
  TlsServer() : TlsServer(Options()) {}
  explicit TlsServer(Options options) {
    net::ListenOptions listening;
    listening.host = "127.0.0.1";
    listening.handshake_timeout = options.timeout;
    listening.handshakes_max = options.handshakes_max;
    listening.hand_over = std::move(options.hand_over);
    on_loop(thread.loop(), [&] {
      listener_ = net::listen(
                      thread.loop(), listening, options.token, random_, Logger::discard(),
                      [this](net::AcceptedSocket socket) {
                        ++count_;
                        if (on_accept) return on_accept(std::move(socket));
                        last_ = std::make_unique<Promise<net::AcceptedSocket>>();
                        last_->set(std::move(socket));
                      },
                      std::move(options.check))
                      .value();
      address = listener_->address();
      return 0;
    });
  }
  ~TlsServer() {
    on_loop(thread.loop(), [this] {
      listener_.reset();
      last_.reset();
      on_accept = nullptr;
      return 0;
    });
  }
  int accepted_count() {
    return on_loop(thread.loop(), [this] { return count_; });
  }
  // The connection that was accepted last.
  net::AcceptedSocket accepted() {
    return on_loop(thread.loop(), [this] {
      REQUIRE(last_);
      return last_->get();
    });
  }
  Result<ByteStream> connect(const std::string& target, const Token& token = kTlsToken) {
    return net::connect_blocking(address, target, token, patience());
  }

  net::LoopThread thread{"server"};
  net::Address address;
  std::function<void(net::AcceptedSocket)> on_accept;  // set on the loop

 private:
  SystemRandom random_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<Promise<net::AcceptedSocket>> last_;
  int count_ = 0;
};

inline UniqueFd raw_connect(const net::Address& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  return socket;
}

inline void send_all(const UniqueFd& socket, std::string_view text) {
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}
inline void send_all(ByteStream& stream, std::string_view text) {
  REQUIRE(troupe::send_all(stream, bytes_of(text), patience()).ok());
}

// Until the other side ends, or `count` bytes.
inline std::string receive(const UniqueFd& socket, std::size_t count = 1u << 20) {
  std::string data;
  while (data.size() < count) {
    pollfd waiting{socket.get(), POLLIN, 0};
    REQUIRE(::poll(&waiting, 1, 10'000) == 1);
    char chunk[4096];
    const ssize_t got =
        ::recv(socket.get(), chunk, std::min(count - data.size(), sizeof(chunk)), 0);
    if (got <= 0) break;
    data.append(chunk, static_cast<std::size_t>(got));
  }
  return data;
}

inline std::string receive(ByteStream& stream, std::size_t count = 1u << 20) {
  std::string data;
  std::array<std::byte, 4096> chunk;
  while (data.size() < count) {
    const StreamIo io =
        stream.read(std::span(chunk).first(std::min(count - data.size(), chunk.size())));
    if (io.state != StreamIo::State::kOpen) break;
    data += as_text(std::span(chunk).first(io.count));
    pollfd waiting{stream.fd(), POLLIN, 0};
    if (io.count == 0) REQUIRE(::poll(&waiting, 1, 10'000) == 1);
  }
  return data;
}

// Passes one connection on to `to` and writes down what goes by.
class Tap {
 public:
  explicit Tap(const net::Address& to) : listening_(::socket(AF_INET, SOCK_STREAM, 0)), to_(to) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    REQUIRE(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    REQUIRE(::listen(listening_.get(), 4) == 0);
    REQUIRE(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0);
    address = {.host = "127.0.0.1", .port = ntohs(at.sin_port), .local_name = {}};
    thread_ = std::thread([this] { pass(); });
  }
  ~Tap() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  // Both sides have ended; what was said is complete.
  void wait() { thread_.join(); }

  net::Address address;
  std::string from_client, from_server;

 private:
  void pass() {
    const UniqueFd client(::accept(listening_.get(), nullptr, nullptr));
    if (!client.valid()) return;
    const UniqueFd server(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(to_.port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(server.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0) return;
    bool client_open = true, server_open = true;
    while (client_open || server_open) {
      pollfd entries[2] = {{client_open ? client.get() : -1, POLLIN, 0},
                           {server_open ? server.get() : -1, POLLIN, 0}};
      if (::poll(entries, 2, 10'000) <= 0) return;
      if (entries[0].revents != 0) client_open = move(client.get(), server.get(), from_client);
      if (entries[1].revents != 0) server_open = move(server.get(), client.get(), from_server);
    }
  }
  static bool move(int from, int to, std::string& log) {
    char chunk[16384];
    const ssize_t got = ::recv(from, chunk, sizeof(chunk), 0);
    if (got <= 0) {
      ::shutdown(to, SHUT_WR);
      return false;
    }
    log.append(chunk, static_cast<std::size_t>(got));
    return ::send(to, chunk, static_cast<std::size_t>(got), MSG_NOSIGNAL) == got;
  }

  UniqueFd listening_;
  const net::Address to_;
  std::thread thread_;
};

// What a client says first inside TLS: the handshake's version, and the target that it wants.
inline std::string target_message(std::string_view target) {
  std::string message;
  for (int i = 0; i < 4; ++i) message += static_cast<char>(net::kHandshakeVersion >> (8 * i));
  message += static_cast<char>(target.size());
  message += '\0';
  return message.append(target);
}

// As `openssl s_client`: believes every server, and shows the certificate it is given.
struct StrangeClient {
  const net::Certified* certificate = nullptr;
  int version = TLS1_3_VERSION;
  std::string server_name;

  // The number of the alert that ended it, 0 when the server let it in, -1 for an end without one.
  int run(const net::Address& address) const {
    ::signal(SIGPIPE, SIG_IGN);  // OpenSSL's own way to write
    const UniqueFd socket = raw_connect(address);
    const net::OpenSslHandle<ssl_ctx_st> context(::SSL_CTX_new(::TLS_client_method()));
    ::SSL_CTX_set_security_level(context.get(), 0);
    ::SSL_CTX_set_min_proto_version(context.get(), version);
    ::SSL_CTX_set_max_proto_version(context.get(), version);
    ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
    if (certificate != nullptr) {
      REQUIRE(::SSL_CTX_use_certificate(context.get(), certificate->certificate.get()) == 1);
      REQUIRE(::SSL_CTX_use_PrivateKey(context.get(), certificate->key.get()) == 1);
    }
    const net::OpenSslHandle<ssl_st> ssl(::SSL_new(context.get()));
    ::SSL_set_fd(ssl.get(), socket.get());
    if (!server_name.empty()) SSL_set_tlsext_host_name(ssl.get(), server_name.c_str());
    ::ERR_clear_error();
    if (::SSL_connect(ssl.get()) != 1) return alert();
    // Whatever it asks for: the server must have ended it before it listens to that.
    const std::string target = target_message("head");
    (void)::SSL_write(ssl.get(), target.data(), static_cast<int>(target.size()));
    char byte;
    ::ERR_clear_error();
    return ::SSL_read(ssl.get(), &byte, 1) == 1 ? 0 : alert();
  }

 private:
  static int alert() {
    const unsigned long error = ::ERR_get_error();
    const int reason = ERR_GET_REASON(error);
    if (ERR_GET_LIB(error) != ERR_LIB_SSL || reason < SSL_AD_REASON_OFFSET) return -1;
    return reason - SSL_AD_REASON_OFFSET;
  }
};

// As `token`, with a certificate of another time.
inline Token with_validity(const Token& token, std::int64_t from_s, std::int64_t until_s) {
  const Token copy(token.secret(), token.security());
  const std::int64_t now_s = SystemClock().unix_time_us() / 1'000'000;
  copy.tls().use(net::TlsContext::make(copy.secret(), now_s,
                                       {.validity = net::Validity{now_s + from_s, now_s + until_s}})
                     .value());
  return copy;
}

}  // namespace troupe::tests
