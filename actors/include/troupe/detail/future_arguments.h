#pragma once
// Futures as arguments of a call: it is made when their results are there, and nobody waits
// meanwhile.

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "troupe/future.h"

namespace troupe::detail {

template <typename A>
inline constexpr bool kIsFuture = false;
template <typename R>
inline constexpr bool kIsFuture<Future<R>> = true;

// What the parameter is made of: of a future its result.
template <typename A, bool = kIsFuture<std::remove_cvref_t<A>>>
struct ArgumentOf {
  using Type = A;
};
template <typename A>
struct ArgumentOf<A, true> {
  static_assert(!std::is_lvalue_reference_v<A>,
                "a future that is an argument is moved into the call: std::move(future)");
  using Type = NonVoid<typename std::remove_cvref_t<A>::value_type>;
};

// Every argument as a future: what is no future is one that is ready, of the parameter itself.
template <typename Parameter, typename A>
auto future_of_argument(A&& argument) {
  if constexpr (kIsFuture<std::remove_cvref_t<A>>) {
    return std::forward<A>(argument);
  } else {
    auto state = std::make_shared<FutureState<Parameter>>(
        FutureOptions{.ends_by = Deadline::after(Duration::zero())});
    state->set(Result<Parameter>(Parameter(std::forward<A>(argument))));
    return Future<Parameter>(std::move(state));
  }
}

// Makes the call by `call(values)`, a Future<Value>, when the arguments are there; they or it may
// fail. `timeout`: the call's own.
template <typename Value, typename All, typename Call>
Future<Value> call_when_ready(Future<All> arguments, FutureOptions options, Duration timeout,
                              Call call) {
  // What the result waits for: first the arguments, then the call.
  struct WaitsFor {
    std::shared_ptr<FutureCore> now() {
      MutexLock lock(mutex);
      return part;
    }
    Mutex mutex;
    std::shared_ptr<FutureCore> part TROUPE_GUARDED_BY(mutex);
  };
  const auto all = FutureAccess::state(std::move(arguments));
  const auto waits_for = std::make_shared<WaitsFor>();
  {
    MutexLock lock(waits_for->mutex);
    waits_for->part = all;
  }
  if (all->ends_by()) options.ends_by = Deadline::after(all->ends_by()->remaining() + timeout);
  options.cancel = [waits_for] { waits_for->now()->cancel(); };
  const auto state = std::make_shared<ComposedState<NonVoid<Value>>>(
      std::move(options), [waits_for] { return waits_for->now()->late(); });
  all->on_ready(
      [all, state, waits_for, call = std::move(call)]() mutable {
        auto values = all->take();
        if (!values.ok()) return (void)state->set(values.status());
        const auto made = FutureAccess::state(call(std::move(*values)));
        {
          MutexLock lock(waits_for->mutex);
          waits_for->part = made;
        }
        if (state->ready()) made->cancel();  // it was cancelled meanwhile
        made->on_ready([made, state] { state->set(made->take()); }, /*direct=*/true);
      },
      /*direct=*/true);
  return Future<Value>(state);
}

}  // namespace troupe::detail
