#include "train/sharding/host_update.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

constexpr std::size_t kChunk = static_cast<std::size_t>(kUpdateElements);

}  // namespace

HostUpdate::HostUpdate(OptimizerShard shard, UpdateLog* log, UpdateObserver observer)
    : shard_(std::move(shard)), log_(log), observer_(std::move(observer)) {
  for (const UpdateRange& range : shard_.ranges) {
    for (std::int64_t at = 0; at < range.elements; at += kTileElements) {
      tiles_.push_back({.flat = range.flat + at,
                        .parameters = range.parameters + at,
                        .gradients = range.gradients + at,
                        .slots = range.slots + at,
                        .elements = kTileElements});
    }
  }
}

void HostUpdate::restore(std::int64_t number) {
  if (!log_) return;
  TROUPE_CHECK(number >= 1);
  log_->restore(number, [this](std::int64_t chunk) {
    const Parts parts = parts_of(place_of(chunk));
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
    if (before) add_chunk(first + i, *before);
    update_chunk(prepared, number, slot, first + i, gradients.subspan(index(i) * kChunk, kChunk));
    if (after) add_chunk(first + i, *after);
  }
}

void HostUpdate::add_chunk(std::int64_t chunk, TileSum& sum) const {
  const Parts parts = parts_of(place_of(chunk));
  for (const std::span<std::byte> part : parts.all()) sum.add(part);
}

void HostUpdate::update_chunk(const PreparedUpdate& prepared, std::int64_t number, int slot,
                              std::int64_t chunk, std::span<const float> gradients) {
  if (log_ && log_->done(number, chunk)) return;
  const UpdateRange place = place_of(chunk);
  const Parts parts = parts_of(place);
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
  UpdateRange at = tiles_[index(chunk / kChunksPerTile)];
  const std::int64_t within = chunk % kChunksPerTile * kUpdateElements;
  at.flat += within;
  at.parameters += within;
  at.gradients += within;
  at.slots += within;
  return at;
}

HostUpdate::Parts HostUpdate::parts_of(const UpdateRange& place) const {
  const std::size_t size = dtype_size(shard_.buffers.state);
  const auto part = [size](std::span<std::byte> region, std::int64_t offset) {
    return region.subspan(index(offset) * size, kChunk * size);
  };
  Parts parts;
  parts.add(part(shard_.buffers.parameters, place.parameters));
  for (const SlotBuffer& slot : shard_.buffers.slots) parts.add(part(slot.data, place.slots));
  return parts;
}

}  // namespace troupe::train
