#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace troupe::train {

// Rows to hold at a time in what threads make of them before it is joined.
inline constexpr std::size_t kRowsAtOnce = 1 << 14;

// Calls `work(i)` once for every i below `count` and returns when all calls have: on the caller's
// thread and, where rows are many, on others beside it, one for each core at most, which stay for
// the next call. `work` must be safe to call from several threads at once; each call should write
// to a place of its own, so that the caller can join the results in the order of the rows.
void for_each_row(std::size_t count, const std::function<void(std::size_t)>& work);

// Work on one of these threads, beside the caller.
class RowWork {
 public:
  RowWork();
  ~RowWork();  // waits
  // Once.
  void run(std::function<void()> work);
  // Until it is done; the caller's thread helps.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::train
