#pragma once
// Collectives in program order, beside the arithmetic where there is a core for it.

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Work runs one piece after the other in the order of submission, which every rank must share.
// After a failure nothing runs any more: every wait returns the first one. One thread submits and
// waits. (A CUDA stream is the same thing on a GPU.)
class CommunicationQueue {
 public:
  using Ticket = std::uint64_t;

  virtual ~CommunicationQueue() = default;
  virtual Ticket submit(std::function<Status()> work) = 0;
  // Until the piece and all before it have run; kDeadlineExceeded where none of them ends within
  // the queue's limit, which only a bug reaches: collectives end by their own deadlines.
  virtual Status wait(Ticket ticket) = 0;
  // Until everything has run.
  virtual Status drain() = 0;
  // Whether work runs beside the submitting thread: only then does early submission gain anything.
  virtual bool overlaps() const = 0;
};

// Runs work inside submit(): right where there is no core to spare.
std::unique_ptr<CommunicationQueue> make_inline_queue();
// Runs work on a thread of its own, which ends with the queue after the piece under way. `limit`:
// of one piece that is waited for.
std::unique_ptr<CommunicationQueue> make_threaded_queue(Duration limit);

}  // namespace troupe::train
