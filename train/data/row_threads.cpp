#include "train/data/row_threads.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "runtime/base/signal_block.h"

namespace troupe::train {
namespace {

constexpr std::size_t kThreadsMax = 16;
// A thread costs about as much as encoding so many short rows.
constexpr std::size_t kRowsPerThreadMin = 32;
// Rows that a thread takes at a time: rows are of unequal length.
constexpr std::size_t kRowsTakenMax = 16;

}  // namespace

void for_each_row(std::size_t count, const std::function<void(std::size_t)>& work) {
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads =
      std::clamp<std::size_t>(count / kRowsPerThreadMin, 1, std::min(cores, kThreadsMax));
  const std::size_t taken = std::clamp<std::size_t>(count / threads / 8, 1, kRowsTakenMax);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t begin; (begin = next.fetch_add(taken)) < count;)
      for (std::size_t i = begin; i < std::min(begin + taken, count); ++i) work(i);
  };
  std::vector<std::jthread> helpers;
  {
    const SignalBlock block;  // Ctrl-C is the caller's
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(run);
  }
  run();
}

}  // namespace troupe::train
