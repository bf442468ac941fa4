#pragma once
// What futures are whatever their values: when they end, who waits and what goes on then. A future
// of a value (future.h) adds that alone, so that little is compiled anew for each type.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "troupe/clock.h"
#include "troupe/detail/call_sink.h"
#include "troupe/detail/mutex.h"
#include "troupe/executor.h"
#include "troupe/status.h"

namespace troupe::detail {

class RunningCall;  // running_call.h

Status empty_future_error();
Status broken_promise();

// Turns an exception of a continuation or coroutine into the error it stands for.
Status status_of_exception(const std::exception_ptr& exception);

// How a future behaves besides its value; all optional.
struct FutureOptions {
  // Where continuations run; see future.h.
  std::shared_ptr<Executor> executor = nullptr;
  // Its thread must not wait for this future, since only that thread can fulfil it.
  std::shared_ptr<Executor> fulfilled_by = nullptr;
  // Asks the other side not to do the work; the future has already ended with kCancelled.
  std::function<void()> cancel = nullptr;
  // When it ends at the latest.
  std::optional<Deadline> ends_by = std::nullopt;
};

// A call or stream that is cancelled when the call is whose method made it.
class Cancellable {
 public:
  virtual void cancel(const char* why) = 0;

 protected:
  ~Cancellable() = default;
};

// Thread-safe.
class FutureCore : public Cancellable {
 public:
  explicit FutureCore(FutureOptions options) : options_(std::move(options)) {}
  virtual ~FutureCore() = default;

  bool ready() const TROUPE_EXCLUDES(mutex_);
  // Runs `continuation` when there is a result: now, if there is one. `direct`: on the fulfilling
  // thread, whatever the executor.
  void on_ready(std::function<void()> continuation, bool direct = false) TROUPE_EXCLUDES(mutex_);
  void cancel(const char* why = "the caller cancelled it") override TROUPE_EXCLUDES(mutex_);
  void set_cancel(std::function<void()> cancel) TROUPE_EXCLUDES(mutex_);
  const std::shared_ptr<Executor>& executor() const { return options_.executor; }
  // When it ends at the latest, where that is known; set before others have it.
  const std::optional<Deadline>& ends_by() const { return options_.ends_by; }
  void set_ends_by(Deadline deadline) { options_.ends_by = deadline; }

  // For a thread that waits for what is made of it: may do what brings the result.
  void help_others(Deadline deadline) { help(deadline); }

  // Ends it without a value; false where it has ended already.
  virtual bool end_with(Status why) = 0;
  // What get() says at its deadline: what the future waits for, as far as that is known here.
  virtual Status late() const;

 protected:
  // Takes the result with `store(this, result)`, unless there is one already (false), and lets who
  // waits go on. A continuation that would run on this thread is put into `later` where that is
  // given.
  bool finish(void (*store)(FutureCore* self, void* result), void* result, Continuations* later)
      TROUPE_EXCLUDES(mutex_);
  // Waits for the result. Nothing: it is there, and the caller's alone; else why get() ends without
  // it. The clock is read where the result is not there yet: most calls' results are, and reading
  // it costs as much as taking one.
  std::optional<Status> await(Deadline deadline) TROUPE_EXCLUDES(mutex_);
  std::optional<Status> await(Duration timeout) TROUPE_EXCLUDES(mutex_);
  // … until it ends by itself, or for kCallTimeout where nobody knows when that is.
  std::optional<Status> await() TROUPE_EXCLUDES(mutex_);
  // Of one that is ready. Nothing: the result is the caller's alone.
  std::optional<Status> claim() TROUPE_EXCLUDES(mutex_);

 private:
  // Before a thread sleeps for the result: may do, at most until the deadline, what brings it.
  virtual void help(Deadline) {}
  // The error of a cancellation with what it was that was cancelled.
  virtual Status explained(Status why) const { return why; }
  // The future has ended because somebody cancelled it.
  virtual void cancelled() {}
  // A method of an actor waits for it, and goes on to, as long as it keeps what this returns.
  virtual std::shared_ptr<void> begin_long_wait(const RunningCall&) { return nullptr; }

  template <typename DeadlineOf>
  std::optional<Status> await_until(DeadlineOf deadline_of) TROUPE_EXCLUDES(mutex_);
  // Whether there is a result; then `claimed` is what claim() says.
  bool await_once(Deadline deadline, std::optional<Status>& claimed) TROUPE_EXCLUDES(mutex_);
  std::optional<Status> claim_locked() TROUPE_REQUIRES(mutex_);
  void run(std::function<void()> continuation, Continuations* later = nullptr);

  FutureOptions options_;
  mutable Mutex mutex_;
  CondVar ready_;
  bool done_ TROUPE_GUARDED_BY(mutex_) = false;
  bool consumed_ TROUPE_GUARDED_BY(mutex_) = false;
  bool direct_ = false;  // written before the continuation can run
  std::function<void()> continuation_ TROUPE_GUARDED_BY(mutex_);
};

// This process, where it is a worker of tasks, lends its CPUs as long as the caller keeps this.
std::shared_ptr<void> begin_wait_of_task();

// Of several futures the first one that is not ready; the others are counted.
Status late_of_several(Status first, std::size_t others);

}  // namespace troupe::detail
