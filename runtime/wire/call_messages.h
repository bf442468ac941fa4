#pragma once
// What a caller and an actor say on the connection between them (target "actor/ID"). No other
// process sees these bytes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

struct MethodSignature {
  std::string name;
  std::uint64_t hash = 0;  // structural hash of the argument and result types
  TROUPE_WIRE(MethodSignature, name, hash);
};

// caller → actor, first: what the caller believes the actor to be. Method numbers in calls are
// indices into this list.
struct Bind {
  ActorId actor_id;
  std::string type;
  ClientId caller;
  std::vector<MethodSignature> methods;
  // Where the caller is an actor's process: which, so that one whose successor has been seen is
  // refused. Empty: a driver.
  ActorId caller_actor;
  std::uint64_t caller_generation = 0;
  // The newest generation of the actor that the caller knows of: a process of an earlier one
  // refuses, and ends itself. 0: unknown.
  std::uint64_t generation = 0;
  // The number of this connection among the caller's: that of the ring which it may offer besides
  // (actors/call_ring.h). 0: it offers none.
  std::uint64_t attempt = 0;
  TROUPE_WIRE(Bind, actor_id, type, caller, methods, caller_actor, caller_generation, generation,
              attempt);
};
// actor → caller: not ok names the method whose signature differs.
struct BindReply {
  Status status;
  std::uint64_t generation = 0;
  TROUPE_WIRE(BindReply, status, generation);
};
struct Call {
  std::uint64_t sequence = 0;  // per caller and actor, growing; a retry keeps its number
  std::uint32_t method = 0;
  std::int64_t timeout_us = 0;  // what is left of the caller's deadline when it was sent
  Bytes arguments;
  TROUPE_WIRE(Call, sequence, method, timeout_us, arguments);
};
struct CallReply {
  std::uint64_t sequence = 0;
  Status status;
  Bytes result;
  TROUPE_WIRE(CallReply, sequence, status, result);
};
// actor → caller: this process takes no new calls, and another one follows. A call that it does
// not come to it gives back (CallGivenBack). caller → actor: it has heard that, and sends no more
// calls on this connection.
struct Draining {
  TROUPE_WIRE(Draining);
};
// actor → caller: the process ends without having begun this call, and the next one has never heard
// of it: the caller sends it there. The arguments come back with it, unless they lie in the
// caller's own memory (actors/call_ring.h).
struct CallGivenBack {
  std::uint64_t sequence = 0;
  Bytes arguments;
  TROUPE_WIRE(CallGivenBack, sequence, arguments);
};
// caller → actor: the call is not to begin; where its method runs, it is asked to stop.
struct CancelCall {
  std::uint64_t sequence = 0;
  TROUPE_WIRE(CancelCall, sequence);
};
// actor → caller: a result of a call whose method is a stream; its CallReply comes after the last.
struct StreamItem {
  std::uint64_t sequence = 0;
  std::uint64_t index = 0;  // from 1
  Bytes item;
  TROUPE_WIRE(StreamItem, sequence, index, item);
};
// caller → actor: how many items of the stream may be sent in all. None before the first of these.
struct StreamCredit {
  std::uint64_t sequence = 0;
  std::uint64_t items = 0;
  TROUPE_WIRE(StreamCredit, sequence, items);
};
// caller → actor: a method waits for the call, and for it another one, and so on, back to the first
// of them, whose call has this caller and sequence (actors/call_cycles.h).
struct CallProbe {
  std::uint64_t sequence = 0;
  ClientId initiator;
  std::uint64_t initiator_sequence = 0;
  std::vector<std::string> path;  // the methods that wait, the first one first
  TROUPE_WIRE(CallProbe, sequence, initiator, initiator_sequence, path);
};

// caller → actor: the references in the call's result are known where they count; the actor need
// not keep their objects for this caller any more.
struct ReferencesTaken {
  std::uint64_t sequence = 0;
  std::uint64_t item = 0;  // of a stream: its number; 0: what came in the result
  TROUPE_WIRE(ReferencesTaken, sequence, item);
};

// In the order of their numbers on the wire: a new one goes to the end.
using CallMessage = std::variant<Bind, BindReply, Call, CallReply, CancelCall, StreamItem,
                                 StreamCredit, CallProbe, Draining, CallGivenBack, ReferencesTaken>;

// Arguments, results and items of so many bytes travel beside their message (net/connection.h).
inline constexpr std::size_t kAttachedBytesMin = 16u << 10;

// A message as it is sent: `attachment`, null for most, holds the bytes that its frame leaves out.
struct EncodedCall {
  Bytes frame;
  std::shared_ptr<const Bytes> attachment;
};

// With everything in the frame.
Bytes encode(const CallMessage& message);
// With what is large beside it. Takes it out of `message` without a copy.
EncodedCall encode_attached(CallMessage message);
// `attachment`: what came beside the frame. kProtocol where the message holds no such bytes, or
// has them in it already.
Result<CallMessage> decode_call(std::span<const std::byte> frame, Bytes attachment = {});

}  // namespace troupe::wire
