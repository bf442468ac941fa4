// The listening side of transport.h.

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/net/client_hello.h"
#include "runtime/net/handshake.h"
#include "runtime/net/socket.h"
#include "runtime/net/tls_handshake.h"
#include "runtime/net/tls_stream.h"
#include "runtime/net/transport.h"

namespace troupe::net {
namespace {

constexpr int kAcceptsPerWakeUp = 64;
constexpr int kBacklog = 1024;
// After descriptors ran out: how long to wait for some to become free.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

class SocketListener final : public Listener {
 public:
  SocketListener(EventLoop& loop, const ListenOptions& options, const Token& token, Random& random,
                 const Logger& log, std::function<void(AcceptedSocket)> on_accept,
                 TargetCheck check_target)
      : loop_(loop),
        options_(options),
        token_(token),
        random_(random),
        log_(log),
        on_accept_(std::move(on_accept)),
        check_target_(std::move(check_target)) {}

  ~SocketListener() override {
    while (!pending_.empty()) drop(pending_.begin());
    for (const UniqueFd& socket : sockets_) loop_.unwatch(socket.get());
    if (pause_ != 0) loop_.cancel(pause_);
  }

  Status open() {
    if (options_.host.empty() && options_.local_name.empty()) {
      return error(Code::kInvalidArgument, "give an address or a local name to listen on");
    }
    if (!options_.host.empty()) {
      if (options_.listening_fd >= 0) {
        TROUPE_RETURN_IF_ERROR(adopt(options_.listening_fd));
      } else {
        const auto at = TROUPE_TRY(numeric_address(options_.host, options_.port));
        TROUPE_RETURN_IF_ERROR(bind_one(at));
      }
      tcp_fd_ = sockets_.back().get();
      SocketAddress taken;
      taken.length = sizeof(taken.storage);
      if (::getsockname(sockets_.back().get(), taken.get(), &taken.length) != 0) {
        return errno_status(errno, "find the port of", options_.host);
      }
      address_.host = options_.host;
      address_.port = port_of(taken);
    }
    if (!options_.local_name.empty()) {
      TROUPE_RETURN_IF_ERROR(bind_one(TROUPE_TRY(local_address(options_.local_name))));
    }
    watch_sockets();
    return {};
  }

  const Address& address() const override { return address_; }
  int tcp_fd() const override { return tcp_fd_; }

 private:
  struct Pending {
    Pending(const Token& token, Random& random, bool encrypted)
        : encrypted(encrypted), handshake(token, random, encrypted) {}
    const bool encrypted;  // it must be
    UniqueFd socket;
    std::string peer;
    bool same_node = false;
    TimerId timer = 0;
    bool looked_at = false;        // its first byte says what it is
    std::size_t bytes_wanted = 0;  // of its first TLS message, before it is looked at again
    ServerHandshake handshake;
    // TLS instead; null until it has been looked at.
    std::unique_ptr<TlsServerHandshake> tls;
    std::string route;  // of its server name
  };
  using PendingList = std::list<Pending>;

  Status bind_one(const SocketAddress& at) {
    const bool local = at.family() == AF_UNIX;
    const std::string name =
        local ? "local socket " + options_.local_name : troupe::net::to_string(at);
    UniqueFd socket = TROUPE_TRY(make_socket(at.family(), true));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket.get(), at.get(), at.length) != 0 || ::listen(socket.get(), kBacklog) != 0) {
      return bind_status(errno, name, local);
    }
    sockets_.push_back(std::move(socket));
    return {};
  }

