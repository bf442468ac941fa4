#pragma once
// The caller's end of one connection to one process of an actor: ordered messages with
// back-pressure. Implementations: the socket with its shared-memory ring (channel_link.h), and the
// simulator's, which delays, cuts and loses.
//
// Whoever owns the link tells the session of what arrives on it, in order; when it takes more calls
// again after it had refused one with Sent::kFull; and once, last, that it has ended.

#include <cstddef>
#include <cstdint>

#include "actors/session/call_request.h"
#include "runtime/base/status.h"
#include "runtime/wire/call_messages.h"

namespace troupe::detail {

enum class Sent : std::uint8_t {
  kSent,
  kFull,     // not sent: too much waits to be sent. CallerSession::on_writable follows
  kEnded,    // not sent: the connection is over. CallerSession::on_ended follows
  kRefused,  // not sent, and never will be: SendOutcome::refusal says why
};

struct SendOutcome {
  Sent sent = Sent::kSent;
  Status refusal = {};  // kRefused: kInvalidArgument (too large), kOverloaded
};

// Called under the owner's lock: implementations neither wait nor call back.
class CallLink {
 public:
  virtual ~CallLink() = default;
  // Sends a call. `pending_calls`: how many calls have no answer, this one included. Where the link
  // keeps the arguments (`attached`) it changes how `request` holds them, not what they are.
  [[nodiscard]] virtual SendOutcome send_call(std::uint64_t sequence, CallRequest& request,
                                              std::size_t pending_calls) = 0;
  // Sends what is small and about calls. Not ok: not sent; kUnavailable: the link is over.
  [[nodiscard]] virtual Status send(const wire::CallMessage& message) = 0;
  // The link is of no more use, since it did not take a message: it ends, and its end is told.
  virtual void end(const Status& why) = 0;
  // Closes it; nothing of it is told any more. Not under the owner's lock; any thread.
  virtual void close() = 0;
};

}  // namespace troupe::detail
