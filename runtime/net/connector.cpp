// The connecting side of transport.h.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/start_thread.h"
#include "runtime/net/handshake.h"
#include "runtime/net/socket.h"
#include "runtime/net/tls_handshake.h"
#include "runtime/net/tls_stream.h"
#include "runtime/net/transport.h"
#include "troupe/detail/mutex.h"

namespace troupe::net {
namespace {

// Between attempts on a local socket whose queue is full (there connect() does not wait).
constexpr auto kLocalRetry = std::chrono::milliseconds(2);

// A name being looked up in a thread of its own, since name servers may take long. The thread holds
// this and nothing else, so that nobody has to wait for it.
struct Lookup {
  Mutex mutex;
  std::optional<Result<std::vector<SocketAddress>>> result TROUPE_GUARDED_BY(mutex);
  UniqueFd done_reader;  // becomes readable when the result is there
  UniqueFd done_writer;
};

class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(EventLoop& loop, const Address& address, const std::string& target, const Token& token,
            Deadline deadline, std::function<void(Result<ByteStream>)> done)
      : loop_(loop),
        address_(address),
        target_(target),
        token_(token),
        deadline_(deadline),
        done_(std::move(done)),
        handshake_(token_, target, address.to_string(), random_) {}

  void start() {
    timer_ = loop_.call_after(deadline_.remaining(loop_.clock().now()),
                              [self = shared_from_this()] { self->too_late(); });
    if (!address_.local_name.empty()) {
      auto local = local_address(address_.local_name);
      if (!local.ok()) return finish(local.status());
      addresses_ = {*local};
      return try_next();
    }
    auto numeric = numeric_address(address_.host, address_.port);
    if (!numeric.ok()) return look_up();
    addresses_ = {*numeric};
    try_next();
  }

 private:
  // --- finding the addresses ---------------------------------------------------------------------

  void look_up() {
    phase_ = "looking up its name";
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) {
      return finish(error(Code::kResourceExhausted, "cannot open a pipe to look up {}: {}",
                          address_.host, std::strerror(errno)));
    }
    lookup_ = std::make_shared<Lookup>();
    lookup_->done_reader = UniqueFd(fds[0]);
    lookup_->done_writer = UniqueFd(fds[1]);
    auto thread = start_thread("look up " + address_.host,
                               [lookup = lookup_, host = address_.host, port = address_.port] {
                                 auto result = resolve(host, port);
                                 MutexLock lock(lookup->mutex);
                                 lookup->result = std::move(result);
                                 lookup->done_writer.reset();
                               });
    if (!thread.ok()) {
      lookup_.reset();
      return finish(thread.status());
    }
    thread->detach();
    loop_.watch_readable(fds[0], [self = shared_from_this()] { self->looked_up(); });
  }

  void looked_up() {
    loop_.unwatch(lookup_->done_reader.get());
    const auto lookup = std::exchange(lookup_, nullptr);
    MutexLock lock(lookup->mutex);
    TROUPE_CHECK(lookup->result.has_value());
    if (!lookup->result->ok()) return finish(lookup->result->status());
    addresses_ = std::move(**lookup->result);
    try_next();
  }

  // --- connecting --------------------------------------------------------------------------------

  void try_next() {
    phase_ = "connecting";
    if (next_ >= addresses_.size()) {
      return finish(failure_.ok()
                        ? error(Code::kUnavailable, "{} has no address", address_.to_string())
                        : failure_);
    }
    const SocketAddress& to = addresses_[next_];
    auto socket = make_socket(to.family(), true);
    if (!socket.ok()) return finish(socket.status());
    socket_ = std::move(*socket);
    set_stream_options(socket_.get(), to.family());
    if (::connect(socket_.get(), to.get(), to.length) == 0) return connected();
    if (errno == EINPROGRESS || errno == EINTR) {
      loop_.when_writable(socket_.get(), [self = shared_from_this()] { self->attempted(); });
    } else if (errno == EAGAIN) {
      socket_.reset();
      retry_ = loop_.call_after(kLocalRetry, [self = shared_from_this()] { self->try_next(); });
    } else {
      attempt_failed(errno);
    }
  }

