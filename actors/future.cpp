#include "troupe/future.h"

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "troupe/detail/running_call.h"
#include "troupe/task.h"

namespace troupe::detail {
namespace {

// A call that ends by its own deadline has reported that at most so long after it.
constexpr Duration kMomentToEnd = std::chrono::seconds(1);

}  // namespace

Status empty_future_error() {
  return Status(Code::kFailedPrecondition,
                "an empty Future: it was moved from, or then() or co_await has taken it");
}

Status broken_promise() {
  return Status(Code::kInternal, "broken promise: nobody provided a result");
}

Status late_of_several(Status first, std::size_t others) {
  if (others == 0) return first;
  return first.prefixed(fmt::format("{} futures are not ready; the first of them", others + 1));
}

Status status_of_exception(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const StatusError& e) {
    return e.status();
  } catch (const std::exception& e) {
    return error(Code::kInternal, "a continuation threw: {}", e.what());
  } catch (...) {
    return Status(Code::kInternal, "a continuation threw something that is no std::exception");
  }
}

void check_task_host(bool has_host) {
  TROUPE_CHECK(has_host, "a Task runs as a method of an actor, or inside another Task");
}

void check_task_done(bool done) { TROUPE_CHECK(done); }

Status FutureCore::late() const {
  return Status(Code::kDeadlineExceeded, "no result before the deadline of get()");
}

// --- its end -------------------------------------------------------------------------------------

bool FutureCore::finish(void (*store)(FutureCore* self, void* result), void* result,
                        Continuations* later) {
  std::function<void()> continuation;
  {
    MutexLock lock(mutex_);
    if (done_) return false;
    done_ = true;
    store(this, result);
    continuation = std::move(continuation_);
    options_.cancel = nullptr;
  }
  // Outside of the lock, which whoever is woken takes first. (Who calls this holds the state.)
  ready_.notify_all();
  if (continuation) run(std::move(continuation), later);
  return true;
}

void FutureCore::cancel(const char* why) {
  std::function<void()> ask;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    ask = options_.cancel;
  }
  if (!end_with(explained(Status(Code::kCancelled, why)))) return;
  if (ask) ask();
  cancelled();
}

void FutureCore::set_cancel(std::function<void()> cancel) {
  MutexLock lock(mutex_);
  if (!done_) options_.cancel = std::move(cancel);
}

void FutureCore::on_ready(std::function<void()> continuation, bool direct) {
  {
    MutexLock lock(mutex_);
    TROUPE_CHECK(!continuation_, "a future has one continuation");
    direct_ = direct;
    if (!done_) {
      continuation_ = std::move(continuation);
      return;
    }
  }
  run(std::move(continuation));
}

void FutureCore::run(std::function<void()> continuation, Continuations* later) {
  if (options_.executor && !direct_) {
    options_.executor->post(std::move(continuation));
  } else if (later != nullptr) {
    later->push_back(std::move(continuation));
  } else {
    continuation();
  }
}

// --- who waits -----------------------------------------------------------------------------------

bool FutureCore::ready() const {
  MutexLock lock(mutex_);
  return done_;
}

std::optional<Status> FutureCore::claim_locked() {
  if (consumed_ || !done_) {
    return Status(Code::kFailedPrecondition, "the future's result was already taken");
  }
  consumed_ = true;
  return std::nullopt;
}

std::optional<Status> FutureCore::claim() {
  MutexLock lock(mutex_);
  return claim_locked();
}

bool FutureCore::await_once(Deadline deadline, std::optional<Status>& claimed) {
  help(deadline);
  MutexLock lock(mutex_);
  if (!ready_.wait_until(mutex_, deadline, [&]() TROUPE_NO_ANALYSIS { return done_; })) {
    return false;
  }
  claimed = claim_locked();
  return true;
}

template <typename DeadlineOf>
std::optional<Status> FutureCore::await_until(DeadlineOf deadline_of) {
  {
    MutexLock lock(mutex_);
    if (done_) return claim_locked();
    if (options_.fulfilled_by && options_.fulfilled_by->in_thread()) {
      return Status(Code::kFailedPrecondition,
                    "get() would wait for itself: only the thread that waits can fulfil this "
                    "future. Use then() or co_await");
    }
  }
  const Deadline deadline = deadline_of();
  const RunningCall* const call = RunningCall::current();
  if (call != nullptr && call->asynchronous()) {
    return error(Code::kFailedPrecondition,
                 "get() in the asynchronous method {} would stop its actor: co_await the future",
                 call->label().to_string());
  }
  std::optional<Status> claimed;
  if (call == nullptr) return await_once(deadline, claimed) ? claimed : late();
  // (A method that waits for long may wait for itself.)
  if (await_once(earlier(deadline, Deadline::after(kLongWait)), claimed)) return claimed;
  const auto waiting = begin_long_wait(*call);
  const auto lent = begin_wait_of_task();
  // Again and again: what brings the result may come to be this thread's to do (a task whose worker
  // has died).
  while (!await_once(earlier(deadline, Deadline::after(kLongWait)), claimed)) {
    if (deadline.passed()) return late();
  }
  return claimed;
}

std::optional<Status> FutureCore::await(Deadline deadline) {
  return await_until([deadline] { return deadline; });
}

std::optional<Status> FutureCore::await(Duration timeout) {
  return await_until([timeout] { return Deadline::after(timeout); });
}

std::optional<Status> FutureCore::await() {
  return await_until([this] {
    if (!options_.ends_by) return Deadline::after(kCallTimeout);
    // Whoever ends it says more than "late" does.
    return Deadline::after(options_.ends_by->remaining() + kMomentToEnd);
  });
}

}  // namespace troupe::detail
