#include "runtime/net/tls_relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/net/socket.h"

namespace troupe::net {
namespace {

// What is carried at once in one direction: four full TLS records.
constexpr std::size_t kPieceBytes = 64u << 10;
// Pieces at one turn of the loop, so that one stream does not keep others waiting.
constexpr int kPiecesPerTurn = 16;
// After the user has ended its side, how often it is looked whether it is there at all.
constexpr auto kGoneCheck = std::chrono::seconds(1);
// For what was written last, when the loop goes.
constexpr auto kLastBytesTime = std::chrono::milliseconds(500);

// Bytes on their way, and memory only while there are any.
class Piece {
 public:
  bool empty() const { return begin_ == end_; }
  std::span<std::byte> space() {
    if (bytes_.empty()) bytes_.resize(kPieceBytes);
    return bytes_;
  }
  void filled(std::size_t count) {
    begin_ = 0;
    end_ = count;
  }
  std::span<const std::byte> rest() const {
    return std::span(bytes_).subspan(begin_, end_ - begin_);
  }
  void taken(std::size_t count) { begin_ += count; }
  void drop() { begin_ = end_ = 0; }
  void release() {
    if (empty()) bytes_ = {};
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// `outer_` is the TCP socket, `inner_` this side's end of the pair; out: from the user to the peer.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  Relay(EventLoop& loop, UniqueFd outer, UniqueFd inner, std::unique_ptr<TlsSession> session)
      : loop_(loop),
        outer_(std::move(outer)),
        inner_(std::move(inner)),
        session_(std::move(session)) {
    session_->read_ahead();
  }
  ~Relay() { send_last(); }

  // Loop thread, as everything but the destructor.
  void run() {
    if (!outer_.valid()) return;
    outer_readable_ = outer_writable_ = inner_readable_ = inner_writable_ = false;
    bool busy = true;
    for (int i = 0; busy && i < kPiecesPerTurn; ++i) {
      busy = send_out();
      busy = take_in() || busy;
    }
    if (out_ended_ && in_ended_) return end();
    if (busy) {
      loop_.post([self = shared_from_this()] { self->run(); });
      return;
    }
    out_.release();
    in_.release();
    wait();
  }

 private:
  // --- from the user to the peer: true when something was done -----------------------------------

  bool send_out() {
    if (out_ended_) return false;
    if (out_.empty()) {
      const Got got = read_user();
      if (got == Got::kNothing) inner_readable_ = true;
      if (got == Got::kEnd) user_ended();
      if (got != Got::kBytes) return got == Got::kEnd;
    }
    const TlsIo io = session_->write(out_.rest());
    switch (io.state) {
      case TlsState::kDone:
        out_.taken(io.count);
        return true;
      case TlsState::kWaitRead:
        outer_readable_ = true;
        return false;
      case TlsState::kWaitWrite:
        outer_writable_ = true;
        return false;
      default:
        break_off();
        return true;
    }
  }

  enum class Got { kBytes, kNothing, kEnd };

  Got read_user() {
    const auto space = out_.space();
    const ssize_t count = ::recv(inner_.get(), space.data(), space.size(), MSG_DONTWAIT);
    if (count > 0) out_.filled(static_cast<std::size_t>(count));
    if (count > 0) return Got::kBytes;
    return count < 0 && (would_block() || errno == EINTR) ? Got::kNothing : Got::kEnd;
  }

  void user_ended() {
    session_->end_writing();
    ::shutdown(outer_.get(), SHUT_WR);
    out_ended_ = true;
    if (user_is_gone()) {
      in_ended_ = true;
    } else {
      look_again();
    }
  }

  // --- from the peer to the user -----------------------------------------------------------------

  bool take_in() {
    if (in_ended_) return false;
    if (in_.empty() && !read_peer()) return in_ended_;
    const auto rest = in_.rest();
    const ssize_t count =
        ::send(inner_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      in_.taken(static_cast<std::size_t>(count));
      return true;
    }
    if (would_block() || errno == EINTR) {
      inner_writable_ = true;
      return false;
    }
    // The user does not read any more; what it wrote still goes out.
    in_.drop();
    in_ended_ = true;
    return true;
  }

  // As many records as there are, up to a piece: the user is woken once for them.
  bool read_peer() {
    const auto space = in_.space();
    std::size_t have = 0;
    TlsIo io;
    while (have < space.size()) {
      io = session_->read(space.subspan(have));
      if (io.state != TlsState::kDone) break;
      have += io.count;
    }
    in_.filled(have);
    // What stopped it, an end or a failure too, comes again when these have gone.
    if (have > 0) return true;
    switch (io.state) {
      case TlsState::kDone:
        return true;
      case TlsState::kWaitRead:
        outer_readable_ = true;
        return false;
      case TlsState::kWaitWrite:
        outer_writable_ = true;
        return false;
      case TlsState::kClosed:
        ::shutdown(inner_.get(), SHUT_WR);
        in_ended_ = true;
        return false;
      case TlsState::kBroken:
        break_off();
        return false;
    }
    return false;
  }

  // --- waiting and ending ------------------------------------------------------------------------

  void wait() {
    const auto again = [self = shared_from_this()] { self->run(); };
    if (outer_readable_) loop_.when_readable(outer_.get(), again);
    if (outer_writable_) loop_.when_writable(outer_.get(), again);
    if (inner_readable_) loop_.when_readable(inner_.get(), again);
    if (inner_writable_) loop_.when_writable(inner_.get(), again);
  }

  void break_off() {
    ::shutdown(inner_.get(), SHUT_WR);
    in_.drop();
    out_.drop();
    in_ended_ = out_ended_ = true;
  }

  // The descriptor is closed, as opposed to shut down for writing.
  bool user_is_gone() const {
    pollfd entry{inner_.get(), 0, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
  }

  // Nothing tells that a user who had ended its side goes altogether, until the peer sends.
  void look_again() {
    loop_.call_after(kGoneCheck, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->outer_.valid()) return;
      if (!self->user_is_gone()) return self->look_again();
      self->in_ended_ = true;
      self->end();
    });
  }

