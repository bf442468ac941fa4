#include "runtime/net/presence.h"

#include <errno.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "runtime/net/socket.h"

namespace troupe::net {
namespace {

// After a connection that was taken and ended, or that failed otherwise.
constexpr Duration kAgain = std::chrono::milliseconds(50);

}  // namespace

struct PresenceProbe::State : std::enable_shared_from_this<PresenceProbe::State> {
  State(EventLoop& l, SocketAddress a, Deadline u, std::function<void()> g)
      : loop(l), address(a), until(u), on_gone(std::move(g)) {}

  void attempt() {
    if (!on_gone || until.passed(loop.clock().now())) return;
    auto made = make_socket(address.family(), true);
    if (!made.ok()) return later();
    socket = std::move(*made);
    if (::connect(socket.get(), address.get(), address.length) == 0) return connected();
    if (errno != EINPROGRESS && errno != EINTR) return failed(errno);
    loop.when_writable(socket.get(), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->attempted();
    });
  }

  void attempted() {
    if (!socket.valid()) return;
    int problem = 0;
    socklen_t length = sizeof problem;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
    if (problem != 0) return failed(problem);
    connected();
  }

  // Whoever is there takes it, or leaves it in its queue; when it ends, so may have they.
  void connected() {
    loop.when_readable(socket.get(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->socket.valid()) return;
      self->drop();
      self->later();
    });
  }

  void failed(int problem) {
    drop();
    if (problem != ECONNREFUSED) return later();
    if (const auto gone = std::exchange(on_gone, nullptr)) gone();
  }

  void later() {
    loop.call_after(kAgain, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->attempt();
    });
  }

  void drop() {
    if (!socket.valid()) return;
    loop.unwatch(socket.get());
    socket.reset();
  }

  EventLoop& loop;
  const SocketAddress address;
  const Deadline until;
  std::function<void()> on_gone;
  UniqueFd socket;
};

PresenceProbe::PresenceProbe(EventLoop& loop, const Address& address, Deadline until,
                             std::function<void()> on_gone) {
  auto numeric = numeric_address(address.host, address.port);
  if (!numeric.ok()) return;  // a name would have to be looked up: nothing is said
  state_ = std::make_shared<State>(loop, *numeric, until, std::move(on_gone));
  loop.post([weak = std::weak_ptr(state_)] {
    if (const auto self = weak.lock()) self->attempt();
  });
  loop.call_after(until.remaining(loop.clock().now()), [weak = std::weak_ptr(state_)] {
    if (const auto self = weak.lock()) self->drop();
  });
}

PresenceProbe::~PresenceProbe() {
  if (state_) state_->drop();
}

}  // namespace troupe::net