  Status adopt(int listening) {
    int accepts = 0;
    socklen_t length = sizeof accepts;
    UniqueFd socket(::fcntl(listening, F_DUPFD_CLOEXEC, 0));
    if (!socket.valid() ||
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &accepts, &length) != 0 ||
        accepts == 0) {
      return Status(Code::kInvalidArgument, "what should be a listening socket is none");
    }
    sockets_.push_back(std::move(socket));
    return {};
  }

  static Status bind_status(int errno_value, const std::string& name, bool local) {
    if (errno_value == EADDRINUSE) {
      return error(Code::kAlreadyExists, "{} is taken{}", name,
                   local ? ": another node with this id runs here"
                         : ": choose another port, or 0 for a free one");
    }
    if (errno_value == EADDRNOTAVAIL) {
      return error(Code::kInvalidArgument, "{}: this machine has no such address", name);
    }
    return errno_status(errno_value, "listen on", name);
  }

  // --- accepting ---------------------------------------------------------------------------------

  void watch_sockets() {
    for (const UniqueFd& socket : sockets_) {
      const int fd = socket.get();
      loop_.watch_readable(fd, [this, fd] { accept_some(fd); });
    }
  }

  void accept_some(int listening) {
    for (int i = 0; i < kAcceptsPerWakeUp; ++i) {
      SocketAddress from;
      from.length = sizeof(from.storage);
      UniqueFd socket(::accept4(listening, from.get(), &from.length, SOCK_CLOEXEC));
      if (socket.valid()) {
        begin(std::move(socket), from);
        continue;
      }
      // A connection that broke before it was accepted is the next call's business.
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) out_of_descriptors(errno);
      return;
    }
  }

  // Strangers must not be able to hold our descriptors: the oldest handshake goes. Without one, the
  // descriptors are used by others, and we ask again a little later.
  void out_of_descriptors(int errno_value) {
    log_.warning("cannot accept connections on {}: {}", address_.to_string(),
                 std::strerror(errno_value));
    if (!pending_.empty()) drop(pending_.begin());
    for (const UniqueFd& socket : sockets_) loop_.unwatch(socket.get());
    pause_ = loop_.call_after(kAcceptPause, [this] {
      pause_ = 0;
      watch_sockets();
    });
  }

  void begin(UniqueFd socket, const SocketAddress& from) {
    const bool local = from.family() == AF_UNIX;
    if (local && peer_uid(socket.get()) != static_cast<long>(::geteuid())) {
      note_refusal("local", "it belongs to another user");
      return;
    }
    set_stream_options(socket.get(), from.family());
    set_near_options(socket.get());
    if (pending_.size() >= options_.handshakes_max) drop(pending_.begin());
    const auto entry =
        pending_.emplace(pending_.end(), token_, random_, is_encrypted(token_.security(), from));
    const int fd = socket.get();
    entry->socket = std::move(socket);
    entry->peer = local ? "local" : troupe::net::to_string(from);
    entry->same_node = local;
    entry->timer = loop_.call_after(options_.handshake_timeout, [this, entry] {
      note_refusal(entry->peer, "its handshake took too long");
      drop(entry);
    });
    loop_.watch_readable(fd, [this, entry] { on_readable(entry); });
  }

  void drop(PendingList::iterator entry) {
    loop_.unwatch(entry->socket.get());
    loop_.cancel(entry->timer);
    pending_.erase(entry);
  }

  // --- one handshake -----------------------------------------------------------------------------

  void on_readable(PendingList::iterator entry) {
    if (entry->tls) return step_tls(entry);
    if (!entry->looked_at && !look(entry)) return;
    while (true) {
      const std::span<std::byte> space = entry->handshake.space();
      const ssize_t count = ::recv(entry->socket.get(), space.data(), space.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {
        drop(entry);
        return;
      }
      auto outcome = entry->handshake.filled(static_cast<std::size_t>(count));
      switch (outcome.step) {
        case ServerHandshake::Step::kGoOn:
          if (!reply(*entry, outcome.reply)) {
            drop(entry);
            return;
          }
          break;
        case ServerHandshake::Step::kRefused:
          refuse(entry, outcome.reply, outcome.why);
          return;
        case ServerHandshake::Step::kAuthenticated:
          authenticated(entry);
          return;
      }
    }
  }

  // At what a peer says first, which stays in its socket. True: it is not TLS, go on reading.
  bool look(PendingList::iterator entry) {
    first_bytes_.resize(limits::kClientHelloBytesMax);
    ssize_t count;
    do {
      count = ::recv(entry->socket.get(), first_bytes_.data(), first_bytes_.size(),
                     MSG_PEEK | MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (count <= 0) {
      drop(entry);
      return false;
    }
    const auto bytes =
        std::span<const std::byte>(first_bytes_).first(static_cast<std::size_t>(count));
    if (bytes[0] != kTlsFirstByte) {
      entry->looked_at = true;
      return true;
    }
    if (token_.security() == Security::kInsecure) {
      // The peer must find its own words read, or closing would destroy the answer.
      (void)::recv(entry->socket.get(), first_bytes_.data(), first_bytes_.size(), MSG_DONTWAIT);
      refuse(entry, handshake_preamble(), "it encrypts its connection; this was started insecure");
      return false;
    }
    on_first_message(entry, bytes);
    return false;
  }

  void on_first_message(PendingList::iterator entry, std::span<const std::byte> bytes) {
    const ClientHello hello = parse_client_hello(bytes);
    switch (hello.state) {
      case ClientHello::State::kIncomplete:
        if (entry->bytes_wanted > bytes.size() && has_ended(entry->socket.get())) {
          return drop(entry);
        }
        entry->bytes_wanted = hello.bytes_wanted;
        set_low_water(entry->socket.get(), hello.bytes_wanted);
        return;
      case ClientHello::State::kMalformed:
        return refuse(entry, {}, "its first message is not TLS's");
      case ClientHello::State::kComplete:
        break;
    }
    entry->looked_at = true;
    set_low_water(entry->socket.get(), 1);
    entry->route = route_of_server_name(hello.server_name);
    // A target that is not there is refused by us, once the peer has proved itself.
    if (!entry->route.empty() && options_.hand_over && options_.hand_over(entry->route) &&
        (!check_target_ || check_target_(entry->route).ok())) {
      const std::string route = entry->route;
      return give_away(entry, route, true, nullptr);
    }
    auto tls = TlsServerHandshake::begin(token_, entry->socket.get());
    if (!tls.ok()) {
      log_.error("cannot encrypt connections: {}", tls.status().to_string());
      return drop(entry);
    }
    entry->tls = std::move(*tls);
    step_tls(entry);
  }

  void step_tls(PendingList::iterator entry) {
    switch (entry->tls->go_on()) {
      case TlsServerHandshake::Step::kWaitRead:
        return;
      case TlsServerHandshake::Step::kWaitWrite:
        loop_.when_writable(entry->socket.get(), [this, entry] { step_tls(entry); });
        return;
      case TlsServerHandshake::Step::kRefused:
        return refuse(entry, {}, entry->tls->why());
      case TlsServerHandshake::Step::kAuthenticated:
        break;
    }
    const std::string target = entry->tls->target();
    const Status status = check_tls_target(*entry, target);
    const bool told = entry->tls->answer(status);
    if (!status.ok()) return refuse(entry, {}, status.message());
    if (!told) return drop(entry);
    give_away(entry, target, false, entry->tls->take_session());
  }

  Status check_tls_target(const Pending& entry, const std::string& target) const {
    if (!entry.route.empty() && route_of(target) != entry.route) {
      return error(Code::kInvalidArgument, "the connection was named {} and asks for {}",
                   entry.route, target);
    }
    TROUPE_RETURN_IF_ERROR(check_target_ ? check_target_(target) : Status());
    if (options_.hand_over && options_.hand_over(route_of(target))) {
      // It was not there when the connection came, or the connection did not name it.
      return error(Code::kUnavailable, "{} was not ready to be connected to: try again", target);
    }
    return {};
  }

  // A few hundred bytes into an empty socket buffer: who does not take them is dropped.
  static bool reply(const Pending& pending, const std::vector<std::byte>& bytes) {
    return ::send(pending.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  void refuse(PendingList::iterator entry, const std::vector<std::byte>& bytes,
              const std::string& why) {
    note_refusal(entry->peer, why);
    if (!bytes.empty()) (void)reply(*entry, bytes);
    end_refused(entry->socket.get());
    drop(entry);
  }

  void authenticated(PendingList::iterator entry) {
    const std::string target = entry->handshake.target();
    const Status status = check_target_ ? check_target_(target) : Status();
    const auto answer = ServerHandshake::answer(status);
    if (!status.ok()) {
      // It belongs to the cluster and is told itself, such as that an actor has ended.
      log_.debug("{} asked for {}: {}", entry->peer, target, status.message());
      (void)reply(*entry, answer);
      end_refused(entry->socket.get());
      return drop(entry);
    }
    if (!reply(*entry, answer)) {
      drop(entry);
      return;
    }
    give_away(entry, target, false, nullptr);
  }

  // To on_accept_. With a session: what it encrypts, as plain bytes.
  void give_away(PendingList::iterator entry, const std::string& target, bool untouched,
                 std::unique_ptr<TlsSession> session) {
    loop_.unwatch(entry->socket.get());
    UniqueFd socket = std::move(entry->socket);
    if (!session) set_blocking(socket.get(), true);
    AcceptedSocket accepted{.socket = session
                                          ? make_tls_stream(std::move(socket), std::move(session))
                                          : ByteStream(std::move(socket)),
                            .target = target,
                            .peer = entry->peer,
                            .same_node = entry->same_node,
                            .untouched = untouched};
    loop_.cancel(entry->timer);
    pending_.erase(entry);
    // May destroy this listener: nothing of it is touched afterwards.
    const auto on_accept = on_accept_;
    on_accept(std::move(accepted));
  }

  // At the first, second, fourth, … refusal: a flood of strangers must not fill a disk.
  void note_refusal(const std::string& peer, const std::string& why) {
    ++refused_count_;
    if ((refused_count_ & (refused_count_ - 1)) != 0) return;
    log_.warning("refused a connection from {}: {} ({} refused so far)", peer, why, refused_count_);
  }

  EventLoop& loop_;
  const ListenOptions options_;
  const Token token_;
  Random& random_;
  const Logger log_;
  const std::function<void(AcceptedSocket)> on_accept_;
  const TargetCheck check_target_;
  Address address_;
  std::vector<UniqueFd> sockets_;
  int tcp_fd_ = -1;
  PendingList pending_;                 // oldest first
  std::vector<std::byte> first_bytes_;  // of the connection that is being looked at
  TimerId pause_ = 0;
  std::uint64_t refused_count_ = 0;
};

}  // namespace

ListenOptions::ListenOptions()
    : handshake_timeout(limits::kHandshakeTimeout), handshakes_max(limits::kHandshakePendingMax) {}

Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const ListenOptions& options,
                                         const Token& token, Random& random, const Logger& log,
                                         std::function<void(AcceptedSocket)> on_accept,
                                         TargetCheck check_target) {
  TROUPE_CHECK(loop.in_loop_thread());
  if (token.size() < kTokenBytesMin) {
    return error(Code::kInvalidArgument, "a token has at least {} bytes, not {}", kTokenBytesMin,
                 token.size());
  }
  auto listener = std::make_unique<SocketListener>(loop, options, token, random, log,
                                                   std::move(on_accept), std::move(check_target));
  TROUPE_RETURN_IF_ERROR(listener->open());
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace troupe::net
