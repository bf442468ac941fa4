#include "train/sharding/host_update.h"

#include <algorithm>
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
  Parts(const StateBuffers& buffers, const UpdateRange& chunk, const SlotUse& use) {
    const std::size_t size = dtype_size(buffers.state);
    const auto add = [&](std::span<std::byte> region, std::int64_t offset) {
      parts_[count_++] = region.subspan(index(offset) * size, kChunk * size);
    };
    add(buffers.parameters, chunk.parameters);
    for (const SlotBuffer& slot : buffers.slots) {
      if (!slot.place)
        add(slot.data, chunk.slots);
      else
        parts_[count_++] =
            slot.place->by_tensor() ? std::span<std::byte>() : slot.part(chunk, buffers.state, use);
    }
  }
  std::span<const std::span<std::byte>> all() const { return std::span(parts_).first(count_); }

 private:
  std::array<std::span<std::byte>, 1 + kOptimizerSlotsMax> parts_;
  std::size_t count_ = 0;
};

void add_part(std::span<const std::byte> part, TileSum& sum) {
  constexpr std::size_t kSummed = 64;
  const std::size_t whole = part.size() / kSummed * kSummed;
  sum.add(part.first(whole));
  if (whole == part.size()) return;
  // Blocks have fewer scales than that, and a tensor may have any number of values.
  std::array<std::byte, kSummed> rest{};
  std::ranges::copy(part.subspan(whole), rest.begin());
  sum.add(rest);
}

}  // namespace

void add_chunk(const StateBuffers& buffers, const UpdateRange& chunk, std::int64_t updates,
               TileSum& sum) {
  const Parts parts(buffers, chunk, SlotUse::after(updates));
  for (const std::span<std::byte> part : parts.all()) add_part(part, sum);
}

void add_tensors(const StateBuffers& buffers, const UpdateRange& tile, std::int64_t updates,
                 TileSum& sum) {
  std::size_t number = 0;
  for (const SlotBuffer& slot : buffers.slots) {
    if (!slot.place || !slot.place->by_tensor()) continue;
    if (number++ == written_slot(updates)) add_part(slot.part(tile, buffers.state, {}), sum);
  }
}

HostUpdate::HostUpdate(OptimizerShard shard, UpdateLog* log, UpdateObserver observer)
    : shard_(std::move(shard)),
      log_(log),
      observer_(std::move(observer)),
      tiles_(tiles_of(shard_.ranges)) {}

void HostUpdate::for_each_tile(const PreparedUpdate& prepared, std::int64_t number,
                               const ParallelFor& parallel_for, const TileUpdate& update) const {
  if (shard_.blocks.empty()) {
    return parallel_for(tiles(), [&](std::int64_t tile, int slot) { update(tile, slot, {}); });
  }
  parallel_for(std::ssize(shard_.blocks), [&](std::int64_t number_of_block, int slot) {
    const UpdateBlock& block = shard_.blocks[index(number_of_block)];
    std::vector<float> made;
    bool done = true;
    for (std::int64_t tile = 0; done && tile < block.tiles; ++tile)
      done = is_done(number, block.first_tile + tile);
    if (!block.tensors.empty() && !done) made = directions(prepared, block);
    for (std::int64_t tile = 0; tile < block.tiles; ++tile) {
      update(block.first_tile + tile, slot,
             made.empty() ? std::span<const float>()
                          : std::span<const float>(made).subspan(index(tile * kTileElements),
                                                                 index(kTileElements)));
    }
  });
}

bool HostUpdate::is_done(std::int64_t number, std::int64_t tile) const {
  if (!log_) return false;
  for (std::int64_t chunk = tile * kChunksPerTile; chunk < (tile + 1) * kChunksPerTile; ++chunk)
    if (!log_->done(number, chunk)) return false;
  return true;
}

std::vector<float> HostUpdate::directions(const PreparedUpdate& prepared,
                                          const UpdateBlock& block) const {
  const StateBuffers& buffers = shard_.buffers;
  const auto all = gradients(block.first_tile, block.tiles);
  std::vector<float> made(all.size());
  for (const UpdateBlock::Tensor& tensor : block.tensors) {
    const std::size_t count = index(tensor.range.elements);
    std::array<std::span<float>, kOptimizerSlotsMax> slots;
    for (std::size_t i = 0; i < buffers.slots.size(); ++i) {
      const SlotBuffer& slot = buffers.slots[i];
      if (slot.place->by_tensor())
        slots[i] = elements_of<float>(slot.part(tensor.range, buffers.state, {}));
    }
    const auto at = index(tensor.range.gradients - tile(block.first_tile).gradients);
    prepared.direction({.shape = tensor.parameter->shape,
                        .number = tensor.number,
                        .group = tensor.group,
                        .gradients = all.subspan(at, count),
                        .slots = std::span(slots).first(buffers.slots.size()),
                        .direction = std::span(made).subspan(at, count)});
  }
  return made;
}

void HostUpdate::restore(std::int64_t number) {
  if (!log_) return;
  TROUPE_CHECK(number >= 1);
  log_->restore(number, [this](std::int64_t chunk) {
    const Parts parts(shard_.buffers, place_of(chunk), SlotUse::in(updates_));
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
                             std::int64_t tile, std::span<const float> gradients,
                             std::span<const float> directions, TileSum* before, TileSum* after) {
  const std::int64_t first = tile * kChunksPerTile;
  for (std::int64_t i = 0; i < kChunksPerTile; ++i) {
    if (before) add_chunk(shard_.buffers, place_of(first + i), updates_ - 1, *before);
    update_chunk(prepared, number, slot, first + i, gradients.subspan(index(i) * kChunk, kChunk),
                 directions.empty() ? directions : directions.subspan(index(i) * kChunk, kChunk));
    if (after) add_chunk(shard_.buffers, place_of(first + i), updates_, *after);
  }
}

void HostUpdate::update_chunk(const PreparedUpdate& prepared, std::int64_t number, int slot,
                              std::int64_t chunk, std::span<const float> gradients,
                              std::span<const float> directions) {
  if (log_ && log_->done(number, chunk)) return;
  const UpdateRange place = place_of(chunk);
  const Parts parts(shard_.buffers, place, SlotUse::in(updates_));
  const auto update = [&] {
    train::update_chunk(prepared, *shard_.groups,
                        {.begin = place.flat,
                         .state = shard_.buffers.state,
                         .parameters = parts.all().front(),
                         .gradients = gradients,
                         .slots = parts.all().subspan(1),
                         .directions = directions},
                        shard_.optimizer->rule() ? shard_.optimizer : nullptr);
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
