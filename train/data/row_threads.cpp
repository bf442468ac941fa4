#include "train/data/row_threads.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <algorithm>

#include "runtime/base/signal_block.h"

namespace troupe::train {
namespace {

// Rows that a thread takes at a time: rows are of unequal length.
constexpr std::size_t kRowsTaken = 16;

}  // namespace

void for_each_row(std::size_t count, const std::function<void(std::size_t)>& work) {
  // Threads that are started here leave Ctrl-C to the caller.
  const SignalBlock block;
  tbb::parallel_for(
      tbb::blocked_range<std::size_t>(0, count, kRowsTaken),
      [&](const tbb::blocked_range<std::size_t>& rows) {
        for (std::size_t i = rows.begin(); i < rows.end(); ++i) work(i);
      },
      tbb::simple_partitioner());
}

}  // namespace troupe::train
