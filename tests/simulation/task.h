#pragma once
// Coroutines for what a simulated process does: it is suspended wherever it waits, and destroyed
// where it is killed.

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace troupe::simulation {

// Begins when it is awaited (or resumed, the outermost one), and goes on with whoever awaits it.
// Destroying a task destroys all that it awaits.
template <typename T>
class [[nodiscard]] Task {
 public:
  struct Final {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> done) noexcept {
      const auto then = done.promise().then;
      return then ? then : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  struct promise_type {
    std::coroutine_handle<> then;
    std::exception_ptr failure;
    std::optional<T> value;
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Final final_suspend() noexcept { return {}; }
    void unhandled_exception() { failure = std::current_exception(); }
    void return_value(T result) { value.emplace(std::move(result)); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> then) noexcept {
    handle_.promise().then = then;
    return handle_;
  }
  T await_resume() {
    if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
    return std::move(*handle_.promise().value);
  }

  std::coroutine_handle<> handle() const { return handle_; }
  // What the outermost task threw, if it did.
  std::exception_ptr failure() const {
    return handle_ && handle_.done() ? handle_.promise().failure : nullptr;
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace troupe::simulation
