#pragma once
// Work that may wait for others, off an actor's own thread: a thread for each piece.

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "troupe/detail/mutex.h"

namespace troupe::train {

class SideThreads {
 public:
  SideThreads() = default;
  // Waits for what runs: every piece of work has a deadline.
  ~SideThreads() {
    std::list<Piece> pieces;
    {
      MutexLock lock(mutex_);
      pieces.swap(pieces_);
    }
    for (auto& piece : pieces) piece.thread.join();
  }
  SideThreads(const SideThreads&) = delete;
  SideThreads& operator=(const SideThreads&) = delete;

  // Any thread; returns at once.
  void run(std::function<void()> work) {
    MutexLock lock(mutex_);
    for (auto it = pieces_.begin(); it != pieces_.end();) {
      // Asked once: it may end between two questions.
      const bool done = *it->done;
      if (done) it->thread.join();
      it = done ? pieces_.erase(it) : std::next(it);
    }
    auto done = std::make_shared<std::atomic<bool>>(false);
    pieces_.push_back({std::thread([work = std::move(work), done] {
                         work();
                         *done = true;
                       }),
                       done});
  }

 private:
  struct Piece {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  Mutex mutex_;
  std::list<Piece> pieces_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::train
