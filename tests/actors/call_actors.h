#pragma once
// Actor classes for the tests of how calls run: inside each other, at once, asynchronously, as
// streams.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/actor.h"
#include "troupe/detail/mutex.h"
#include "troupe/handle.h"
#include "troupe/unique_fd.h"

namespace troupe::tests {

// Whoever opens `fifo` for reading goes on when this has been reached.
inline void reach(const std::string& fifo) {
  const UniqueFd reached(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
}

// Calls itself and others of its class, and looks at what its calls may do.
class Nester {
 public:
  using Peer = ActorHandle<Nester>;
  explicit Nester(ActorContext& context) : context_(context) {}
  void ping() const {}
  std::int64_t remaining_ms() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(context_.deadline()->remaining())
        .count();
  }
  // What a call of an hour, made in here, has left where it arrives.
  Result<std::int64_t> remaining_of_nested_ms(Peer peer, bool inherit) {
    return peer.with({.timeout = std::chrono::hours(1), .inherit = inherit})
        .call<&Nester::remaining_ms>()
        .get(std::chrono::seconds(20));
  }
  // Until its caller gives it up; 20 s at most.
  void run_until_stopped(const std::string& fifo) {
    reach(fifo);
    const std::stop_token stop = context_.call_stop_token();
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    while (!stop.stop_requested() && !patience.passed()) std::this_thread::yield();
    stopped_ = stop.stop_requested();
  }
  bool stopped() const { return stopped_; }
  // A call made in here that lasts; how it ended is kept.
  void nest(Peer peer, const std::string& fifo, bool inherit) {
    last_ = peer.with({.timeout = std::chrono::hours(1), .inherit = inherit})
                .call<&Nester::run_until_stopped>(fifo)
                .get(std::chrono::seconds(20));
  }
  // Calls the next of `ring`, which does the same with the rest; waits for it.
  Result<int> around(std::vector<Peer> ring, std::size_t at) {
    if (at == ring.size()) return 0;
    return ring[at].call<&Nester::around>(ring, at + 1).get(std::chrono::seconds(20));
  }
  // Not as a Status: that would be the call's own failure.
  std::string last_text() const { return last_.to_string(); }

  static constexpr auto methods =
      troupe::methods<&Nester::ping, &Nester::remaining_ms, &Nester::remaining_of_nested_ms,
                      &Nester::run_until_stopped, &Nester::stopped, &Nester::nest, &Nester::around,
                      &Nester::last_text>;

 private:
  ActorContext& context_;
  bool stopped_ = false;
  Status last_;
};

// Counts who is inside; as many meet as its concurrency allows.
class Meeting {
 public:
  explicit Meeting(ActorContext& context) : context_(context) {}
  void ping() const {}
  // Returns when `count` are in here at once.
  bool meet(int count) {
    MutexLock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    const bool met = changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(20)),
                                         [&]() TROUPE_NO_ANALYSIS { return inside_ >= count; });
    return met;
  }
  int inside() {
    MutexLock lock(mutex_);
    return inside_;
  }
  // Waits for a call of its own.
  Result<int> ask_itself() {
    return context_.self<Meeting>().call<&Meeting::inside>().get(std::chrono::seconds(20));
  }

  static constexpr auto methods =
      troupe::methods<&Meeting::ping, &Meeting::meet, &Meeting::inside, &Meeting::ask_itself>;

 private:
  ActorContext& context_;
  Mutex mutex_;
  CondVar changed_;
  int inside_ TROUPE_GUARDED_BY(mutex_) = 0;
};

// A door that is held shut by one group and opened by another.
class Groups {
 public:
  void ping() const {}
  bool hold(const std::string& fifo) {
    reach(fifo);
    MutexLock lock(mutex_);
    return changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(20)),
                               [&]() TROUPE_NO_ANALYSIS { return open_; });
  }
  void open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // In a group with a limit of one: no lock is needed.
  bool next(int number) { return number == ++count_; }
  int touch() { return ++touched_; }

  static constexpr auto methods =
      troupe::methods<&Groups::ping, &Groups::hold, &Groups::open, &Groups::next, &Groups::touch>;
  static constexpr auto groups =
      troupe::concurrency_groups<troupe::ConcurrencyGroup<"door", 2, &Groups::open, &Groups::ping>,
                                 troupe::ConcurrencyGroup<"count", 1, &Groups::next>>;
  static constexpr std::size_t kMaxPendingCalls = 5;

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ TROUPE_GUARDED_BY(mutex_) = false;
  int count_ = 0;
  int touched_ = 0;
};

