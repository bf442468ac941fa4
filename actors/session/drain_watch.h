#pragma once
// When the process of an actor that moves elsewhere may end: what it had begun is done, and its
// callers have stopped calling, or nothing comes of them any more, and have what they were sent.

#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"

namespace troupe::detail {

// The state of all callers of one actor together.
struct CallersProgress {
  bool stopped = false;              // each has said that it calls no more
  std::uint64_t received_bytes = 0;  // by the connections that are open
  std::size_t unsent_bytes = 0;      // to them
};

// Not thread-safe. `now` never goes back.
class DrainWatch {
 public:
  // How long a caller that has not said that it stopped may be silent: one that is stopped itself,
  // or cut off, says nothing. Large arguments on their way are no silence, however long they take.
  static constexpr Duration kSilenceMax = std::chrono::milliseconds(200);

  explicit DrainWatch(TimePoint now) : quiet_since_(now) {}

  // `open`: calls that were accepted and not answered.
  bool may_end(std::size_t open, const CallersProgress& callers, TimePoint now) {
    const bool moved = callers.received_bytes != seen_.received_bytes ||
                       callers.unsent_bytes != seen_.unsent_bytes;
    if (moved) quiet_since_ = now;
    seen_ = callers;
    if (open > 0) return false;
    return (callers.stopped && callers.unsent_bytes == 0) || now - quiet_since_ >= kSilenceMax;
  }

 private:
  TimePoint quiet_since_;
  CallersProgress seen_;
};

}  // namespace troupe::detail
