#pragma once
// Sums over the tiles of a state, that lie beside it: whether its bytes are still those that its
// last update wrote, and whether two copies of it are the same.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace troupe::train {

// Of bytes that come in pieces of whole 64: it changes with every single bit, and with the order of
// words. Runs as fast as the nearest cache is read.
class TileSum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  // Fletcher's sums in each of eight lanes of words: plain, and weighted by place.
  static constexpr std::size_t kLanes = 8;
  std::array<std::uint64_t, kLanes> plain_{}, weighted_{};
};

// A tile is one thread's at a time.
class TileSums {
 public:
  static std::size_t bytes_of(std::int64_t tiles) {
    return static_cast<std::size_t>(tiles) * sizeof(Entry);
  }
  // `memory` survives the process and outlives the object; zeroed: nothing is known of any tile.
  explicit TileSums(std::span<std::byte> memory);

  std::int64_t tiles() const { return static_cast<std::int64_t>(entries_.size()); }
  // Nothing is known of any.
  void forget();
  // What was noted last, if it is of a step before `step` (≥ 1).
  std::optional<std::uint64_t> before(std::int64_t tile, std::int64_t step) const;
  std::optional<std::uint64_t> last(std::int64_t tile) const;
  // As the tile is after `step`.
  void note(std::int64_t tile, std::int64_t step, std::uint64_t sum);

 private:
  struct Entry {
    std::atomic<std::uint64_t> step;  // 1 + it; 0: not known
    std::uint64_t sum;
  };
  std::span<Entry> entries_;
};

}  // namespace troupe::train
