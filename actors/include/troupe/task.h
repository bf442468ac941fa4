#pragma once
// Task<T>: an asynchronous method. It runs on the actor's thread, and leaves it at each co_await:
//
//   troupe::Task<int> sum(ActorHandle<Counter> a, ActorHandle<Counter> b) {
//     auto first = a.call<&Counter::get>();
//     auto second = b.call<&Counter::get>();
//     Result<int> x = co_await std::move(first);
//     Result<int> y = co_await std::move(second);
//     if (!x.ok()) co_return x.status();        // a failure of the method
//     co_return *x + y.value();
//   }
//
// T, Status, Result<T> or void, as of ordinary methods; what it throws ends the call with
// kActorError. Whether other calls of the actor begin while it is suspended, its concurrency says
// (concurrency.h; without: no). Its arguments live until it has ended. It must not wait in get():
// that would stop the actor; such a get() fails with kFailedPrecondition.
//
// A Task may also be awaited by another Task or Stream: it begins there. It is begun by nobody
// else. What can be awaited: Future<R>&& and Task<U>&&, with std::move where it has a name.

#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "troupe/future.h"

namespace troupe {

template <typename T>
class Task;

namespace detail {

// Where a coroutine of an actor goes on. Thread-safe.
class TaskHost {
 public:
  virtual ~TaskHost() = default;
  // Later, on the actor's thread; never where the call has been given up meanwhile.
  virtual void resume_later(std::coroutine_handle<> coroutine) = 0;
};

// Bugs of whoever uses a Task.
void check_task_host(bool has_host);
void check_task_done(bool done);

template <typename T>
struct TaskResultOf {
  using Type = Result<T>;
};
template <>
struct TaskResultOf<void> {
  using Type = Status;
};
template <>
struct TaskResultOf<Status> {
  using Type = Status;
};
template <typename T>
struct TaskResultOf<Result<T>> {
  using Type = Result<T>;
};
// What awaiting a Task<T> gives.
template <typename T>
using TaskResult = typename TaskResultOf<T>::Type;

template <typename R>
struct FutureAwaiter {
  std::shared_ptr<FutureState<NonVoid<R>>> state;
  const std::shared_ptr<TaskHost>& host;
  bool await_ready() const { return state->ready(); }
  void await_suspend(std::coroutine_handle<> coroutine) {
    check_task_host(host != nullptr);
    // Wherever it is fulfilled, the coroutine goes on on the actor's thread.
    state->on_ready([host = host, coroutine] { host->resume_later(coroutine); }, /*direct=*/true);
  }
  ResultOf<R> await_resume() { return to_result<R>(state->take()); }
};

template <typename U>
struct TaskAwaiter;

// What the coroutines of tasks and streams share. Actor's thread.
class TaskPromiseBase {
 public:
  struct AtEnd {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      const std::coroutine_handle<> awaiter = ended.promise().awaiter;
      return awaiter ? awaiter : std::coroutine_handle<>(std::noop_coroutine());
    }
    void await_resume() noexcept {}
  };
  std::suspend_always initial_suspend() noexcept { return {}; }
  AtEnd final_suspend() noexcept { return {}; }
  void unhandled_exception() { exception = std::current_exception(); }

  template <typename R>
  FutureAwaiter<R> await_transform(Future<R>&& future) {
    return {FutureAccess::state(std::move(future)), host};
  }
  template <typename U>
  TaskAwaiter<U> await_transform(Task<U>&& task);

  std::shared_ptr<TaskHost> host;
  std::coroutine_handle<> awaiter;  // of a task that another one awaits
  std::exception_ptr exception;
};

template <typename T, bool kIsVoid = std::is_void_v<T>>
struct TaskPromise : TaskPromiseBase {
  void return_value(TaskResult<T> value) { result.emplace(std::move(value)); }
  std::optional<TaskResult<T>> result;
};
template <typename T>
struct TaskPromise<T, true> : TaskPromiseBase {
  void return_void() { result.emplace(); }
  std::optional<Status> result;
};

}  // namespace detail

template <typename T>
class [[nodiscard]] Task {
 public:
  using ResultType = detail::TaskResult<T>;  // Result<T>; Status for void
  struct promise_type : detail::TaskPromise<T> {
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
  };

  Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(coroutine_, other.coroutine_);
    return *this;
  }
  ~Task() {
    if (coroutine_) coroutine_.destroy();
  }

  // (Of Troupe's own.)
  std::coroutine_handle<promise_type> coroutine() const { return coroutine_; }
  bool done() const { return !coroutine_ || coroutine_.done(); }
  // Once, after done(); throws what the coroutine threw. kFailedPrecondition where it was moved
  // from.
  ResultType take() {
    if (!coroutine_) return Status(Code::kFailedPrecondition, "an empty Task: it was moved from");
    auto& promise = coroutine_.promise();
    if (promise.exception) std::rethrow_exception(promise.exception);
    detail::check_task_done(promise.result.has_value());
    return std::move(*promise.result);
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<promise_type> coroutine_;
};

namespace detail {

template <typename U>
struct TaskAwaiter {
  Task<U> task;
  bool await_ready() const { return !task.coroutine(); }
  template <typename Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> awaiting) {
    auto& promise = task.coroutine().promise();
    promise.host = awaiting.promise().host;
    promise.awaiter = awaiting;
    return task.coroutine();
  }
  TaskResult<U> await_resume() { return task.take(); }
};

template <typename U>
TaskAwaiter<U> TaskPromiseBase::await_transform(Task<U>&& task) {
  return {std::move(task)};
}

}  // namespace detail
}  // namespace troupe
