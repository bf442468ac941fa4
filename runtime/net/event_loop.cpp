// EventLoop over Asio's epoll reactor: the only source that includes Asio.

#include "runtime/net/event_loop.h"

#include <pthread.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/parents_descriptors.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/short_slices.h"
#include "runtime/base/start_thread.h"

namespace troupe::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

class AsioLoop final : public RunnableLoop {
 public:
  AsioLoop() : thread_(std::this_thread::get_id()), io_(std::make_unique<asio::io_context>(1)) {
    guard_.emplace(io_->get_executor());
  }

  // Whoever waits may hold objects that unwatch or post when they go: they find an empty loop.
  ~AsioLoop() override {
    set_thread(std::this_thread::get_id());
    closing_ = true;
    auto watches = std::exchange(watches_, {});
    auto timers = std::exchange(timers_, {});
    auto signals = std::exchange(signals_, {});
    watches.clear();
    timers.clear();
    signals.clear();
    guard_.reset();
    io_.reset();
  }

  // (A forked child shares the epoll set and the timer with its parent, and has no thread that
  // would run anything: there all of these do nothing.)
  void post(std::function<void()> work) override {
    if (closing_ || process_.is_forked()) return;
    asio::post(*io_, std::move(work));
  }

  TimerId call_after(Duration delay, std::function<void()> work) override {
    const TimerId id = next_timer_.fetch_add(1);
    const TimePoint at = clock_.now() + delay;
    if (in_loop_thread()) {
      start_timer(id, at, std::move(work));
    } else {
      post([this, id, at, work = std::move(work)]() mutable {
        start_timer(id, at, std::move(work));
      });
    }
    return id;
  }

  void cancel(TimerId timer) override {
    TROUPE_CHECK(in_loop_thread());
    if (!process_.is_forked()) timers_.erase(timer);
  }

  void watch_readable(int fd, std::function<void()> ready) override {
    const auto watch = watch_of(fd);
    if (!watch) return;
    TROUPE_CHECK(!watch->on_readable, "descriptor {} is watched already", fd);
    watch->on_readable = std::make_shared<std::function<void()>>(std::move(ready));
    await_readable(watch);
  }

  void when_readable(int fd, std::function<void()> ready) override {
    const auto watch = watch_of(fd);
    if (!watch) return;
    TROUPE_CHECK(!watch->on_readable, "descriptor {} is watched already", fd);
    await_once(watch, asio::posix::stream_descriptor::wait_read, watch->once_readable,
               std::move(ready));
  }

  void when_writable(int fd, std::function<void()> ready) override {
    const auto watch = watch_of(fd);
    if (!watch) return;
    await_once(watch, asio::posix::stream_descriptor::wait_write, watch->on_writable,
               std::move(ready));
  }

  void unwatch(int fd) override {
    TROUPE_CHECK(in_loop_thread());
    if (process_.is_forked()) return;
    const auto found = watches_.find(fd);
    if (found == watches_.end()) return;
    const auto watch = std::move(found->second);
    watches_.erase(found);
    watch->stop();
  }

  bool in_loop_thread() const override {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  const Clock& clock() const override { return clock_; }

  void run() override {
    set_thread(std::this_thread::get_id());
    io_->run();
    // A later run() goes on where this one was stopped.
    io_->restart();
  }
  void stop() override { io_->stop(); }

  void on_signal(int signal, std::function<void()> handler) override {
    auto set = std::make_shared<asio::signal_set>(*io_, signal);
    signals_.push_back(set);
    await_signal(set.get(), std::make_shared<std::function<void()>>(std::move(handler)));
  }

  void set_thread(std::thread::id id) { thread_.store(id, std::memory_order_relaxed); }

 private:
  struct Watch {
    explicit Watch(asio::io_context& io, int fd) : descriptor(io, fd) {
      withhold_from_children(fd);
    }
    ~Watch() { stop(); }
    // The descriptor stays its owner's.
    void stop() {
      active = false;
      if (!descriptor.is_open()) return;
      withhold_no_more(descriptor.native_handle());
      descriptor.release();
    }
    asio::posix::stream_descriptor descriptor;
    std::shared_ptr<std::function<void()>> on_readable;
    std::function<void()> once_readable;
    std::function<void()> on_writable;
    bool active = true;
  };
  struct Timer {
    Timer(asio::io_context& io, TimePoint at, std::function<void()> work)
        : timer(io, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(at)),
          work(std::move(work)) {}
    asio::steady_timer timer;
    std::function<void()> work;
  };

  std::shared_ptr<Watch> watch_of(int fd) {
    TROUPE_CHECK(in_loop_thread());
    if (closing_ || process_.is_forked()) return nullptr;
    auto& watch = watches_[fd];
    if (!watch) watch = std::make_shared<Watch>(*io_, fd);
    return watch;
  }

  void await_readable(const std::shared_ptr<Watch>& watch) {
    watch->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                 [this, watch](const error_code& ec) {
                                   if (ec == asio::error::operation_aborted || !watch->active) {
                                     return;
                                   }
                                   // The callback may unwatch, and so destroy itself.
                                   const auto ready = watch->on_readable;
                                   (*ready)();
                                   if (watch->active) await_readable(watch);
                                 });
  }