// One call at a time, and few that may wait.
class Narrow {
 public:
  explicit Narrow(ActorContext& context) : context_(context) {}
  void ping() const {}
  void hold(const std::string& fifo) {
    reach(fifo);
    const std::stop_token stop = context_.call_stop_token();
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    while (!stop.stop_requested() && !patience.passed()) std::this_thread::yield();
  }
  int touch() { return ++touched_; }
  static constexpr auto methods = troupe::methods<&Narrow::ping, &Narrow::hold, &Narrow::touch>;
  static constexpr std::size_t kMaxPendingCalls = 5;

 private:
  ActorContext& context_;
  int touched_ = 0;
};

// Asynchronous methods; one in progress at a time, unless its options say more.
class Async {
 public:
  explicit Async(ActorContext& context) : context_(context) {}
  void ping() const {}
  // The length of an argument that it refers to, after the actor has been elsewhere.
  troupe::Task<std::size_t> length(const std::string& text, ActorHandle<Nester> peer) {
    const Status elsewhere = co_await peer.call<&Nester::ping>();
    if (!elsewhere.ok()) co_return elsewhere;
    co_return text.size();
  }
  troupe::Task<int> twice(int n) {
    const Result<int> once = co_await add(n, n);
    co_return once.value();
  }
  troupe::Task<int> fail(const std::string& text) {
    (void)co_await troupe::make_ready_future<int>(1);
    if (text.empty()) co_return error(Code::kNotFound, "no text");
    throw std::runtime_error(text);
  }
  troupe::Task<void> block(ActorHandle<Nester> peer) {
    auto lasts = peer.call<&Nester::run_until_stopped>("");
    blocked_ = lasts.get(std::chrono::seconds(20));
    lasts.cancel();
    co_return;
  }
  std::string blocked() const { return blocked_.to_string(); }
  // Goes on when release() says so; the second thing that happens in here.
  troupe::Task<int> wait_for_release() {
    log_ += 'b';
    auto released = released_.future();
    (void)co_await std::move(released);
    log_ += 'e';
    co_return 1;
  }
  void release() { released_.set(Status()); }
  // One of several: elsewhere between its beginning and its end.
  troupe::Task<void> visit(ActorHandle<Nester> peer) {
    log_ += 'b';
    (void)co_await peer.call<&Nester::ping>();
    log_ += 'e';
  }
  troupe::Task<void> nest(ActorHandle<Nester> peer, std::string fifo) {
    last_ = co_await peer.call<&Nester::run_until_stopped>(fifo);
  }
  std::string last() const { return last_.to_string(); }
  std::string log() const { return log_; }

  static constexpr auto methods =
      troupe::methods<&Async::ping, &Async::length, &Async::twice, &Async::fail, &Async::block,
                      &Async::blocked, &Async::wait_for_release, &Async::release, &Async::visit,
                      &Async::nest, &Async::last, &Async::log>;

 private:
  troupe::Task<int> add(int a, int b) { co_return a + b; }
  ActorContext& context_;
  Promise<void> released_;
  Status blocked_, last_;
  std::string log_;
};

