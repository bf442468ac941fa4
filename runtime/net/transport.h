#pragma once
// Listening on a node's one port and connecting to others', with mutual authentication.
//
// A connection names its target when it is made ("head", "node", "actor/ID", "actor/ID/PURPOSE").
// Inside a machine (Unix sockets, loopback addresses) and with Security::kInsecure the listener
// authenticates first, by a challenge with a fresh nonce from both sides, reading exact lengths and
// nothing more, and then gives the bare socket and its target to `on_accept`: no data passes
// through it afterwards, and the socket may be handed to another process.
//
// Between machines both sides do TLS 1.3 with certificates of the cluster's authority
// (credentials.h). The listener looks at the first message, which stays in the socket, and either
// makes the connection itself or, for targets of other processes (ListenOptions::hand_over), gives
// on the untouched socket: the other process makes it (handed_over.h). Callers see none of this:
// they get a stream of the plain bytes, which encrypts as it is written and read.
//
// Before authentication a peer costs at most 64 KiB and 5 s (limits.h), and nothing it sent is
// parsed but fixed-size fields and the lengths in its first TLS message.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/credentials.h"
#include "runtime/net/event_loop.h"
#include "troupe/address.h"
#include "troupe/byte_stream.h"
#include "troupe/log.h"

namespace troupe::net {

using troupe::Address;

// Closed at exec, TCP_NODELAY and keep-alive set. A plain one is in blocking mode, and not a byte
// after the handshake has been read.
struct AcceptedSocket {
  ByteStream socket;
  std::string target;
  std::string peer;        // "10.0.0.2:41234" or "local"
  bool same_node = false;  // the peer is a process of this machine, on a Unix socket
  // TLS has yet to be done, by the process whose target it is (handed_over.h). `target` is its
  // route alone ("actor/ID"), said by a stranger; not a byte has been read.
  bool untouched = false;
};

struct ListenOptions {
  ListenOptions();
  std::string host;  // interface to bind, numeric; empty: only the local socket
  // A TCP socket that listens already, in place of one on `host` and `port`: it is duplicated, and
  // what waits in its queue is taken over. -1: none.
  int listening_fd = -1;
  std::uint16_t port = 0;  // 0: a free one; a taken one is kAlreadyExists
  // Abstract Unix socket to listen on besides, for processes of the same user; empty: none.
  std::string local_name;
  Duration handshake_timeout;  // default: limits::kHandshakeTimeout
  // Handshakes under way; beyond it the oldest is dropped. Default: limits::kHandshakePendingMax.
  std::size_t handshakes_max;
  // Whether another process does the TLS of this route ("actor/ID"). Empty: none does.
  std::function<bool(const std::string& route)> hand_over;
};

class Listener {
 public:
  // Stops listening and drops unfinished handshakes. Loop thread; allowed inside on_accept.
  virtual ~Listener() = default;
  // With the port that was taken. `local_name` is empty: it is not the way for other nodes.
  virtual const Address& address() const = 0;
  // The TCP socket, which stays the listener's; -1 where it has none.
  virtual int tcp_fd() const = 0;
};

// Whether an authenticated peer may have this target: ok, or the failure that it is told (its code
// and the first 512 bytes of the message), such as kNotFound. Also asked about the route of a
// stranger that is to be handed over: what it finds wrong is told after authentication.
using TargetCheck = std::function<Status(const std::string& target)>;

// Loop thread; `on_accept` and `check_target` run there too. Without `check_target` every target is
// accepted. `random` makes the nonces and must outlive the listener.
Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const ListenOptions& options,
                                         const Token& token, Random& random, const Logger& log,
                                         std::function<void(AcceptedSocket)> on_accept,
                                         TargetCheck check_target = nullptr);

// Connects, authenticates and names the target, then calls `done` on the loop's thread with the
// stream. Failures: kUnavailable (nobody listens, unreachable), kUnauthenticated (wrong token, a
// certificate whose time is over or has not come), kFailedPrecondition (one side encrypts, the
// other does not), kNotFound (the listener knows no such target), kProtocol (not a Troupe port,
// another version), kDeadlineExceeded, or the code that the listener's check gave. Any thread. The
// stream is as in AcceptedSocket. `done` is not called when the loop ends before.
void connect(EventLoop& loop, const Address& address, const std::string& target, const Token& token,
             Deadline deadline, std::function<void(Result<ByteStream>)> done);

// The same, waiting. Not on a loop's thread.
Result<ByteStream> connect_blocking(const Address& address, const std::string& target,
                                    const Token& token, Deadline deadline);

}  // namespace troupe::net
