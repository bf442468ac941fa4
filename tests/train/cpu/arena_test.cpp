#include "train/cpu/arena.h"

#include <doctest/doctest.h>

#include <atomic>
#include <vector>

namespace troupe::train {
namespace {

TEST_CASE("every tile runs once, no slot twice at a time") {
  for (const int threads : {1, 2, 5}) {
    Arena arena(threads);
    std::vector<std::atomic<int>> runs(1000), busy(static_cast<std::size_t>(threads));
    std::atomic<bool> clash = false;
    arena.parallel_for(1000, [&](std::int64_t tile, int slot) {
      if (slot < 0 || slot >= threads || busy[static_cast<std::size_t>(slot)]++ != 0) clash = true;
      ++runs[static_cast<std::size_t>(tile)];
      --busy[static_cast<std::size_t>(slot)];
    });
    CHECK(!clash);
    for (const auto& count : runs) CHECK(count == 1);
    arena.parallel_for(0, [&](std::int64_t, int) { FAIL("no tile"); });
  }
}

}  // namespace
}  // namespace troupe::train
