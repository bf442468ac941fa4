#pragma once
// Where continuations run.

#include <functional>
#include <memory>

namespace troupe {

// A queue of work with one thread behind it. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` later, after what was posted before. Work that comes after the end is dropped.
  virtual void post(std::function<void()> work) = 0;
  // Whether the caller is the thread that runs the work.
  virtual bool in_thread() const = 0;
  // Where several actors share the thread: the queue of the one whose code runs now, which drops
  // its work when that one has ended. Null: this queue.
  virtual std::shared_ptr<Executor> of_running() { return nullptr; }
};

}  // namespace troupe
