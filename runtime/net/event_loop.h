#pragma once
// The thread that waits: timers, posted work and readiness of descriptors, behind an interface.

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace troupe::net {

using TimerId = std::uint64_t;

class EventLoop {
 public:
  virtual ~EventLoop() = default;
  // Runs `work` on the loop's thread, after what was posted before. Any thread.
  virtual void post(std::function<void()> work) = 0;
  // Runs `work` on the loop's thread after `delay`. Any thread.
  virtual TimerId call_after(Duration delay, std::function<void()> work) = 0;
  // The work will not run, if it has not begun. Loop thread.
  virtual void cancel(TimerId timer) = 0;
  // Calls `ready` on the loop's thread each time the descriptor is readable, until unwatch. The
  // descriptor stays the caller's, and becomes non-blocking. Loop thread.
  virtual void watch_readable(int fd, std::function<void()> ready) = 0;
  // Calls `ready` once on the loop's thread, as soon as the descriptor is readable; asked again
  // before that, the newer `ready` alone. Not for one that is watched. Loop thread.
  virtual void when_readable(int fd, std::function<void()> ready) = 0;
  // Calls `ready` once on the loop's thread, as soon as the descriptor takes bytes. Loop thread.
  virtual void when_writable(int fd, std::function<void()> ready) = 0;
  // None of these calls comes any more; needed before the descriptor is closed. Loop thread.
  virtual void unwatch(int fd) = 0;
  // Before a loop runs, whoever made it is its thread.
  virtual bool in_loop_thread() const = 0;
  virtual const Clock& clock() const = 0;
};

// Runs its loop in the thread that calls run(), until stop().
class RunnableLoop : public EventLoop {
 public:
  virtual void run() = 0;
  // Any thread, and signal handlers' helper threads. run() returns after the current work.
  virtual void stop() = 0;
  // Signals arrive on the loop's thread instead of interrupting.
  virtual void on_signal(int signal, std::function<void()> handler) = 0;
};

// Work that is still queued, timers and watches go unrun when a loop is destroyed. Descriptors must
// be pipes, sockets, pidfds or the like; one regular file (standard input) is always readable.
std::unique_ptr<RunnableLoop> make_event_loop();

// A loop with a thread of its own; stopped and joined by the destructor. In a forked child, which
// has no such thread, nothing that is given to it runs, and the destructor does nothing.
class LoopThread {
 public:
  // kResourceExhausted where the system has no room for another thread.
  static Result<std::unique_ptr<LoopThread>> start(const char* thread_name);
  // The same for those who have nobody to tell: a failure ends the process with its message.
  explicit LoopThread(const char* thread_name);
  ~LoopThread();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  EventLoop& loop();

 private:
  struct State;
  explicit LoopThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::net
