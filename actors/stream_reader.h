#pragma once
// StreamReader<T>: what a call of a method that returns Stream<T> (stream.h) gives its caller.
//
//   auto numbers = counter.call<&Counter::count_to>(1000);
//   for (;;) {
//     Result<std::optional<int>> n = numbers.next(std::chrono::seconds(1));
//     if (!n.ok()) …            // the stream ended with this error, after the items before it
//     if (!*n) break;           // it has ended
//   }
//
// The actor goes on while at most CallOptions::stream_window items are on the way or not taken. The
// call's timeout covers the whole stream. Where the reader goes before the end, or cancel() is
// called, the actor ends the stream. Errors are those of calls (actor_channel.h), after the items
// that came before: kActorDied, kUnavailable, kDeadlineExceeded, kCancelled, kActorError, ….
//
// Thread-safe, but one thread at a time takes items. A reader that was moved from ends with
// kFailedPrecondition.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/call_state.h"
#include "actors/future.h"
#include "actors/serialize.h"
#include "actors/session/call_sink.h"

namespace troupe {

namespace detail {

template <typename T>
class StreamState final : public CallSink, public std::enable_shared_from_this<StreamState<T>> {
 public:
  using Next = Result<std::optional<T>>;

  StreamState(FutureOptions options, std::weak_ptr<ActorClient> client,
              std::shared_ptr<ActorChannel> channel, std::uint64_t window)
      : executor_(std::move(options.executor)),
        client_(std::move(client)),
        channel_(std::move(channel)),
        window_(window),
        allowed_(window) {}
  explicit StreamState(Status ended) : window_(1), end_(std::move(ended)) {}

  void sent(std::uint64_t sequence) { sequence_.store(sequence, std::memory_order_release); }
  CancelledWithOuter<StreamState>& with_outer() { return with_outer_; }

  Next next(Deadline deadline) TROUPE_EXCLUDES(mutex_) {
    std::optional<Next> found;
    {
      MutexLock lock(mutex_);
      found = take_locked();
      if (!found) {
        if (const RunningCall* call = RunningCall::current(); call && call->asynchronous()) {
          return error(Code::kFailedPrecondition,
                       "next(timeout) in the asynchronous method {} would stop its actor: "
                       "co_await next()",
                       call->label().to_string());
        }
        if (!ready_.wait_until(mutex_, deadline,
                               [&]() TROUPE_NO_ANALYSIS { return !items_.empty() || end_; })) {
          return late_locked();
        }
        found = take_locked();
      }
    }
    allow_more();
    return std::move(*found);
  }

  Future<std::optional<T>> next() TROUPE_EXCLUDES(mutex_) {
    std::optional<Next> found;
    {
      MutexLock lock(mutex_);
      TROUPE_CHECK(!waiting_, "a stream has one reader");
      found = take_locked();
      if (!found) {
        waiting_.emplace(std::make_shared<FutureState<std::optional<T>>>(
            FutureOptions{.executor = executor_, .fulfilled_by = nullptr, .cancel = nullptr}));
        return waiting_->future();
      }
    }
    allow_more();
    return make_ready_future<std::optional<T>>(std::move(*found));
  }

  void cancel(const char* why = "the caller cancelled it") {
    if (channel_ && channel_->forked()) return;  // it is the parent's
    if (!finish(Status(Code::kCancelled, why))) return;
    if (const auto sequence = sequence_.load(std::memory_order_acquire)) {
      channel_->cancel(sequence);
    }
  }

  void item(std::uint64_t index, std::span<const std::byte> bytes) override {
    auto value = decode_value<T>(bytes, DecodeContext{client_.lock()});
    std::optional<Promise<std::optional<T>>> waiting;
    Status wrong = value.status();
    {
      MutexLock lock(mutex_);
      if (end_) return;
      if (wrong.ok() && (index != ++arrived_ || index > allowed_)) {
        wrong = error(Code::kProtocol, "item {} of a stream came in place of {}, of {} allowed",
                      index, arrived_, allowed_);
      }
      if (wrong.ok() && waiting_) {
        waiting.swap(waiting_);
        ++taken_;
      } else if (wrong.ok()) {
        items_.push_back(std::move(*value));
        ready_.notify_all();
      }
    }
    if (!wrong.ok()) {
      if (finish(std::move(wrong))) channel_->cancel(sequence_.load(std::memory_order_acquire));
      return;
    }
    if (!waiting) return;
    allow_more();
    waiting->set(std::optional<T>(std::move(*value)));
  }
  void answer(const Status& status, std::span<const std::byte>, Continuations* later) override {
    if (later != nullptr) {  // users' code does not run here
      later->push_back([self = this->shared_from_this(), status] { self->finish(status); });
    } else {
      finish(status);
    }
  }
  void abandon() override { finish(Status(Code::kInternal, "nobody ended the stream")); }

