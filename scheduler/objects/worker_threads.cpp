#include "scheduler/objects/worker_threads.h"

#include <utility>

namespace troupe::scheduler {

bool WorkerThreads::run(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_ || queue_.size() >= queue_max_) return false;
  queue_.push_back(std::move(work));
  if (idle_ < queue_.size() && threads_.size() < threads_max_) {
    threads_.emplace_back([this] { loop(); });
  }
  changed_.notify_one();
  return true;
}

void WorkerThreads::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    --idle_;
    if (closed_) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void WorkerThreads::close() {
  std::vector<std::thread> threads;
  std::deque<std::function<void()>> unrun;  // goes without the lock
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    threads.swap(threads_);
    unrun.swap(queue_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace troupe::scheduler
