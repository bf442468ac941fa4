#pragma once
// The TLS of connections that a node's listener handed over untouched (AcceptedSocket::untouched),
// done in the process that they are for.

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/net/credentials.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "troupe/log.h"
#include "troupe/unique_fd.h"

namespace troupe::net {

// Loop thread. Peers are strangers until they have proved themselves: the limits are a listener's
// (limits.h).
class HandedOver {
 public:
  // The loop, on which the handshakes are made, must outlive this.
  HandedOver(EventLoop& loop, Token token, Logger log);
  ~HandedOver();  // drops unfinished handshakes
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  // `on_accept` follows, with the plain bytes and the whole target, when the peer has proved itself
  // and its target begins with `route`.
  void accept(UniqueFd socket, const std::string& route, const std::string& peer,
              std::function<void(AcceptedSocket)> on_accept);

 private:
  struct Pending;
  using PendingList = std::list<Pending>;
  void step(PendingList::iterator entry);
  void authenticated(PendingList::iterator entry);
  void drop(PendingList::iterator entry, const std::string& why);

  EventLoop& loop_;
  const Token token_;
  const Logger log_;
  PendingList pending_;  // oldest first
  std::uint64_t refused_count_ = 0;
};

}  // namespace troupe::net
