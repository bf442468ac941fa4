#include "train/sharding/tile_sums.h"

#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

typedef std::uint64_t Lanes __attribute__((vector_size(16)));
constexpr std::size_t kBlock = 64;
constexpr std::size_t kRows = kBlock / sizeof(Lanes);

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBu;
}

}  // namespace

// Fletcher's sums, in each of eight lanes of words: plain and weighted by place.
std::uint64_t sum_of_bytes(std::span<const std::byte> bytes, std::uint64_t before) {
  TROUPE_CHECK(bytes.size() % kBlock == 0);
  std::array<Lanes, kRows> plain{}, weighted{};
  for (std::size_t at = 0; at < bytes.size(); at += kBlock) {
    std::array<Lanes, kRows> words;
    std::memcpy(words.data(), bytes.data() + at, kBlock);
    for (std::size_t row = 0; row < kRows; ++row) {
      plain[row] += words[row];
      weighted[row] += plain[row];
    }
  }
  std::uint64_t sum = before;
  for (std::size_t row = 0; row < kRows; ++row) {
    for (int lane = 0; lane < 2; ++lane)
      sum = mixed(mixed(sum, plain[row][lane]), weighted[row][lane]);
  }
  return sum;
}

TileSums::TileSums(std::span<std::byte> memory)
    : entries_(reinterpret_cast<Entry*>(memory.data()), memory.size() / sizeof(Entry)) {}

void TileSums::forget() {
  for (Entry& entry : entries_) entry.step.store(0, std::memory_order_release);
}

std::optional<std::uint64_t> TileSums::before(std::int64_t tile, std::int64_t step) const {
  const Entry& entry = entries_[index(tile)];
  const std::uint64_t noted = entry.step.load(std::memory_order_acquire);
  if (noted == 0 || noted > static_cast<std::uint64_t>(step)) return std::nullopt;
  return entry.sum;
}

std::optional<std::uint64_t> TileSums::last(std::int64_t tile) const {
  const Entry& entry = entries_[index(tile)];
  if (entry.step.load(std::memory_order_acquire) == 0) return std::nullopt;
  return entry.sum;
}

// While the sum is written the entry counts for nothing: a process may be killed in between.
void TileSums::note(std::int64_t tile, std::int64_t step, std::uint64_t sum) {
  Entry& entry = entries_[index(tile)];
  entry.step.store(0, std::memory_order_release);
  entry.sum = sum;
  entry.step.store(static_cast<std::uint64_t>(step) + 1, std::memory_order_release);
}

}  // namespace troupe::train
