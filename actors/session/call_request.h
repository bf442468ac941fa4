#pragma once
// One call as its caller keeps it until it has ended.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/detail/call_sink.h"
#include "troupe/detail/interface.h"

namespace troupe::detail {

// Arguments in memory that a link shares with the actor, given back where this is destroyed. Until
// the actor has answered the call it may read them.
class LentArguments {
 public:
  virtual ~LentArguments() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

struct CallRequest {
  std::uint32_t method = 0;
  wire::Bytes arguments;
  Deadline deadline;
  bool retry = false;               // sent again where its process died with it (CallOptions)
  bool despite_state_loss = false;  // state_loss.h
  // Answered once, on any thread, and never from within a session. Users' code runs on the loop's
  // thread only, or on the caller's during call().
  CallSinkRef sink;
  // The arguments instead, where they are large and the link has shared memory for them.
  std::unique_ptr<LentArguments> lent = nullptr;
  // The arguments instead, once they went beside a message: shared with the connection.
  std::shared_ptr<const wire::Bytes> attached = nullptr;
  // The call inside which this one was made, where its deadline is that one's.
  MethodLabel deadline_of = {};
  // Of a stream: how many items may come in all. 0: it is none.
  std::uint64_t stream_items = 0;
  // When the call was made; nothing where that is not known.
  TimePoint made{};

  std::span<const std::byte> argument_bytes() const {
    if (attached) return *attached;
    if (lent) return lent->bytes();
    return arguments;
  }
};

// What arrived beside a message, of so many bytes, where a process takes `bytes_max` at once.
struct TooLarge {
  std::uint64_t bytes = 0;
  std::uint64_t bytes_max = 0;
  // kResourceExhausted: `what` ("arguments") is too large, or there was no memory for it.
  Status error(std::string_view what) const;
};

// A call that has ended, and how.
struct EndedCall {
  CallRequest request;
  Result<wire::Bytes> result;
};

}  // namespace troupe::detail