  void attempted() {
    int failure = 0;
    socklen_t length = sizeof(failure);
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure != 0) return attempt_failed(failure);
    connected();
  }

  void attempt_failed(int errno_value) {
    loop_.unwatch(socket_.get());
    socket_.reset();
    failure_ =
        error(Code::kUnavailable, "cannot connect to {}: {}", address_.to_string(),
              errno_value == ECONNREFUSED ? "nobody listens there" : std::strerror(errno_value));
    ++next_;
    try_next();
  }

  // --- the handshake -----------------------------------------------------------------------------

  void connected() {
    phase_ = "waiting for its answer";
    set_near_options(socket_.get());
    if (is_encrypted(token_.security(), addresses_[next_])) return begin_tls();
    if (!send(handshake_.hello())) return;
    loop_.watch_readable(socket_.get(), [self = shared_from_this()] { self->on_readable(); });
  }

  void on_readable() {
    while (socket_.valid()) {
      const std::span<std::byte> space = handshake_.space();
      const ssize_t count = ::recv(socket_.get(), space.data(), space.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) return finish(handshake_.closed());
      auto outcome = handshake_.filled(static_cast<std::size_t>(count));
      if (!outcome.ok()) return finish(outcome.status());
      if (outcome->done) {
        loop_.unwatch(socket_.get());
        set_blocking(socket_.get(), true);
        return finish(ByteStream(std::move(socket_)));
      }
      if (!outcome->reply.empty() && !send(outcome->reply)) return;
    }
  }

  void begin_tls() {
    auto begun = TlsClientHandshake::begin(token_, target_, address_.to_string(), socket_.get());
    if (!begun.ok()) return finish(begun.status());
    tls_ = std::move(*begun);
    step_tls();
  }

  void step_tls() {
    if (!tls_ || !socket_.valid()) return;
    const auto state = tls_->go_on();
    if (!state.ok()) return finish(state.status());
    const auto again = [self = shared_from_this()] { self->step_tls(); };
    if (*state == TlsState::kWaitRead) return loop_.when_readable(socket_.get(), again);
    if (*state == TlsState::kWaitWrite) return loop_.when_writable(socket_.get(), again);
    loop_.unwatch(socket_.get());
    auto session = tls_->take_session();
    finish(make_tls_stream(std::move(socket_), std::move(session)));
  }

  bool send(const std::vector<std::byte>& bytes) {
    const ssize_t count =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count == static_cast<ssize_t>(bytes.size())) return true;
    finish(handshake_.closed());
    return false;
  }

  // --- the end -----------------------------------------------------------------------------------

  void too_late() {
    timer_ = 0;
    finish(error(Code::kDeadlineExceeded, "no connection to {} within the deadline, while {}",
                 address_.to_string(), phase_));
  }

  void finish(Result<ByteStream> result) {
    const auto self = shared_from_this();
    if (lookup_) loop_.unwatch(std::exchange(lookup_, nullptr)->done_reader.get());
    if (socket_.valid()) loop_.unwatch(socket_.get());
    tls_.reset();
    socket_.reset();
    if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
    if (retry_ != 0) loop_.cancel(std::exchange(retry_, 0));
    const auto done = std::exchange(done_, nullptr);
    if (done) done(std::move(result));
  }

  EventLoop& loop_;
  const Address address_;
  const std::string target_;
  const Token token_;
  const Deadline deadline_;
  std::function<void(Result<ByteStream>)> done_;
  SystemRandom random_;
  ClientHandshake handshake_;
  std::unique_ptr<TlsClientHandshake> tls_;  // instead of it
  std::shared_ptr<Lookup> lookup_;
  std::vector<SocketAddress> addresses_;
  std::size_t next_ = 0;
  UniqueFd socket_;
  Status failure_;  // of the attempt before
  const char* phase_ = "starting";
  TimerId timer_ = 0;
  TimerId retry_ = 0;
};

Status check_target_name(const std::string& target) {
  if (!target.empty() && target.size() <= limits::kHandshakeTargetBytesMax) return {};
  return error(Code::kInvalidArgument, "a target's name has 1 to {} bytes, not {}",
               limits::kHandshakeTargetBytesMax, target.size());
}

}  // namespace

void connect(EventLoop& loop, const Address& address, const std::string& target, const Token& token,
             Deadline deadline, std::function<void(Result<ByteStream>)> done) {
  if (const Status status = check_target_name(target); !status.ok()) {
    loop.post([status, done = std::move(done)] { done(status); });
    return;
  }
  const auto connector =
      std::make_shared<Connector>(loop, address, target, token, deadline, std::move(done));
  loop.post([connector] { connector->start(); });
}

Result<ByteStream> connect_blocking(const Address& address, const std::string& target,
                                    const Token& token, Deadline deadline) {
  const auto loop = make_event_loop();
  std::optional<Result<ByteStream>> result;
  connect(*loop, address, target, token, deadline, [&](Result<ByteStream> connected) {
    result.emplace(std::move(connected));
    loop->stop();
  });
  loop->run();
  TROUPE_CHECK(result.has_value());
  return std::move(*result);
}

}  // namespace troupe::net
