#pragma once
// Stream<T>: a method that gives many results, one after the other, as fast as its caller takes
// them.
//
//   troupe::Stream<int> count_to(int n) {          // in the actor
//     for (int i = 1; i <= n; ++i) co_yield i;
//   }
//   auto numbers = counter.call<&Counter::count_to>(1000);            // the caller:
//   stream_reader.h
//
// A coroutine as Task (task.h) is: on the actor's thread, in progress from its call to its end,
// and it may co_await. At a co_yield it is suspended while as many items as the caller allows
// (CallOptions::stream_window) are on the way or not taken yet. `co_yield Status` that is no
// success ends the stream with that error; so does what it throws, as kActorError. When the caller
// cancels, or is gone, it is destroyed at the co_yield where it is.

#include <coroutine>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "troupe/serialize.h"
#include "troupe/task.h"

namespace troupe {

namespace detail {
void lend(std::vector<std::shared_ptr<const void>> kept);  // actor_class.h
}

template <typename T>
class [[nodiscard]] Stream {
 public:
  using value_type = T;
  struct promise_type : detail::TaskPromiseBase {
    Stream get_return_object() {
      return Stream(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always yield_value(const T& value) {
      item.emplace(encode(value));
      return {};
    }
    std::suspend_always yield_value(Result<T> value) {
      if (value.ok()) {
        item.emplace(encode(*value));
      } else {
        item.emplace(value.status());
      }
      return {};
    }
    void return_void() {}
    // What was yielded last and not taken yet, as it travels.
    std::optional<Result<std::vector<std::byte>>> item;

   private:
    static std::vector<std::byte> encode(const T& value) {
      Encoder out;
      Codec<T>::encode(out, value);
      if (!out.kept().empty()) detail::lend(std::move(out.kept()));
      return out.take();
    }
  };

  Stream(Stream&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(coroutine_, other.coroutine_);
    return *this;
  }
  ~Stream() {
    if (coroutine_) coroutine_.destroy();
  }

  // (Of Troupe's own.)
  std::coroutine_handle<promise_type> coroutine() const { return coroutine_; }
  bool done() const { return !coroutine_ || coroutine_.done(); }
  std::optional<Result<std::vector<std::byte>>> take_item() {
    if (!coroutine_) return std::nullopt;
    return std::exchange(coroutine_.promise().item, std::nullopt);
  }
  // Once, after done(); throws what the coroutine threw.
  void take() {
    if (!coroutine_) {
      throw StatusError(Status(Code::kFailedPrecondition, "an empty Stream: it was moved from"));
    }
    auto& promise = coroutine_.promise();
    if (promise.exception) std::rethrow_exception(promise.exception);
  }

 private:
  explicit Stream(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace troupe