  // `slot` is one of the watch's, and keeps what is to be called.
  static void await_once(const std::shared_ptr<Watch>& watch,
                         asio::posix::stream_descriptor::wait_type what,
                         std::function<void()>& slot, std::function<void()> ready) {
    const bool waiting = slot != nullptr;
    slot = std::move(ready);
    if (waiting) return;
    watch->descriptor.async_wait(what, [watch, &slot](const error_code& ec) {
      if (ec == asio::error::operation_aborted || !watch->active) return;
      const auto work = std::exchange(slot, nullptr);
      if (work) work();
    });
  }

  void start_timer(TimerId id, TimePoint at, std::function<void()> work) {
    if (closing_ || process_.is_forked()) return;
    auto timer = std::make_unique<Timer>(*io_, at, std::move(work));
    timer->timer.async_wait([this, id](const error_code& ec) {
      if (ec) return;
      // A timer that expired and was cancelled before its turn came is gone from the table.
      const auto found = timers_.find(id);
      if (found == timers_.end()) return;
      const auto work = std::move(found->second->work);
      timers_.erase(found);
      work();
    });
    timers_.emplace(id, std::move(timer));
  }

  void await_signal(asio::signal_set* set, std::shared_ptr<std::function<void()>> handler) {
    set->async_wait([this, set, handler](const error_code& ec, int) {
      if (ec) return;
      (*handler)();
      await_signal(set, handler);
    });
  }

  const SystemClock clock_;
  const ProcessStamp process_;
  std::atomic<std::thread::id> thread_;
  std::atomic<TimerId> next_timer_{1};
  std::atomic<bool> closing_{false};
  std::unique_ptr<asio::io_context> io_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard_;
  std::unordered_map<int, std::shared_ptr<Watch>> watches_;
  std::unordered_map<TimerId, std::unique_ptr<Timer>> timers_;
  std::vector<std::shared_ptr<asio::signal_set>> signals_;
};

}  // namespace

std::unique_ptr<RunnableLoop> make_event_loop() { return std::make_unique<AsioLoop>(); }

struct LoopThread::State {
  static Result<std::unique_ptr<State>> start(const char* thread_name);
  const ProcessStamp process;
  AsioLoop loop;
  std::thread thread;
};

Result<std::unique_ptr<LoopThread::State>> LoopThread::State::start(const char* thread_name) {
  auto state = std::make_unique<State>();
  state->loop.set_thread({});
  state->thread = TROUPE_TRY(
      start_thread("run an event loop", [loop = &state->loop, name = std::string(thread_name)] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        take_short_slices();
        loop->run();
      }).with("thread", thread_name));
  return state;
}

Result<std::unique_ptr<LoopThread>> LoopThread::start(const char* thread_name) {
  return std::unique_ptr<LoopThread>(new LoopThread(TROUPE_TRY(State::start(thread_name))));
}

LoopThread::LoopThread(const char* thread_name) {
  auto started = State::start(thread_name);
  TROUPE_CHECK(started.ok(), "{}", started.status().to_string());
  state_ = std::move(*started);
}

LoopThread::LoopThread(std::unique_ptr<State> state) : state_(std::move(state)) {}

LoopThread::~LoopThread() {
  if (state_->process.is_forked()) {
    keep_forked(state_.release());
    return;
  }
  TROUPE_CHECK(!state_->loop.in_loop_thread(), "a loop's thread cannot wait for its own end");
  state_->loop.stop();
  state_->thread.join();
}

EventLoop& LoopThread::loop() { return state_->loop; }

}  // namespace troupe::net
