#pragma once
// Future<R> and Promise<R>: a value that comes later, or the error instead of it.
//
//   Result<int> n = counter.call<&Counter::add>(3).get(std::chrono::seconds(1));
//   counter.call<&Counter::add>(3).then([](Result<int> n) { … });
//   Future<int> twice(ActorHandle<Counter> c) {
//     co_return 2 * (co_await c.call<&Counter::get>()).value();
//   }
//
// A future ends in exactly one Result: a promise that is destroyed unfulfilled ends it with
// kInternal. A future is moved, not copied; its result is taken once. One that was moved from, or
// that then() has taken, is ready and has ended with kFailedPrecondition.
//
// Threads: everything may be called from any thread. Continuations (then, co_await) run on the
// future's executor where it has one (in an actor: the actor's own thread, between its calls), else
// on the thread that fulfils the promise (of a call: a thread of Troupe's, never one that is in
// get()): there they must be short and must not wait.

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/clock.h"
#include "troupe/detail/future_core.h"
#include "troupe/status.h"
#include "troupe/timeouts.h"

namespace troupe {

// In place of void, where a value must be.
struct Unit {
  friend bool operator==(Unit, Unit) { return true; }
};

template <typename R>
using NonVoid = std::conditional_t<std::is_void_v<R>, Unit, R>;
// What get() returns: Result<R>, and Status for Future<void>.
template <typename R>
using ResultOf = std::conditional_t<std::is_void_v<R>, Status, Result<NonVoid<R>>>;

template <typename R>
class Future;

namespace detail {

struct FutureAccess;

template <typename R>
ResultOf<R> to_result(Result<NonVoid<R>> result) {
  if constexpr (std::is_void_v<R>) {
    return result.status();
  } else {
    return result;
  }
}
inline Result<Unit> from_status(Status status) {
  if (status.ok()) return Unit{};
  return status;
}

template <typename T>  // T is never void
class FutureState : public FutureCore {
 public:
  using FutureCore::FutureCore;

  // The first one wins; false for every later one. A continuation that would run on this thread is
  // put into `later` where that is given.
  bool set(Result<T> result, Continuations* later = nullptr) {
    return finish(
        [](FutureCore* self, void* value) {
          static_cast<FutureState*>(self)->result_.emplace(
              std::move(*static_cast<Result<T>*>(value)));
        },
        &result, later);
  }
  bool end_with(Status why) override { return set(Result<T>(std::move(why))); }

  // Until a Deadline, for a Duration, or until it ends.
  template <typename... Until>
  Result<T> wait(Until... until) {
    if (auto missing = await(until...)) return std::move(*missing);
    return taken();
  }
  Result<T> take() {
    if (auto missing = claim()) return std::move(*missing);
    return taken();
  }

 private:
  // By the one that has claimed it.
  Result<T> taken() {
    Result<T> result = std::move(*result_);
    result_.reset();
    return result;
  }
  std::optional<Result<T>> result_;  // written once, before the future is ready
};

// Of a future that is made of others: what get() says at its deadline is said of those.
template <typename T>
class ComposedState final : public FutureState<T> {
 public:
  ComposedState(FutureOptions options, std::function<Status()> late_parts)
      : FutureState<T>(std::move(options)), late_parts_(std::move(late_parts)) {}
  Status late() const override { return late_parts_(); }

 private:
  const std::function<Status()> late_parts_;
};

template <typename T>
Status late_of_all(const std::vector<std::shared_ptr<FutureState<T>>>& states) {
  const FutureState<T>* first = nullptr;
  std::size_t missing = 0;
  for (const auto& state : states) {
    if (state->ready()) continue;
    if (missing++ == 0) first = state.get();
  }
  // (They may all have become ready meanwhile.)
  return late_of_several(first != nullptr ? first->late() : FutureState<T>(FutureOptions{}).late(),
                         missing > 0 ? missing - 1 : 0);
}

}  // namespace detail

// The side that provides the result. Moved, not copied; one that was moved from provides nothing.
template <typename R>
class Promise {
  using State = detail::FutureState<NonVoid<R>>;

 public:
  Promise() : Promise(std::make_shared<State>(detail::FutureOptions{})) {}
  // (Of Troupe's own.)
  explicit Promise(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    abandon();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() { abandon(); }

  // Once; the future that belongs to this promise.
  Future<R> future() { return Future<R>(state_); }
  // Ends the future. False, without effect, when it has ended already (cancelled).
  bool set(ResultOf<R> result) {
    // Whoever is woken may destroy this promise before its waiters have all been told.
    const std::shared_ptr<State> state = state_;
    if (!state) return false;
    if constexpr (std::is_void_v<R>) {
      return state->set(detail::from_status(std::move(result)));
    } else {
      return state->set(std::move(result));
    }
  }
  void set_cancel(std::function<void()> cancel) {
    if (state_) state_->set_cancel(std::move(cancel));
  }

 private:
  void abandon() {
    if (state_) state_->end_with(detail::broken_promise());
  }
  std::shared_ptr<State> state_;
};

template <typename R>
class [[nodiscard]] Future {
  using State = detail::FutureState<NonVoid<R>>;

