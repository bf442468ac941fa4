#include "train/checkpoint/worker_thread.h"

namespace troupe::train {

WorkerThread::WorkerThread() : thread_([this] { run(); }) {}

WorkerThread::~WorkerThread() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void WorkerThread::post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

bool WorkerThread::wait_idle(Deadline deadline) {
  const MutexLock lock(mutex_);
  return changed_.wait_until(mutex_, deadline, [this] { return tasks_.empty() && !busy_; });
}

void WorkerThread::run() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      const bool woken = changed_.wait_until(mutex_, Deadline::after(std::chrono::hours(1)),
                                             [this] { return !tasks_.empty() || ending_; });
      if (!woken) continue;
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
    }
    task();
    task = nullptr;  // what it holds goes before anybody hears that it is done
    const MutexLock lock(mutex_);
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace troupe::train
