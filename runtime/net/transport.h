#pragma once
// Listening on a node's one port and connecting to others', with mutual authentication.
//
// A connection names its target when it is made ("head", "node", "actor/ID", "actor/ID/PURPOSE").
// The listener authenticates first, by a challenge with a fresh nonce from both sides, reading
// exact lengths and nothing more, and then gives the bare socket and its target to `on_accept`: no
// data passes through it afterwards, and the socket may be handed to another process.
//
// Before authentication a peer costs at most 64 KiB and 5 s (limits.h), and nothing it sent is
// parsed but fixed-size fields.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"

namespace troupe::net {

// The cluster's shared secret. Whoever has it may run code on every node.
using Token = std::vector<std::byte>;
// A shorter one could be guessed.
inline constexpr std::size_t kTokenBytesMin = 16;

struct Address {
  std::string host;  // numeric, or a name to resolve
  std::uint16_t port = 0;
  // Abstract Unix socket of the same node; used instead of host and port where it is not empty.
  std::string local_name;
  std::string to_string() const;
};

// In blocking mode, closed at exec, TCP_NODELAY and keep-alive set. Not a byte after the handshake
// has been read.
struct AcceptedSocket {
  UniqueFd socket;
  std::string target;
  std::string peer;        // "10.0.0.2:41234" or "local"
  bool same_node = false;  // it is a Unix socket
};

struct ListenOptions {
  ListenOptions();
  std::string host;        // interface to bind, numeric; empty: only the local socket
  std::uint16_t port = 0;  // 0: a free one; a taken one is kAlreadyExists
  // Abstract Unix socket to listen on besides, for processes of the same user; empty: none.
  std::string local_name;
  Duration handshake_timeout;  // default: limits::kHandshakeTimeout
  // Handshakes under way; beyond it the oldest is dropped. Default: limits::kHandshakePendingMax.
  std::size_t handshakes_max;
};

class Listener {
 public:
  // Stops listening and drops unfinished handshakes. Loop thread; allowed inside on_accept.
  virtual ~Listener() = default;
  // With the port that was taken. `local_name` is empty: it is not the way for other nodes.
  virtual const Address& address() const = 0;
};

// Whether an authenticated peer may have this target: ok, or the failure that it is told (its code
// and the first 512 bytes of the message), such as kNotFound.
using TargetCheck = std::function<Status(const std::string& target)>;

// Loop thread; `on_accept` and `check_target` run there too. Without `check_target` every target is
// accepted. `random` makes the nonces and must outlive the listener.
Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const ListenOptions& options,
                                         const Token& token, Random& random, const Logger& log,
                                         std::function<void(AcceptedSocket)> on_accept,
                                         TargetCheck check_target = nullptr);

// Connects, authenticates and names the target, then calls `done` on the loop's thread with the
// socket. Failures: kUnavailable (nobody listens, unreachable), kUnauthenticated (wrong token),
// kNotFound (the listener knows no such target), kProtocol (not a Troupe port, another version),
// kDeadlineExceeded, or the code that the listener's check gave. Any thread. The socket is as in
// AcceptedSocket. `done` is not called when the loop ends before.
void connect(EventLoop& loop, const Address& address, const std::string& target, const Token& token,
             Deadline deadline, std::function<void(Result<UniqueFd>)> done);

// The same, waiting. Not on a loop's thread.
Result<UniqueFd> connect_blocking(const Address& address, const std::string& target,
                                  const Token& token, Deadline deadline);

}  // namespace troupe::net
