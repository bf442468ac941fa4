#pragma once
// Where continuations run.

#include <functional>

namespace troupe {

// A queue of work with one thread behind it. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` later, after what was posted before. Work that comes after the end is dropped.
  virtual void post(std::function<void()> work) = 0;
  // Whether the caller is the thread that runs the work.
  virtual bool in_thread() const = 0;
};

}  // namespace troupe