 public:
  using value_type = R;
  using ResultType = ResultOf<R>;  // Result<R>; Status for void

  // (Of Troupe's own; users have Promise.)
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Waits for the result and takes it. kDeadlineExceeded leaves the future as it was, and says what
  // it waits for: of a call the actor, the method, the node, and in what state they are.
  ResultType get(Deadline deadline) {
    if (!state_) return detail::empty_future_error();
    return detail::to_result<R>(state_->wait(deadline));
  }
  ResultType get(Duration timeout) {
    if (!state_) return detail::empty_future_error();
    return detail::to_result<R>(state_->wait(timeout));
  }
  // As long as the call may take (CallOptions::timeout, 60 s by default), and with then() 60 s
  // more; of a future that is no call's, 60 s.
  ResultType get() {
    if (!state_) return detail::empty_future_error();
    return detail::to_result<R>(state_->wait());
  }
  bool ready() const { return !state_ || state_->ready(); }

  // Ends the future with kCancelled, if it has not ended, and asks the other side not to do the
  // work: a call that still waits is taken from the queue; one that runs is asked to stop
  // (ActorContext::call_stop_token), and so are the calls that it made. Its result is dropped.
  // A future that is destroyed cancels nothing: its call runs all the same.
  void cancel() {
    if (state_) state_->cancel();
  }

  // Calls `f` with the result; the future of what `f` returns (a value, a Result or a Status). An
  // exception of `f` ends it with kInternal. Takes this future.
  template <typename F>
  auto then(F f) &&;

  // co_await future: the ResultType.
  auto operator co_await() && {
    struct Awaiter {
      std::shared_ptr<State> state;
      bool await_ready() const { return state->ready() && !state->executor(); }
      void await_suspend(std::coroutine_handle<> handle) {
        state->on_ready([handle] { handle.resume(); });
      }
      ResultType await_resume() { return detail::to_result<R>(state->take()); }
    };
    return Awaiter{take()};
  }

  // A coroutine may return a Future: it starts at once, `co_return value` (or a failed Status)
  // fulfils it, and an exception ends it with its status (StatusError) or kInternal.
  struct promise_type;

 private:
  friend class Promise<R>;
  friend struct detail::FutureAccess;
  template <typename... T>
  friend auto when_all(Future<T>... futures);
  template <typename T>
  friend Future<std::vector<NonVoid<T>>> when_all(std::vector<Future<T>> futures);
  // This future's state, which leaves it; of an empty one a state that has ended with that error.
  std::shared_ptr<State> take() {
    if (state_) return std::move(state_);
    auto ended = std::make_shared<State>(detail::FutureOptions{});
    ended->set(detail::empty_future_error());
    return ended;
  }
  std::shared_ptr<State> state_;
};

namespace detail {
struct FutureAccess {
  template <typename R>
  static std::shared_ptr<FutureState<NonVoid<R>>> state(Future<R>&& future) {
    return future.take();
  }
};
}  // namespace detail

// A future that has ended already.
template <typename R>
Future<R> make_ready_future(ResultOf<R> result) {
  Promise<R> promise;
  promise.set(std::move(result));
  return promise.future();
}

namespace detail {

// What then() returns for an `f` that returns U.
template <typename U>
struct ThenValue {
  using Type = U;
};
template <>
struct ThenValue<Status> {
  using Type = void;
};
template <typename T>
struct ThenValue<Result<T>> {
  using Type = T;
};
template <typename T>
struct ThenValue<Future<T>> {
  static_assert(!std::is_same_v<T, T>,
                "then(): the continuation returns a Future. Write a coroutine and co_await it.");
};

template <typename R, typename F>
ResultOf<R> call_to_result(F&& f) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      f();
      return Status();
    } else {
      return f();
    }
  } catch (...) {
    return status_of_exception(std::current_exception());
  }
}

// Only the executor's thread can run the continuation, so it must not wait for what follows.
inline FutureOptions options_of_continuation(const FutureCore& before) {
  FutureOptions options{.executor = before.executor(), .fulfilled_by = before.executor()};
  // The continuation takes its time, too.
  if (before.ends_by()) {
    options.ends_by = Deadline::after(before.ends_by()->remaining() + kCallTimeout);
  }
  return options;
}

// How a future that is made of several behaves.
class OptionsOfAll {
 public:
  void add(const FutureCore& part) {
    if (first_) options_.executor = part.executor();
    if (first_ || !part.ends_by()) options_.ends_by = part.ends_by();
    if (options_.ends_by && part.ends_by()->time() > options_.ends_by->time()) {
      options_.ends_by = part.ends_by();
    }
    first_ = false;
  }
  const FutureOptions& options() const { return options_; }

 private:
  FutureOptions options_;
  bool first_ = true;
};

