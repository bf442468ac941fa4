#pragma once
// StreamReader<T>: what a call of a method that returns Stream<T> (stream.h) gives its caller, and
// a task that does so (tasks.h) whoever submits it.
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
// called, the actor ends the stream. Errors are those of calls, after the items
// that came before: kActorDied, kUnavailable, kDeadlineExceeded, kCancelled, kActorError, ….
//
// Thread-safe, but one thread at a time takes items. A reader that was moved from ends with
// kFailedPrecondition.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "troupe/detail/call_line.h"
#include "troupe/detail/mutex.h"
#include "troupe/future.h"
#include "troupe/serialize.h"

namespace troupe {

namespace detail {

// kFailedPrecondition where the method that this thread runs must not wait.
Status check_may_wait_for_item();
Status wrong_item_error(std::uint64_t index, std::uint64_t expected, std::uint64_t allowed);
void check_one_reader(bool waiting);
// Waits until `there`, which is asked under the mutex; a task that waits for long lends its CPUs
// meanwhile. False: the deadline passed.
bool wait_for_item(Mutex& mutex, CondVar& changed, Deadline deadline,
                   const std::function<bool()>& there) TROUPE_REQUIRES(mutex);

// Whatever the items come from: a call, or a task (tasks.h).
template <typename T>
class StreamState : public Cancellable, public std::enable_shared_from_this<StreamState<T>> {
 public:
  using Next = Result<std::optional<T>>;

  StreamState(std::shared_ptr<Executor> executor, std::uint64_t window)
      : executor_(std::move(executor)), window_(window), allowed_(window) {}
  explicit StreamState(Status ended) : window_(1), end_(std::move(ended)) {}
  virtual ~StreamState() = default;

  Next next(Deadline deadline) TROUPE_EXCLUDES(mutex_) {
    std::optional<Next> found;
    {
      MutexLock lock(mutex_);
      found = take_locked();
      if (!found) {
        TROUPE_RETURN_IF_ERROR(check_may_wait_for_item());
        const auto there = [&]() TROUPE_NO_ANALYSIS { return !items_.empty() || end_; };
        if (!wait_for_item(mutex_, ready_, deadline, there)) return late_locked();
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
      check_one_reader(waiting_.has_value());
      found = take_locked();
      if (!found) {
        waiting_.emplace(std::make_shared<FutureState<std::optional<T>>>(
            FutureOptions{.executor = executor_, .ends_by = ends_by()}));
        return waiting_->future();
      }
    }
    allow_more();
    return make_ready_future<std::optional<T>>(std::move(*found));
  }

  void cancel(const char* why = "the caller cancelled it") override {
    if (forked()) return;  // it is the parent's
    if (finish(Status(Code::kCancelled, why))) give_up();
  }

 protected:
  // Where the items come from; of one that was refused from nowhere.
  virtual void allow_items(std::uint64_t items) { (void)items; }
  virtual void give_up() {}
  virtual std::optional<Status> late(const char* what) const {
    (void)what;
    return std::nullopt;
  }
  virtual std::optional<Deadline> ends_by() const { return std::nullopt; }
  virtual bool forked() const { return false; }

  // By `line`. `repeats`: those that have come before may come again, and are passed over.
  void item_arrived(std::uint64_t index, std::span<const std::byte> bytes, const CallLine& line,
                    bool repeats) TROUPE_EXCLUDES(mutex_) {
    if (repeats && index <= arrived()) return;
    const DecodeContext context = line.decode_context();
    auto value = decode_value<T>(bytes, context);
    if (context.intake) line.take_references(std::move(context.intake), index);
    std::optional<Promise<std::optional<T>>> waiting;
    Status wrong = value.status();
    {
      MutexLock lock(mutex_);
      if (end_) return;
      if (wrong.ok() && (index != ++arrived_ || index > allowed_)) {
        wrong = wrong_item_error(index, arrived_, allowed_);
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
      if (finish(std::move(wrong))) give_up();
      return;
    }
    if (!waiting) return;
    allow_more();
    waiting->set(std::optional<T>(std::move(*value)));
  }
  // No more comes.
  void source_ended(const Status& status, Continuations* later) {
    if (later != nullptr) {  // users' code does not run here
      later->push_back([self = this->shared_from_this(), status] { self->finish(status); });
    } else {
      finish(status);
    }
  }
  std::uint64_t arrived() const TROUPE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return arrived_;
  }
  std::uint64_t allowed() const TROUPE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return allowed_;
  }
  bool has_ended() const TROUPE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return end_.has_value();
  }

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
    auto known = late(kWhat);
    Status status = known ? std::move(*known) : Status(Code::kDeadlineExceeded, kWhat);
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
    allow_items(allowed);
  }

  const std::shared_ptr<Executor> executor_;
  const std::uint64_t window_;
  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<T> items_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t arrived_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t taken_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t allowed_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::optional<Status> end_ TROUPE_GUARDED_BY(mutex_);
  std::optional<Promise<std::optional<T>>> waiting_ TROUPE_GUARDED_BY(mutex_);
};

// Its items come from a call of an actor's method.
template <typename T>
class CallStreamState final : public StreamState<T>, public CallSink {
  using Base = StreamState<T>;

 public:
  CallStreamState(FutureOptions options, const std::shared_ptr<ActorClient>& client,
                  const std::shared_ptr<ActorChannel>& channel, std::uint64_t window)
      : Base(std::move(options.executor), window), line_(client, channel) {}

  CallLine& line() { return line_; }

  void item(std::uint64_t index, std::span<const std::byte> bytes) override {
    Base::item_arrived(index, bytes, line_, /*repeats=*/false);
  }
  void answer(const Status& status, std::span<const std::byte>, Continuations* later) override {
    Base::source_ended(status, later);
  }
  void abandon() override {
    Base::source_ended(Status(Code::kInternal, "nobody ended the stream"), nullptr);
  }

 private:
  void allow_items(std::uint64_t items) override { line_.allow_items(items); }
  void give_up() override { line_.cancel(); }
  std::optional<Status> late(const char* what) const override { return line_.late(what); }
  std::optional<Deadline> ends_by() const override { return line_.ends_by(); }
  bool forked() const override { return line_.forked(); }

  CallLine line_;
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
