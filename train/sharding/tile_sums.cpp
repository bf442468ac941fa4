#include "train/sharding/tile_sums.h"

#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

typedef std::uint64_t Lanes __attribute__((vector_size(16)));
constexpr std::size_t kBlock = 64;

}  // namespace

// Named variables stay in registers: the compiler keeps arrays of them in memory.
void TileSum::add(std::span<const std::byte> bytes) {
  TROUPE_CHECK(bytes.size() % kBlock == 0);
  const auto lanes_at = [](const void* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
  };
  Lanes p0 = lanes_at(&plain_[0]), p1 = lanes_at(&plain_[2]);
  Lanes p2 = lanes_at(&plain_[4]), p3 = lanes_at(&plain_[6]);
  Lanes w0 = lanes_at(&weighted_[0]), w1 = lanes_at(&weighted_[2]);
  Lanes w2 = lanes_at(&weighted_[4]), w3 = lanes_at(&weighted_[6]);
  const std::byte* const end = bytes.data() + bytes.size();
  for (const std::byte* at = bytes.data(); at != end; at += kBlock) {
    w0 += p0 += lanes_at(at);
    w1 += p1 += lanes_at(at + 16);
    w2 += p2 += lanes_at(at + 32);
    w3 += p3 += lanes_at(at + 48);
  }
  const std::array<Lanes, 4> plain = {p0, p1, p2, p3}, weighted = {w0, w1, w2, w3};
  std::memcpy(plain_.data(), plain.data(), sizeof plain_);
  std::memcpy(weighted_.data(), weighted.data(), sizeof weighted_);
}

std::uint64_t TileSum::value() const {
  const std::array sums = {plain_, weighted_};
  return xxh3_64(std::as_bytes(std::span(sums)));
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
  return before(tile, std::numeric_limits<std::int64_t>::max());
}

// While the sum is written the entry counts for nothing: a process may be killed in between.
void TileSums::note(std::int64_t tile, std::int64_t step, std::uint64_t sum) {
  Entry& entry = entries_[index(tile)];
  entry.step.store(0, std::memory_order_release);
  entry.sum = sum;
  entry.step.store(static_cast<std::uint64_t>(step) + 1, std::memory_order_release);
}

}  // namespace troupe::train
