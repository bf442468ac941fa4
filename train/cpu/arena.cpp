#include "train/cpu/arena.h"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/uninstrumented_tbb.h"

namespace troupe::train {

struct Arena::Impl {
  explicit Impl(int threads) : arena(threads, 1) {
    // Without this, TBB starts no more workers than there are cores.
    if (threads > static_cast<int>(std::thread::hardware_concurrency()))
      control.emplace(tbb::global_control::max_allowed_parallelism,
                      static_cast<std::size_t>(threads));
    arena.initialize();
  }
  std::optional<tbb::global_control> control;
  tbb::task_arena arena;
};

Arena::Arena(int threads) : threads_(threads) {
  TROUPE_CHECK(threads >= 1, "threads {}", threads);
  if (threads > 1) impl_ = std::make_unique<Impl>(threads);
}

Arena::~Arena() = default;

#if defined(TROUPE_SEES_THREADS_ONLY)
void Arena::run(std::int64_t tile_count, void (*call)(void*, std::int64_t, int), void* context) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int slot) {
    for (std::int64_t tile = next++; tile < tile_count; tile = next++) call(context, tile, slot);
  };
  std::vector<std::thread> threads;
  for (int slot = 1; slot < threads_ && slot < tile_count; ++slot) threads.emplace_back(work, slot);
  work(0);
  for (std::thread& thread : threads) thread.join();
}
#else

void Arena::run(std::int64_t tile_count, void (*call)(void*, std::int64_t, int), void* context) {
  if (!impl_ || tile_count <= 1) {
    for (std::int64_t tile = 0; tile < tile_count; ++tile) call(context, tile, 0);
    return;
  }
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, tile_count, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          const int slot = tbb::this_task_arena::current_thread_index();
          for (std::int64_t tile = range.begin(); tile < range.end(); ++tile)
            call(context, tile, slot);
        },
        tbb::simple_partitioner());
  });
}
#endif

}  // namespace troupe::train
