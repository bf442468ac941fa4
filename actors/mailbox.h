#pragma once
// The calls that wait for one actor, and the continuations of its own futures: a bounded queue with
// one reader, the actor's thread. Where it is empty the reader looks at a source besides, the rings
// of callers on the same node (call_server.h), and sleeps on one word for both.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <variant>

#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/status.h"
#include "runtime/memory/adaptive_spin.h"
#include "runtime/memory/wait_word.h"
#include "runtime/wire/types.h"
#include "troupe/detail/mutex.h"
#include "troupe/executor.h"

namespace troupe::detail {

class HostRing;
class ItemSource;

struct QueuedCall {
  ClientId caller;
  std::uint64_t sequence = 0;
  std::uint32_t method = 0;
  Deadline deadline;
  wire::Bytes arguments;
  // Large arguments instead, in the caller's memory, which `ring` keeps mapped.
  std::span<const std::byte> shared_arguments;
  // Where it came from: its answer goes there. Null: the socket.
  std::shared_ptr<HostRing> ring;
  // It is an item of a pipeline, whose result goes there.
  std::shared_ptr<ItemSource> items = nullptr;
  // Its answer is kept, since the caller may send it again.
  bool keep_answer = true;
  // Its answer goes over the socket whatever it came by: a stream's.
  bool by_socket = false;

  std::span<const std::byte> argument_bytes() const {
    return shared_arguments.data() != nullptr ? shared_arguments : std::span(arguments);
  }
};

// Calls that the mailbox's thread fetches for itself.
class CallSource {
 public:
  virtual ~CallSource() = default;
  // The next call; nothing where none waits. Only while no call is in the mailbox: those came
  // before. Mailbox's thread.
  virtual std::optional<QueuedCall> take() = 0;
  // Moves some of what waits into the mailbox. Any thread.
  virtual void gather() = 0;
  // Whether take() may find something. Mailbox's thread.
  virtual bool waiting() = 0;
  // How long to look at waiting() again and again before sleeping. Mailbox's thread.
  virtual Duration spin() = 0;
  // Whether there are producers that could fail to wake the mailbox's thread.
  virtual bool connected() = 0;
};

// What producers in other processes see of a mailbox.
struct MailboxWords {
  std::atomic<std::uint32_t>* word = nullptr;   // whether its thread sleeps (memory/wait_word.h)
  std::atomic<std::uint64_t>* calls = nullptr;  // how many calls wait in it, or behind it
  std::shared_ptr<const void> memory;           // where they are
};

class Mailbox final : public Executor {
 public:
  using Work = std::function<void()>;
  using Item = std::variant<QueuedCall, Work>;

  // `shared`: zeroed memory; null: the mailbox's own.
  explicit Mailbox(std::size_t calls_max = limits::kMailboxCallsMax, MailboxWords shared = {});

  // Where further calls come from. Before next() is called.
  void set_source(std::weak_ptr<CallSource> source);

  // kOverloaded when as many calls wait as may; kUnavailable after stop().
  Status push(QueuedCall call);
  // (In a forked child post() and stop() do nothing: what is shared is the parent's.)
  // Continuations and the host's own work: not bounded by calls_max (their number is bounded by
  // that of the actor's own calls).
  void post(Work work) override;
  bool in_thread() const override;

  // The caller becomes the mailbox's thread (next() does it too).
  void adopt_thread();
  // Takes a call that has not begun out of the queue; false when it is not there.
  bool remove(ClientId caller, std::uint64_t sequence);
  // The method of a call that waits in it.
  std::optional<std::uint32_t> method_of(ClientId caller, std::uint64_t sequence);
  // The next item; waits; nothing after stop(), whatever still waits. The caller becomes the
  // mailbox's thread.
  std::optional<Item> next();
  // The next item if there is one, without waiting.
  std::optional<Item> poll();
  // Ends next(). What waits stays for take_calls().
  void stop();
  // The calls that wait, none of which has begun.
  std::deque<QueuedCall> take_calls();
  std::size_t calls() const { return waiting_calls_.load(std::memory_order_acquire); }
  // Another limit of the calls that wait, at least 1. Before next() is called.
  void limit_calls(std::size_t calls_max) TROUPE_EXCLUDES(mutex_);
  std::size_t calls_max() const TROUPE_EXCLUDES(mutex_);
  // So many more calls wait that have left it (call_runner.h): they count as if they were in it.
  void count_held(int change) TROUPE_EXCLUDES(mutex_);

 private:
  std::optional<Item> pop() TROUPE_REQUIRES(mutex_);
  void changed() TROUPE_REQUIRES(mutex_);
  void wake() TROUPE_EXCLUDES(mutex_);
  bool idle() const { return !has_items_.load(std::memory_order_seq_cst); }
  void wait(CallSource* source);

  const ProcessStamp process_;
  std::atomic<std::uint32_t> own_word_{0};
  std::atomic<std::uint64_t> own_calls_{0};
  const MailboxWords shared_;
  std::atomic<std::thread::id> thread_{};
  std::atomic<std::size_t> waiting_calls_{0};
  // Whether there is something for the reader to do in items_, or stopped_.
  std::atomic<bool> has_items_{false};
  mutable Mutex mutex_;
  std::deque<Item> items_ TROUPE_GUARDED_BY(mutex_);
  std::size_t calls_max_ TROUPE_GUARDED_BY(mutex_);
  std::size_t calls_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::size_t held_ TROUPE_GUARDED_BY(mutex_) = 0;
  bool stopped_ TROUPE_GUARDED_BY(mutex_) = false;
  std::weak_ptr<CallSource> source_ TROUPE_GUARDED_BY(mutex_);
  Mutex waker_mutex_;
  memory::Waker waker_ TROUPE_GUARDED_BY(waker_mutex_);
  // The mailbox's thread.
  memory::Sleeper sleeper_;
  memory::AdaptiveSpin adaptive_;
  std::uint32_t since_gathered_ = 0;
};

}  // namespace troupe::detail
