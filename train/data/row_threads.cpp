#include "train/data/row_threads.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_group.h>

#include <utility>

#include "runtime/base/signal_block.h"
#include "runtime/base/uninstrumented_tbb.h"

#if defined(TROUPE_SEES_THREADS_ONLY)
#include <atomic>
#include <thread>
#endif

namespace troupe::train {
namespace {

// Rows that a thread takes at a time: rows are of unequal length.
constexpr std::size_t kRowsTaken = 16;

}  // namespace

// Threads that are started here leave Ctrl-C to the caller: SignalBlock.

#if defined(TROUPE_SEES_THREADS_ONLY)
void for_each_row(std::size_t count, const std::function<void(std::size_t)>& work) {
  const SignalBlock block;
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::jthread helper;
  if (count > kRowsTaken) helper = std::jthread(take);
  take();
}

struct RowWork::Impl {
  std::thread thread;
};

void RowWork::run(std::function<void()> work) {
  const SignalBlock block;
  impl_->thread = std::thread(std::move(work));
}

void RowWork::wait() {
  if (impl_->thread.joinable()) impl_->thread.join();
}
#else
void for_each_row(std::size_t count, const std::function<void(std::size_t)>& work) {
  const SignalBlock block;
  tbb::parallel_for(
      tbb::blocked_range<std::size_t>(0, count, kRowsTaken),
      [&](const tbb::blocked_range<std::size_t>& rows) {
        for (std::size_t i = rows.begin(); i < rows.end(); ++i) work(i);
      },
      tbb::simple_partitioner());
}

struct RowWork::Impl {
  tbb::task_group group;
};

void RowWork::run(std::function<void()> work) {
  const SignalBlock block;
  impl_->group.run(std::move(work));
}

void RowWork::wait() {
  const SignalBlock block;
  impl_->group.wait();
}
#endif

RowWork::RowWork() : impl_(std::make_unique<Impl>()) {}
RowWork::~RowWork() { wait(); }

}  // namespace troupe::train
