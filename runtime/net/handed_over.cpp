#include "runtime/net/handed_over.h"

#include <utility>

#include "runtime/base/limits.h"
#include "runtime/net/socket.h"
#include "runtime/net/tls_handshake.h"
#include "runtime/net/tls_stream.h"

namespace troupe::net {

struct HandedOver::Pending {
  UniqueFd socket;
  std::string route;
  std::string peer;
  std::function<void(AcceptedSocket)> on_accept;
  std::unique_ptr<TlsServerHandshake> tls;
  TimerId timer = 0;
};

HandedOver::HandedOver(EventLoop& loop, Token token, Logger log)
    : loop_(loop), token_(std::move(token)), log_(std::move(log)) {}

HandedOver::~HandedOver() {
  while (!pending_.empty()) drop(pending_.begin(), {});
}

void HandedOver::accept(UniqueFd socket, const std::string& route, const std::string& peer,
                        std::function<void(AcceptedSocket)> on_accept) {
  auto tls = TlsServerHandshake::begin(token_, socket.get());
  if (!tls.ok()) {
    log_.error("cannot encrypt connections: {}", tls.status().to_string());
    return;
  }
  if (pending_.size() >= limits::kHandshakePendingMax) {
    drop(pending_.begin(), "others came before its handshake had ended");
  }
  const auto entry = pending_.insert(
      pending_.end(),
      Pending{std::move(socket), route, peer, std::move(on_accept), std::move(*tls), 0});
  entry->timer = loop_.call_after(limits::kHandshakeTimeout,
                                  [this, entry] { drop(entry, "its handshake took too long"); });
  step(entry);
}

void HandedOver::step(PendingList::iterator entry) {
  const auto again = [this, entry] { step(entry); };
  switch (entry->tls->go_on()) {
    case TlsServerHandshake::Step::kWaitRead:
      return loop_.when_readable(entry->socket.get(), again);
    case TlsServerHandshake::Step::kWaitWrite:
      return loop_.when_writable(entry->socket.get(), again);
    case TlsServerHandshake::Step::kRefused:
      return drop(entry, entry->tls->why());
    case TlsServerHandshake::Step::kAuthenticated:
      return authenticated(entry);
  }
}

void HandedOver::authenticated(PendingList::iterator entry) {
  const std::string target = entry->tls->target();
  Status status;
  if (route_of(target) != entry->route) {
    status = error(Code::kInvalidArgument, "the connection was named {} and asks for {}",
                   entry->route, target);
  }
  const bool told = entry->tls->answer(status);
  if (!status.ok() || !told) return drop(entry, status.message());
  loop_.unwatch(entry->socket.get());
  loop_.cancel(entry->timer);
  Pending done = std::move(*entry);
  pending_.erase(entry);
  auto session = done.tls->take_session();
  done.on_accept(
      AcceptedSocket{.socket = make_tls_stream(std::move(done.socket), std::move(session)),
                     .target = target,
                     .peer = std::move(done.peer),
                     .same_node = false,
                     .untouched = false});
}

void HandedOver::drop(PendingList::iterator entry, const std::string& why) {
  if (!why.empty()) {
    ++refused_count_;
    // A flood of strangers must not fill a disk.
    if ((refused_count_ & (refused_count_ - 1)) == 0) {
      log_.warning("refused a connection from {}: {} ({} refused so far)", entry->peer, why,
                   refused_count_);
    }
  }
  loop_.unwatch(entry->socket.get());
  loop_.cancel(entry->timer);
  end_refused(entry->socket.get());
  pending_.erase(entry);
}

}  // namespace troupe::net