// Streams, and how far they have come.
class Source {
 public:
  explicit Source(ActorContext& context) : context_(context) {}
  void ping() const {}
  troupe::Stream<int> count_to(int n) {
    const Ended ended{*this};
    for (int i = 1; i <= n; ++i) {
      ++produced_;
      co_yield i;
    }
  }
  troupe::Stream<int> fail_after(int n, std::string text) {
    for (int i = 1; i <= n; ++i) co_yield i;
    if (text.empty()) co_yield error(Code::kNotFound, "no more");
    throw std::runtime_error(text);
  }
  // The squares of another source's numbers.
  troupe::Stream<std::int64_t> squares(ActorHandle<Source> other, int n) {
    auto numbers = other.call<&Source::count_to>(n);
    for (;;) {
      auto number = co_await numbers.next();
      if (!number.ok()) co_yield number.status();
      if (!*number) co_return;
      co_yield std::int64_t{**number} * **number;
    }
  }
  troupe::Task<int> sum(ActorHandle<Source> other, int n) {
    auto numbers = other.with({.stream_window = 2}).call<&Source::count_to>(n);
    int sum = 0;
    for (;;) {
      auto number = co_await numbers.next();
      if (!number.ok()) co_return number.status();
      if (!*number) co_return sum;
      sum += **number;
    }
  }
  int produced() const { return produced_; }
  int ended() const { return ended_; }
  static constexpr auto methods =
      troupe::methods<&Source::ping, &Source::count_to, &Source::fail_after, &Source::squares,
                      &Source::sum, &Source::produced, &Source::ended>;
  static constexpr int kMaxConcurrency = 8;

 private:
  struct Ended {
    Source& source;
    ~Ended() { ++source.ended_; }
  };
  ActorContext& context_;
  int produced_ = 0;
  int ended_ = 0;
};

// Makes large answers, and says how many it has begun.
class Bulk {
 public:
  void ping() const {}
  wire::Bytes make(std::uint64_t bytes) {
    return wire::Bytes(bytes, static_cast<std::byte>(++made_));
  }
  troupe::Stream<wire::Bytes> stream(int count, std::uint64_t bytes) {
    for (int i = 0; i < count; ++i) co_yield make(bytes);
  }
  int made() const { return made_; }
  static constexpr auto methods =
      troupe::methods<&Bulk::ping, &Bulk::make, &Bulk::stream, &Bulk::made>;
  static constexpr int kMaxConcurrency = 4;  // on one thread: it has a stream

 private:
  int made_ = 0;
};

// The same, on several threads.
class BulkPool {
 public:
  void ping() const {}
  wire::Bytes make(std::uint64_t bytes) {
    return wire::Bytes(bytes, static_cast<std::byte>(++made_));
  }
  int made() const { return made_; }
  static constexpr auto methods =
      troupe::methods<&BulkPool::ping, &BulkPool::make, &BulkPool::made>;
  static constexpr int kMaxConcurrency = 3;

 private:
  std::atomic<int> made_ = 0;
};

// What it says has happened, has happened once, whatever dies.
class Ledger {
 public:
  void ping() const {}
  int add(int n) { return sum_ += n; }
  int sum() const { return sum_; }
  int save() const { return sum_; }
  void load(int sum) { sum_ = sum; }
  static constexpr auto methods = troupe::methods<&Ledger::ping, &Ledger::add, &Ledger::sum>;
  static constexpr bool kExactlyOnce = true;

 private:
  int sum_ = 0;
};
// The run of a Ledger's options: its first process ends by SIGKILL when its third call has been
// saved and not answered.
inline constexpr const char* kDieBeforeThirdAnswer = "die-before-third-answer";

// An abstract class, which callers include instead of the class that does the work.
class Speaker {
 public:
  virtual ~Speaker() = default;
  virtual std::string speak(const std::string& to) = 0;
  static constexpr auto methods = troupe::methods<&Speaker::speak>;
};
class PoliteSpeaker final : public Speaker {
 public:
  using ActsAs = Speaker;
  std::string speak(const std::string& to) override { return greeting_ + ", " + to; }
  void greet_with(const std::string& greeting) { greeting_ = greeting; }
  static constexpr auto methods = troupe::methods<&Speaker::speak, &PoliteSpeaker::greet_with>;

 private:
  std::string greeting_ = "Dear";
};

inline constexpr auto kCallActors = troupe::actors<Nester, Meeting, Groups, Narrow, Async, Source,
                                                   Bulk, BulkPool, Ledger, PoliteSpeaker>;

}  // namespace troupe::tests
