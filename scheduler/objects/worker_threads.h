#pragma once
// A few threads for work that blocks: disk and network.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::scheduler {

// Thread-safe.
class WorkerThreads {
 public:
  WorkerThreads(std::size_t threads_max, std::size_t queue_max)
      : threads_max_(threads_max), queue_max_(queue_max) {}
  ~WorkerThreads() { close(); }
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  // False: too much waits already.
  bool run(std::function<void()> work);
  // What has not begun does not; what runs is waited for.
  void close();

 private:
  void loop();

  const std::size_t threads_max_;
  const std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool closed_ = false;
};

}  // namespace troupe::scheduler
