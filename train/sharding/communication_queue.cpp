#include "train/sharding/communication_queue.h"

#include <deque>
#include <thread>

#include "troupe/detail/mutex.h"

namespace troupe::train {
namespace {

constexpr auto kIdle = std::chrono::seconds(5);

class InlineQueue final : public CommunicationQueue {
 public:
  Ticket submit(std::function<Status()> work) override {
    if (failure_.ok()) failure_ = work();
    return ++submitted_;
  }
  Status wait(Ticket) override { return failure_; }
  Status drain() override { return failure_; }
  bool overlaps() const override { return false; }

 private:
  Status failure_;
  Ticket submitted_ = 0;
};

class ThreadedQueue final : public CommunicationQueue {
 public:
  explicit ThreadedQueue(Duration limit) : limit_(limit), thread_([this] { loop(); }) {}
  ~ThreadedQueue() override {
    {
      MutexLock lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Ticket submit(std::function<Status()> work) override {
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
    return ++submitted_;
  }
  Status wait(Ticket ticket) override {
    MutexLock lock(mutex_);
    return wait_for(ticket);
  }
  Status drain() override {
    MutexLock lock(mutex_);
    return wait_for(submitted_);
  }
  bool overlaps() const override { return true; }

 private:
  Status wait_for(Ticket ticket) TROUPE_REQUIRES(mutex_) {
    while (done_ < ticket) {
      // The limit is one piece's, however many are queued.
      const Ticket before = done_;
      if (!changed_.wait_until(mutex_, Deadline::after(limit_),
                               [&]() TROUPE_NO_ANALYSIS { return done_ > before; })) {
        if (!failure_.ok()) return failure_;
        return error(Code::kDeadlineExceeded, "collective {} did not end in time", before + 1);
      }
    }
    return failure_;
  }

  void loop() {
    for (;;) {
      std::function<Status()> work;
      {
        MutexLock lock(mutex_);
        // Idle as long as its owner likes; the deadline only makes it look about now and then.
        while (!ends_ && work_.empty()) {
          changed_.wait_until(mutex_, Deadline::after(kIdle),
                              [&]() TROUPE_NO_ANALYSIS { return ends_ || !work_.empty(); });
        }
        if (ends_) return;
        work = std::move(work_.front());
        work_.pop_front();
        if (!failure_.ok()) work = nullptr;
      }
      Status status = work ? work() : Status();
      MutexLock lock(mutex_);
      if (failure_.ok()) failure_ = std::move(status);
      ++done_;
      changed_.notify_all();
    }
  }

  const Duration limit_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<Status()>> work_ TROUPE_GUARDED_BY(mutex_);
  Status failure_ TROUPE_GUARDED_BY(mutex_);
  Ticket submitted_ TROUPE_GUARDED_BY(mutex_) = 0;
  Ticket done_ TROUPE_GUARDED_BY(mutex_) = 0;
  bool ends_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<CommunicationQueue> make_inline_queue() { return std::make_unique<InlineQueue>(); }
std::unique_ptr<CommunicationQueue> make_threaded_queue(Duration limit) {
  return std::make_unique<ThreadedQueue>(limit);
}

}  // namespace troupe::train
