#pragma once
// An encrypted connection as a plain descriptor: one end of a socket pair, whose other end a loop
// joins with the TLS session. Private to this folder and its tests.
//
// Whoever has the descriptor needs to know nothing of TLS: it reads, writes, polls, half closes and
// closes it like a socket, in blocking mode or not. The price is a copy in each direction and the
// loop's turn between; README.md has figures.

#include <memory>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/tls_session.h"

namespace troupe::net {

// Takes over the socket, on which nothing is watched any more, and its session. The loop carries
// the traffic until both sides have ended; when the loop goes first, what was written into the
// descriptor until then is still sent, for at most half a second. Any thread. kResourceExhausted
// when descriptors run out.
Result<UniqueFd> relay_tls(EventLoop& loop, UniqueFd socket, std::unique_ptr<TlsSession> session);

}  // namespace troupe::net
