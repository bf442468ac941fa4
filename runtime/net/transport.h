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

struct Address {
  std::string host;  // numeric, or a name to resolve
  std::uint16_t port = 0;
  // Abstract Unix socket of the same node; used instead of host and port where it is not empty.
  std::string local_name;
  std::string to_string() const;
};

struct AcceptedSocket {
  UniqueFd socket;
  std::string target;
  std::string peer;  // "10.0.0.2:41234" or "local"
  bool same_node = false;
};

struct ListenOptions {
  std::string host;        // interface to bind, numeric
  std::uint16_t port = 0;  // 0: a free one; a taken one is kAlreadyExists
  std::string local_name;  // abstract Unix socket to listen on besides; empty: none
};

class Listener {
 public:
  virtual ~Listener() = default;               // stops listening
  virtual const Address& address() const = 0;  // with the port that was taken
};

// Loop thread; `on_accept` runs there too.
Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const ListenOptions& options,
                                         const Token& token, Random& random, const Logger& log,
                                         std::function<void(AcceptedSocket)> on_accept);

// Connects, authenticates and names the target, then calls `done` on the loop's thread with the
// socket. Failures: kUnavailable (nobody listens, unreachable), kUnauthenticated (wrong token),
// kNotFound (the listener knows no such target), kProtocol (not a Troupe port, another version),
// kDeadlineExceeded. Any thread.
void connect(EventLoop& loop, const Address& address, const std::string& target, const Token& token,
             Deadline deadline, std::function<void(Result<UniqueFd>)> done);

// The same, waiting. Not on a loop's thread.
Result<UniqueFd> connect_blocking(const Address& address, const std::string& target,
                                  const Token& token, Deadline deadline);

}  // namespace troupe::net