  void end() {
    loop_.unwatch(outer_.get());
    loop_.unwatch(inner_.get());
    outer_.reset();
    inner_.reset();
  }

  // Without a loop. Errors end it: nobody is left to hear of them.
  void send_last() {
    if (!outer_.valid() || out_ended_) return;
    const Deadline deadline = Deadline::after(kLastBytesTime);
    while (!out_.empty() || read_user() == Got::kBytes) {
      const TlsIo io = session_->write(out_.rest());
      if (io.state == TlsState::kDone) {
        out_.taken(io.count);
        continue;
      }
      if (io.state != TlsState::kWaitWrite || deadline.passed()) return;
      pollfd entry{outer_.get(), POLLOUT, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      (void)::poll(&entry, 1, static_cast<int>(left.count()));
    }
    session_->end_writing();
  }

  EventLoop& loop_;
  UniqueFd outer_;
  UniqueFd inner_;
  std::unique_ptr<TlsSession> session_;
  Piece out_;
  Piece in_;
  bool out_ended_ = false;
  bool in_ended_ = false;
  // What this turn found itself waiting for.
  bool outer_readable_ = false;
  bool outer_writable_ = false;
  bool inner_readable_ = false;
  bool inner_writable_ = false;
};

}  // namespace

Result<UniqueFd> relay_tls(EventLoop& loop, UniqueFd socket, std::unique_ptr<TlsSession> session) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return error(Code::kResourceExhausted, "cannot open a pair of sockets for TLS: {}",
                 std::strerror(errno));
  }
  UniqueFd user(ends[0]);
  UniqueFd inner(ends[1]);
  set_blocking(socket.get(), false);
  set_blocking(inner.get(), false);
  const auto relay =
      std::make_shared<Relay>(loop, std::move(socket), std::move(inner), std::move(session));
  loop.post([relay] { relay->run(); });
  return user;
}

}  // namespace troupe::net