 private:
  // False when it has ended already.
  bool finish(Status status) TROUPE_EXCLUDES(mutex_) {
    std::optional<Promise<std::optional<T>>> waiting;
    {
      MutexLock lock(mutex_);
      if (end_) return false;
      end_ = status;
      waiting.swap(waiting_);
      ready_.notify_all();
    }
    if (waiting) waiting->set(status.ok() ? Next(std::optional<T>()) : Next(status));
    return true;
  }
  Status late_locked() const TROUPE_REQUIRES(mutex_) {
    constexpr const char* kWhat = "no item of the stream before the deadline of next()";
    auto late = channel_->late(sequence_.load(std::memory_order_acquire), kWhat);
    Status status = late ? std::move(*late) : Status(Code::kDeadlineExceeded, kWhat);
    return status.with("items", arrived_);
  }
  // The next item, else the end, else nothing.
  std::optional<Next> take_locked() TROUPE_REQUIRES(mutex_) {
    if (!items_.empty()) {
      Next next(std::optional<T>(std::move(items_.front())));
      items_.pop_front();
      ++taken_;
      return next;
    }
    if (!end_) return std::nullopt;
    if (!end_->ok()) return Next(*end_);
    return Next(std::optional<T>());
  }
  // Once half of the window is free.
  void allow_more() TROUPE_EXCLUDES(mutex_) {
    std::uint64_t allowed = 0;
    {
      MutexLock lock(mutex_);
      if (end_ || (taken_ + window_ - allowed_) * 2 < window_) return;
      allowed = allowed_ = taken_ + window_;
    }
    channel_->allow_items(sequence_.load(std::memory_order_acquire), allowed);
  }

  const std::shared_ptr<Executor> executor_;
  const std::weak_ptr<ActorClient> client_;
  const std::shared_ptr<ActorChannel> channel_;
  const std::uint64_t window_;
  std::atomic<std::uint64_t> sequence_{0};
  Mutex mutex_;
  CondVar ready_;
  std::deque<T> items_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t arrived_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t taken_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t allowed_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::optional<Status> end_ TROUPE_GUARDED_BY(mutex_);
  std::optional<Promise<std::optional<T>>> waiting_ TROUPE_GUARDED_BY(mutex_);
  CancelledWithOuter<StreamState> with_outer_;
};

}  // namespace detail

// Moved, not copied.
template <typename T>
class [[nodiscard]] StreamReader {
  using State = detail::StreamState<T>;

 public:
  // (Of Troupe's own.)
  explicit StreamReader(std::shared_ptr<State> state) : state_(std::move(state)) {}
  explicit StreamReader(Status ended) : state_(std::make_shared<State>(std::move(ended))) {}
  StreamReader(StreamReader&&) noexcept = default;
  StreamReader& operator=(StreamReader&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~StreamReader() {
    if (state_) state_->cancel();
  }

  // The next item; nothing at the end. kDeadlineExceeded leaves the stream as it was. Once it has
  // ended with an error, that error.
  Result<std::optional<T>> next(Deadline deadline) {
    if (!state_) return empty_error();
    return state_->next(deadline);
  }
  Result<std::optional<T>> next(Duration timeout) { return next(Deadline::after(timeout)); }
  // The same for coroutines and continuations. One at a time; whoever cancels it loses the item
  // that comes.
  Future<std::optional<T>> next() {
    if (!state_) return make_ready_future<std::optional<T>>(empty_error());
    return state_->next();
  }
  // Ends it with kCancelled, after the items that have come; the actor ends the stream too.
  void cancel() {
    if (state_) state_->cancel();
  }

 private:
  static Status empty_error() {
    return Status(Code::kFailedPrecondition, "an empty StreamReader: it was moved from");
  }
  std::shared_ptr<State> state_;
};

}  // namespace troupe