// What when_all(a, b, …) waits with.
template <typename... T>
struct GatherTuple {
  using All = std::tuple<NonVoid<T>...>;
  explicit GatherTuple(std::shared_ptr<FutureState<All>> state) : promise(std::move(state)) {}
  template <std::size_t I, typename V>
  void arrived(Result<V> result) {
    if (!result.ok()) {
      promise.set(result.status());
      return;
    }
    std::optional<All> all;
    {
      MutexLock lock(mutex);
      std::get<I>(values).emplace(std::move(*result));
      if (--missing > 0) return;
      all.emplace(std::apply([](auto&... v) { return All(std::move(*v)...); }, values));
    }
    promise.set(std::move(*all));
  }
  Mutex mutex;
  std::tuple<std::optional<NonVoid<T>>...> values;
  std::size_t missing = sizeof...(T);
  Promise<All> promise;
};

template <typename R, bool kIsVoid = std::is_void_v<R>>
struct CoroutineReturn {
  Promise<R> promise;
  void return_value(ResultOf<R> value) { promise.set(std::move(value)); }
};
template <typename R>
struct CoroutineReturn<R, true> {
  Promise<R> promise;
  void return_void() { promise.set(Status()); }
};

}  // namespace detail

template <typename R>
template <typename F>
auto Future<R>::then(F f) && {
  using U = std::invoke_result_t<F, ResultType>;
  using Value = typename detail::ThenValue<U>::Type;
  const std::shared_ptr<State> state = take();
  auto promise =
      std::make_shared<Promise<Value>>(std::make_shared<detail::ComposedState<NonVoid<Value>>>(
          detail::options_of_continuation(*state), [state] { return state->late(); }));
  auto result = promise->future();
  promise->set_cancel([state] { state->cancel(); });
  state->on_ready([state, promise, f = std::make_shared<F>(std::move(f))]() mutable {
    promise->set(
        detail::call_to_result<Value>([&] { return (*f)(detail::to_result<R>(state->take())); }));
  });
  return result;
}

template <typename R>
struct Future<R>::promise_type : detail::CoroutineReturn<R> {
  Future<R> get_return_object() { return this->promise.future(); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept { return {}; }
  void unhandled_exception() {
    this->promise.set(detail::status_of_exception(std::current_exception()));
  }
};

// The future of all results, in order; the first failure ends it at once with that failure.
// void results are Unit.
template <typename T>
Future<std::vector<NonVoid<T>>> when_all(std::vector<Future<T>> futures) {
  using Value = NonVoid<T>;
  using States = std::vector<std::shared_ptr<detail::FutureState<Value>>>;
  struct Gather {
    Gather(std::size_t count, std::shared_ptr<detail::FutureState<std::vector<Value>>> state)
        : values(count), missing(count), promise(std::move(state)) {}
    Mutex mutex;
    std::vector<std::optional<Value>> values;
    std::size_t missing;
    Promise<std::vector<Value>> promise;
    void arrived(std::size_t index, Result<Value> result) {
      if (!result.ok()) {
        promise.set(result.status());
        return;
      }
      std::vector<Value> all;
      {
        MutexLock lock(mutex);
        values[index].emplace(std::move(*result));
        if (--missing > 0) return;
        for (auto& value : values) all.push_back(std::move(*value));
      }
      promise.set(std::move(all));
    }
  };
  States states;
  for (auto& future : futures) states.push_back(future.take());
  detail::OptionsOfAll options;
  for (const auto& state : states) options.add(*state);
  auto gather = std::make_shared<Gather>(
      states.size(), std::make_shared<detail::ComposedState<std::vector<Value>>>(
                         options.options(), [states] { return detail::late_of_all(states); }));
  auto all = gather->promise.future();
  if (states.empty()) gather->promise.set(std::vector<Value>{});
  gather->promise.set_cancel([states] {
    for (const auto& state : states) state->cancel();
  });
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto& state = states[i];
    state->on_ready([gather, state, i] { gather->arrived(i, state->take()); }, /*direct=*/true);
  }
  return all;
}

// The same for futures of different types: Future<std::tuple<A, B, …>>.
template <typename... T>
auto when_all(Future<T>... futures) {
  static_assert(sizeof...(T) > 0);
  const auto states = std::make_tuple(futures.take()...);
  detail::OptionsOfAll options;
  std::apply([&](const auto&... state) { (options.add(*state), ...); }, states);
  auto late = [states] {
    return std::apply(
        [](const auto&... state) {
          std::optional<Status> first;
          std::size_t missing = 0;
          const auto look = [&](const auto& one) {
            if (!one->ready() && missing++ == 0) first = one->late();
          };
          (look(state), ...);
          return detail::late_of_several(
              first ? *first : detail::FutureState<Unit>(detail::FutureOptions{}).late(),
              missing > 0 ? missing - 1 : 0);
        },
        states);
  };
  using All = typename detail::GatherTuple<T...>::All;
  auto gather = std::make_shared<detail::GatherTuple<T...>>(
      std::make_shared<detail::ComposedState<All>>(options.options(), std::move(late)));
  auto all = gather->promise.future();
  gather->promise.set_cancel(
      [states] { std::apply([](const auto&... state) { (state->cancel(), ...); }, states); });
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (std::get<I>(states)->on_ready(
         [gather, state = std::get<I>(states)] { gather->template arrived<I>(state->take()); },
         /*direct=*/true),
     ...);
  }
  (std::index_sequence_for<T...>{});
  return all;
}

}  // namespace troupe
