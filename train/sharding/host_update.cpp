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
                        .moments = range.moments + at,
                        .elements = kTileElements});
    }
  }
}

void HostUpdate::restore(std::int64_t number) {
  if (!log_) return;
  TROUPE_CHECK(number >= 1);
  log_->restore(number, [this](std::int64_t chunk) {
    const Parts parts = parts_of(chunk);
    return std::vector<std::span<std::byte>>(parts.begin(), parts.end());
  });
}

void HostUpdate::update_tile(const AdamWFactors& factors, std::int64_t number, int slot,
                             std::int64_t tile, std::span<const float> gradients) {
  if (shard_.buffers.state == DType::kBF16)
    update_tile_as<std::uint16_t>(factors, number, slot, tile, gradients);
  else
    update_tile_as<float>(factors, number, slot, tile, gradients);
}

void HostUpdate::forget() {
  if (log_) log_->forget();
}

template <typename T>
void HostUpdate::update_tile_as(const AdamWFactors& factors, std::int64_t number, int slot,
                                std::int64_t tile, std::span<const float> gradients) {
  const std::int64_t first = tile * kChunksPerTile;
  for (std::int64_t i = 0; i < kChunksPerTile; ++i) {
    const auto of_chunk = gradients.subspan(index(i) * kChunk, kChunk);
    if (log_)
      update_logged<T>(factors, number, slot, first + i, of_chunk);
    else
      update_chunk<T>(factors, first + i, of_chunk);
  }
}

template <typename T>
void HostUpdate::update_logged(const AdamWFactors& factors, std::int64_t number, int slot,
                               std::int64_t chunk, std::span<const float> gradients) {
  if (log_->done(number, chunk)) return;
  const bool told = observer_ && chunk % kChunksPerTile == kChunksPerTile / 2;
  log_->run(
      number, slot, chunk, parts_of(chunk), [&] { update_chunk<T>(factors, chunk, gradients); },
      [&](std::string_view moment) {
        if (told) observer_(static_cast<std::uint64_t>(chunk), moment);
      });
}

template <typename T>
void HostUpdate::update_chunk(const AdamWFactors& factors, std::int64_t chunk,
                              std::span<const float> gradients) {
  const UpdateRange at = place_of(chunk);
  const auto part = [](std::span<std::byte> region, std::int64_t offset) {
    return std::span<T>(reinterpret_cast<T*>(region.data()) + offset, kChunk);
  };
  const StateBuffers& b = shard_.buffers;
  adamw_update(factors, shard_.decays, at.flat, part(b.parameters, at.parameters), gradients,
               part(b.exp_avg, at.moments), part(b.exp_avg_sq, at.moments));
}

UpdateRange HostUpdate::place_of(std::int64_t chunk) const {
  UpdateRange at = tiles_[index(chunk / kChunksPerTile)];
  const std::int64_t within = chunk % kChunksPerTile * kUpdateElements;
  at.flat += within;
  at.parameters += within;
  at.gradients += within;
  at.moments += within;
  return at;
}

HostUpdate::Parts HostUpdate::parts_of(std::int64_t chunk) const {
  const UpdateRange at = place_of(chunk);
  const std::size_t size = dtype_size(shard_.buffers.state);
  const auto part = [size](std::span<std::byte> region, std::int64_t offset) {
    return region.subspan(index(offset) * size, kChunk * size);
  };
  const StateBuffers& b = shard_.buffers;
  return {part(b.parameters, at.parameters), part(b.exp_avg, at.moments),
          part(b.exp_avg_sq, at.moments)};
}

}  // namespace troupe::train
