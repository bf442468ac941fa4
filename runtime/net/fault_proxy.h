#pragma once
// A TCP proxy that spoils what passes through it: for tests and chaos runs, on kernels that have no
// traffic control, without privileges.
//
// It listens on an address of its own and connects every accepted connection to the target. Each
// direction has conditions of its own, which may change at any time: bytes are late by `delay` ±
// `jitter` (in order), pass at most `bytes_per_s`, or not at all (`stalled`: a partition where
// nobody is told). Bytes are carried as they are: the handshake and its proofs pass through.

#include <cstdint>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "troupe/link_conditions.h"

namespace troupe::net {

using troupe::LinkConditions;

enum class LinkDirection {
  kToTarget,    // from who connected to the proxy
  kFromTarget,  // back to it
};

class FaultProxy {
 public:
  // Closes everything. Loop thread.
  virtual ~FaultProxy() = default;
  // Where to connect to. Any thread.
  virtual const Address& address() const = 0;

  // All of the following: loop thread.
  virtual void set_target(const Address& target) = 0;
  virtual void set(LinkDirection direction, const LinkConditions& conditions) = 0;
  virtual void set_both(const LinkConditions& conditions) = 0;
  // Resets all connections that are there, both ends. New ones are accepted.
  virtual void cut() = 0;
  // Resets one end of each (kToTarget: the target's) and leaves the other one open without a word:
  // it finds out when it sends, or never.
  virtual void half_open(LinkDirection reset_end) = 0;
  // Connections are reset as they come.
  virtual void refuse(bool on) = 0;

  virtual std::size_t connection_count() const = 0;
  virtual std::uint64_t accepted_count() const = 0;
  // Delivered so far.
  virtual std::uint64_t byte_count(LinkDirection direction) const = 0;
};

struct FaultProxyOptions {
  std::string host = "127.0.0.1";  // to listen on, numeric
  std::uint16_t port = 0;          // 0: a free one
  Address target;                  // numeric host; may be set later
  std::uint64_t seed = 0;          // of the jitter
};

// Loop thread. kAlreadyExists for a taken port.
Result<std::unique_ptr<FaultProxy>> make_fault_proxy(EventLoop& loop,
                                                     const FaultProxyOptions& options);

}  // namespace troupe::net
