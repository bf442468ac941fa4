// The listening side of transport.h.

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/net/handshake.h"
#include "runtime/net/socket.h"

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
      const auto at = TROUPE_TRY(numeric_address(options_.host, options_.port));
      TROUPE_RETURN_IF_ERROR(bind_one(at));
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

 private:
  struct Pending {
    Pending(const Token& token, Random& random) : handshake(token, random) {}
    UniqueFd socket;
    std::string peer;
    bool same_node = false;
    TimerId timer = 0;
    ServerHandshake handshake;
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
    if (pending_.size() >= options_.handshakes_max) drop(pending_.begin());
    const auto entry = pending_.emplace(pending_.end(), token_, random_);
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

  // A few hundred bytes into an empty socket buffer: who does not take them is dropped.
  static bool reply(const Pending& pending, const std::vector<std::byte>& bytes) {
    return ::send(pending.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  void refuse(PendingList::iterator entry, const std::vector<std::byte>& bytes,
              const std::string& why) {
    note_refusal(entry->peer, why);
    (void)reply(*entry, bytes);
    ::shutdown(entry->socket.get(), SHUT_WR);
    drop(entry);
  }

  void authenticated(PendingList::iterator entry) {
    const std::string target = entry->handshake.target();
    const Status status = check_target_ ? check_target_(target) : Status();
    const auto answer = ServerHandshake::answer(status);
    if (!status.ok()) {
      refuse(entry, answer, status.message());
      return;
    }
    if (!reply(*entry, answer)) {
      drop(entry);
      return;
    }
    loop_.unwatch(entry->socket.get());
    set_blocking(entry->socket.get(), true);
    AcceptedSocket accepted{.socket = std::move(entry->socket),
                            .target = target,
                            .peer = entry->peer,
                            .same_node = entry->same_node};
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
  PendingList pending_;  // oldest first
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
