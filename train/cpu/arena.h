#pragma once
// The threads that operators run on: one arena of a fixed number of threads.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace troupe::train {

// Work is given as numbered tiles; which thread runs a tile is left open, so a tile must not depend
// on it. One parallel_for at a time; a tile must not start another.
class Arena {
 public:
  // threads ≥ 1, the caller of parallel_for included.
  explicit Arena(int threads);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int threads() const { return threads_; }

  // Calls fn(tile, slot) once for each tile in [0, tile_count) and returns when all are done.
  // `slot` is in [0, threads()) and no two concurrent calls have the same: it names the thread's
  // workspace.
  template <typename F>
  void parallel_for(std::int64_t tile_count, F&& fn) {
    run(
        tile_count,
        [](void* context, std::int64_t tile, int slot) {
          (*static_cast<std::remove_reference_t<F>*>(context))(tile, slot);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  struct Impl;
  void run(std::int64_t tile_count, void (*call)(void*, std::int64_t, int), void* context);

  int threads_;
  std::unique_ptr<Impl> impl_;  // null for one thread
};

}  // namespace troupe::train
