#pragma once
// The calls that wait for one actor, and the continuations of its own futures: a bounded queue with
// one reader, the actor's thread.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <variant>

#include "actors/executor.h"
#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::detail {

struct QueuedCall {
  ClientId caller;
  std::uint64_t sequence = 0;
  std::uint32_t method = 0;
  Deadline deadline;
  wire::Bytes arguments;
};

class Mailbox final : public Executor {
 public:
  using Work = std::function<void()>;
  using Item = std::variant<QueuedCall, Work>;

  explicit Mailbox(std::size_t calls_max = limits::kMailboxCallsMax) : calls_max_(calls_max) {}

  // kOverloaded when as many calls wait as may; kUnavailable after stop().
  Status push(QueuedCall call);
  // Continuations and the host's own work: not bounded by calls_max (their number is bounded by
  // that of the actor's own calls).
  void post(Work work) override;
  bool in_thread() const override;

  // The caller becomes the mailbox's thread (next() does it too).
  void adopt_thread();
  // Takes a call that has not begun out of the queue; false when it is not there.
  bool remove(ClientId caller, std::uint64_t sequence);
  // The next item; waits; nothing after stop(), whatever still waits. The caller becomes the
  // mailbox's thread.
  std::optional<Item> next();
  // The next item if there is one, without waiting.
  std::optional<Item> poll();
  // Ends next(). What waits stays for drain().
  void stop();
  // The calls that were never run.
  std::deque<QueuedCall> drain();
  std::size_t calls() const;

 private:
  std::optional<Item> pop() TROUPE_REQUIRES(mutex_);

  const std::size_t calls_max_;
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<Item> items_ TROUPE_GUARDED_BY(mutex_);
  std::size_t calls_ TROUPE_GUARDED_BY(mutex_) = 0;
  bool stopped_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread::id thread_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::detail
