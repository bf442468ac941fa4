#include "train/sharding/sharded_optimizer.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

constexpr auto kTile = static_cast<std::size_t>(kTileElements);

constexpr auto kChunk = static_cast<std::size_t>(kUpdateElements);

template <typename T>
std::span<T> chunk_of(std::span<std::byte> region, std::int64_t offset) {
  return {reinterpret_cast<T*>(region.data()) + offset, kChunk};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const RankLayout& layout, const MeshCommunicators& communicators,
                                   ParallelFor parallel_for, StateBuffers buffers)
    : layout_(layout),
      communicators_(communicators),
      parallel_for_(std::move(parallel_for)),
      buffers_(buffers) {
  const std::size_t size = dtype_size(buffers.state);
  TROUPE_CHECK(buffers.parameters.size() == index(layout.elements(Region::kParameters)) * size);
  TROUPE_CHECK(buffers.gradients.size() == index(layout.elements(Region::kGradients)));
  TROUPE_CHECK(buffers.exp_avg.size() == index(layout.elements(Region::kOptimizer)) * size);
  TROUPE_CHECK(buffers.exp_avg_sq.size() == buffers.exp_avg.size());
  for (int unit = 0; unit < layout.units(); ++unit) {
    const std::int64_t base = layout.layout().units()[index(unit)].flat_offset;
    const ElementRange own = layout.updated(unit);
    for (std::int64_t at = own.begin; at < own.end; at += kTileElements) {
      tiles_.push_back({.flat = base + at,
                        .parameters = layout.offset(Region::kParameters, unit, at),
                        .gradients = layout.offset(Region::kGradients, unit, at),
                        .optimizer = layout.offset(Region::kOptimizer, unit, at)});
    }
  }
  const ShardMap& shards = layout.shards();
  for (int member = 0; member < shards.members(); ++member) {
    tile_counts_.push_back(index(shards.shard_elements(member) / kTileElements));
    for (int unit = 0; unit < layout.units(); ++unit) {
      const ElementRange range = shards.flat_range(unit, member);
      for (std::int64_t at = range.begin; at < range.end; at += kTileElements)
        flat_tile_.push_back(at / kTileElements);
    }
  }
}

Result<GradientNorm> ShardedOptimizer::norm() {
  std::vector<double> own(tiles_.size());
  parallel_for_(static_cast<std::int64_t>(tiles_.size()), [&](std::int64_t i, int) {
    own[index(i)] =
        tile_sum_of_squares(buffers_.gradients.subspan(index(tiles_[index(i)].gradients), kTile));
  });
  std::vector<double> gathered = own;
  if (communicators_.host_shard() && layout_.sharded(Region::kOptimizer)) {
    gathered.resize(flat_tile_.size());
    TROUPE_RETURN_IF_ERROR(communicators_.host_shard()->all_gather(
        std::span<const double>(own), std::span<double>(gathered), tile_counts_));
  }
  std::vector<double> by_tile(gathered.size());
  for (std::size_t i = 0; i < gathered.size(); ++i) by_tile[index(flat_tile_[i])] = gathered[i];
  return combine_tile_sums(by_tile);
}

template <typename T>
void ShardedOptimizer::update_chunk(const AdamWFactors& step, std::int64_t chunk) {
  const Tile& tile = tiles_[index(chunk / kChunksPerTile)];
  const std::int64_t at = chunk % kChunksPerTile * kUpdateElements;
  adamw_update(
      step, layout_.layout().decay_ranges(), tile.flat + at,
      chunk_of<T>(buffers_.parameters, tile.parameters + at),
      std::span<const float>(buffers_.gradients.subspan(index(tile.gradients + at), kChunk)),
      chunk_of<T>(buffers_.exp_avg, tile.optimizer + at),
      chunk_of<T>(buffers_.exp_avg_sq, tile.optimizer + at));
}

std::int64_t ShardedOptimizer::chunk_count(const RankLayout& layout) {
  std::int64_t elements = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ElementRange own = layout.updated(unit);
    elements += own.end - own.begin;
  }
  return elements / kUpdateElements;
}

std::size_t ShardedOptimizer::chunk_bytes(DType state) { return 3 * kChunk * dtype_size(state); }

ChunkParts ShardedOptimizer::chunk_parts(std::int64_t chunk) const {
  const Tile& tile = tiles_[index(chunk / kChunksPerTile)];
  const std::int64_t at = chunk % kChunksPerTile * kUpdateElements;
  const std::size_t size = dtype_size(buffers_.state);
  const auto part = [&](std::span<std::byte> region, std::int64_t offset) {
    return region.subspan(index(offset + at) * size, kChunk * size);
  };
  return {part(buffers_.parameters, tile.parameters), part(buffers_.exp_avg, tile.optimizer),
          part(buffers_.exp_avg_sq, tile.optimizer)};
}

void ShardedOptimizer::update(const AdamWStep& step, const ChunkUpdate& guard) {
  const AdamWFactors factors(step);
  parallel_for_(static_cast<std::int64_t>(tiles_.size()), [&](std::int64_t tile, int slot) {
    std::int64_t chunk = tile * kChunksPerTile;
    const std::function<void()> change = [&] {
      if (buffers_.state == DType::kBF16) {
        update_chunk<std::uint16_t>(factors, chunk);
      } else {
        update_chunk<float>(factors, chunk);
      }
    };
    for (; chunk < (tile + 1) * kChunksPerTile; ++chunk)
      guard(slot, chunk, chunk_parts(chunk), change);
  });
}

void ShardedOptimizer::update(const AdamWStep& step) {
  update(step, [](int, std::int64_t, const ChunkParts&, const std::function<void()>& update) {
    update();
  });
}

}  // namespace troupe::train
