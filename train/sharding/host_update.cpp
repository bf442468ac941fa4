#include "train/sharding/host_update.h"

#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

constexpr std::size_t kChunk = static_cast<std::size_t>(kUpdateElements);

// What the update of a chunk changes: its parameters, then its part of each of the optimizer's
// slots.
class Parts {
 public:
  Parts(const StateBuffers& buffers, const UpdateRange& chunk) {
    const std::size_t size = dtype_size(buffers.state);
    const auto add = [&](std::span<std::byte> region, std::int64_t offset) {
      parts_[count_++] = region.subspan(index(offset) * size, kChunk * size);
    };
    add(buffers.parameters, chunk.parameters);
    for (const SlotBuffer& slot : buffers.slots) add(slot.data, chunk.slots);
  }
  std::span<const std::span<std::byte>> all() const { return std::span(parts_).first(count_); }

 private:
  std::array<std::span<std::byte>, 1 + kOptimizerSlotsMax> parts_;
  std::size_t count_ = 0;
};

}  // namespace

void add_chunk(const StateBuffers& buffers, const UpdateRange& chunk, TileSum& sum) {
  const Parts parts(buffers, chunk);
  for (const std::span<std::byte> part : parts.all()) sum.add(part);
}

HostUpdate::HostUpdate(OptimizerShard shard, UpdateLog* log, UpdateObserver observer)
    : shard_(std::move(shard)),
      log_(log),
      observer_(std::move(observer)),
      tiles_(tiles_of(shard_.ranges)) {}

void HostUpdate::restore(std::int64_t number) {
  if (!log_) return;
  TROUPE_CHECK(number >= 1);
  log_->restore(number, [this](std::int64_t chunk) {
    const Parts parts(shard_.buffers, place_of(chunk));
    return std::vector<std::span<std::byte>>(parts.all().begin(), parts.all().end());
  });
}

void HostUpdate::forget() {
  if (log_) log_->forget();
}

bool HostUpdate::is_untouched(std::int64_t number, std::int64_t tile) const {
  for (std::int64_t chunk = tile * kChunksPerTile; log_ && chunk < (tile + 1) * kChunksPerTile;
       ++chunk) {
    if (log_->done(number, chunk)) return false;
  }
  return true;
}

void HostUpdate::update_tile(const PreparedUpdate& prepared, std::int64_t number, int slot,
                             std::int64_t tile, std::span<const float> gradients, TileSum* before,
                             TileSum* after) {
  const std::int64_t first = tile * kChunksPerTile;
  for (std::int64_t i = 0; i < kChunksPerTile; ++i) {
    if (before) add_chunk(shard_.buffers, place_of(first + i), *before);
    update_chunk(prepared, number, slot, first + i, gradients.subspan(index(i) * kChunk, kChunk));
    if (after) add_chunk(shard_.buffers, place_of(first + i), *after);
  }
}

void HostUpdate::update_chunk(const PreparedUpdate& prepared, std::int64_t number, int slot,
                              std::int64_t chunk, std::span<const float> gradients) {
  if (log_ && log_->done(number, chunk)) return;
  const UpdateRange place = place_of(chunk);
  const Parts parts(shard_.buffers, place);
  const auto update = [&] {
    train::update_chunk(prepared, *shard_.groups,
                        {.begin = place.flat,
                         .state = shard_.buffers.state,
                         .parameters = parts.all().front(),
                         .gradients = gradients,
                         .slots = parts.all().subspan(1)});
  };
  if (!log_) return update();
  const bool told = observer_ && chunk % kChunksPerTile == kChunksPerTile / 2;
  log_->run(number, slot, chunk, parts.all(), update, [&](std::string_view moment) {
    if (told) observer_(static_cast<std::uint64_t>(chunk), moment);
  });
}

UpdateRange HostUpdate::place_of(std::int64_t chunk) const {
  return part_of(tiles_[index(chunk / kChunksPerTile)], chunk % kChunksPerTile * kUpdateElements,
                 kUpdateElements);
}

}  // namespace troupe::train
