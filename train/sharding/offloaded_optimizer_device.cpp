#include "train/sharding/offloaded_optimizer_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr const char* kFetching = "gradients on their way to the host";
constexpr const char* kPlacing = "updated parameters on their way to the device";

// 8 MiB of gradients: long against what starting a copy takes, short against an update.
constexpr std::int64_t kPieceTilesMax = 128;

// Of the largest piece.
std::int64_t piece_elements(const RankLayout& layout) {
  std::int64_t largest = 0;
  for (const UpdateRange& range : OptimizerShard::ranges_of(layout))
    largest = std::max(largest, range.elements);
  return std::min(largest, kPieceTilesMax * kTileElements);
}

}  // namespace

std::int64_t OffloadedOptimizerDevice::scratch_bytes(const RankLayout& layout) {
  std::int64_t elements = 0;
  for (const UpdateRange& range : OptimizerShard::ranges_of(layout)) elements += range.elements;
  return CudaOptimizer::scratch_bytes(elements / kTileElements);
}

std::int64_t OffloadedOptimizerDevice::pinned_bytes(const RankLayout& layout, DType used,
                                                    Offload offload) {
  const auto gradient = static_cast<std::int64_t>(sizeof(float));
  const auto parameter =
      offload == Offload::kParameters ? 0 : static_cast<std::int64_t>(dtype_size(used));
  return 2 * piece_elements(layout) * (gradient + parameter);
}

OffloadedOptimizerDevice::OffloadedOptimizerDevice(CudaStream& compute, const OffloadedShard& shard,
                                                   HostUpdate update, std::vector<Piece> pieces,
                                                   ParallelFor parallel_for, CudaOptimizer sums,
                                                   CudaStream down, CudaStream up,
                                                   std::array<Slot, 2> slots)
    : compute_(&compute),
      shard_(shard),
      update_(std::move(update)),
      pieces_(std::move(pieces)),
      parallel_for_(std::move(parallel_for)),
      sums_(std::move(sums)),
      down_(std::move(down)),
      up_(std::move(up)),
      slots_(std::move(slots)) {}

OffloadedOptimizerDevice::~OffloadedOptimizerDevice() {
  // Whoever wanted to know whether they arrived asked before.
  [[maybe_unused]] const Status fetched = down_.wait(kFetching);
  [[maybe_unused]] const Status placed = up_.wait(kPlacing);
}

Result<OffloadedOptimizerDevice::Slot> OffloadedOptimizerDevice::make_slot(
    const std::shared_ptr<CudaDevice>& device, std::int64_t elements, const OffloadedShard& shard) {
  Slot slot{.gradients = {},
            .parameters = {},
            .fetched = TROUPE_TRY(CudaEvent::create(device)),
            .placed = TROUPE_TRY(CudaEvent::create(device))};
  // A rank of many may own nothing.
  if (elements == 0) return slot;
  slot.gradients = TROUPE_TRY(PinnedMemory::allocate(
      device, elements * static_cast<std::int64_t>(sizeof(float)), kFetching));
  if (shard.offload != Offload::kParameters) {
    slot.parameters = TROUPE_TRY(PinnedMemory::allocate(
        device, elements * static_cast<std::int64_t>(dtype_size(shard.used)), kPlacing));
  }
  return slot;
}

Result<std::unique_ptr<OffloadedOptimizerDevice>> OffloadedOptimizerDevice::create(
    CudaStream& compute, const RankLayout& layout, const OffloadedShard& shard,
    const Optimizer& optimizer, ParallelFor parallel_for, UpdateLog* log,
    std::span<std::byte> scratch, UpdateObserver observer) {
  TROUPE_CHECK(shard.offload != Offload::kNothing);
  TROUPE_CHECK(shard.kept.parameters_region == Region::kOptimizer);
  TROUPE_CHECK(shard.kept.state == shard.used || shard.used == DType::kBF16);
  TROUPE_CHECK(shard.parameters.size() ==
               index(layout.elements(Region::kParameters)) * dtype_size(shard.used));
  std::vector<Piece> pieces;
  std::int64_t tile = 0;
  for (const UpdateRange& range : OptimizerShard::ranges_of(layout)) {
    const std::int64_t tiles = range.elements / kTileElements;
    for (std::int64_t at = 0; at < tiles; at += kPieceTilesMax) {
      const std::int64_t count = std::min(kPieceTilesMax, tiles - at);
      pieces.push_back({.first_tile = tile,
                        .tiles = count,
                        .parameters = range.parameters + at * kTileElements});
      tile += count;
    }
  }
  const std::shared_ptr<CudaDevice>& device = compute.device();
  const std::int64_t elements = piece_elements(layout);
  CudaOptimizer sums = TROUPE_TRY(CudaOptimizer::create(compute, scratch));
  CudaStream down = TROUPE_TRY(CudaStream::create(device));
  CudaStream up = TROUPE_TRY(CudaStream::create(device));
  std::array<Slot, 2> slots{TROUPE_TRY(make_slot(device, elements, shard)),
                            TROUPE_TRY(make_slot(device, elements, shard))};
  return std::unique_ptr<OffloadedOptimizerDevice>(new OffloadedOptimizerDevice(
      compute, shard,
      HostUpdate(OptimizerShard::of(layout, shard.kept, optimizer), log, std::move(observer)),
      std::move(pieces), std::move(parallel_for), std::move(sums), std::move(down), std::move(up),
      std::move(slots)));
}

Result<std::vector<double>> OffloadedOptimizerDevice::tile_sums() {
  return sums_.tile_sums(shard_.kept.gradients.data(), update_.shard().ranges, kTileElements);
}

Status OffloadedOptimizerDevice::update(const OptimizerStep& step, std::int64_t number) {
  const auto prepared = update_.prepare(step);
  update_.restore(number);
  TROUPE_RETURN_IF_ERROR(follow_compute());
  if (!pieces_.empty()) TROUPE_RETURN_IF_ERROR(fetch(0));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    // Its slot's gradients were used up by the piece before this one.
    if (i + 1 < pieces_.size()) TROUPE_RETURN_IF_ERROR(fetch(i + 1));
    TROUPE_RETURN_IF_ERROR(slot_of(i).fetched.wait(kFetching));
    TROUPE_RETURN_IF_ERROR(wait_for_room(i));
    const Piece& piece = pieces_[i];
    const auto* gradients = reinterpret_cast<const float*>(slot_of(i).gradients->data());
    parallel_for_(piece.tiles, [&](std::int64_t tile, int slot) {
      update_.update_tile(*prepared, number, slot, piece.first_tile + tile,
                          {gradients + tile * kTileElements, index(kTileElements)});
      // While they are in the cache. What an update before did, too: it may not have come so far.
      stage(i, tile);
    });
    TROUPE_RETURN_IF_ERROR(place(i));
  }
  return up_.wait(kPlacing);
}

Status OffloadedOptimizerDevice::forget_updates() {
  update_.forget();
  return {};
}

Status OffloadedOptimizerDevice::place_parameters() {
  TROUPE_RETURN_IF_ERROR(follow_compute());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    TROUPE_RETURN_IF_ERROR(wait_for_room(i));
    parallel_for_(pieces_[i].tiles, [&](std::int64_t tile, int) { stage(i, tile); });
    TROUPE_RETURN_IF_ERROR(place(i));
  }
  return up_.wait(kPlacing);
}

// What is fetched is complete then, and nobody reads what is placed any more.
Status OffloadedOptimizerDevice::follow_compute() {
  CudaEvent now = TROUPE_TRY(CudaEvent::create(compute_->device()));
  TROUPE_RETURN_IF_ERROR(now.record(*compute_));
  TROUPE_RETURN_IF_ERROR(down_.follow(now));
  return up_.follow(now);
}

Status OffloadedOptimizerDevice::fetch(std::size_t piece) {
  const Piece& at = pieces_[piece];
  Slot& slot = slot_of(piece);
  const CudaDevice& device = *compute_->device();
  const float* gradients = shard_.kept.gradients.data() + update_.tile(at.first_tile).gradients;
  TROUPE_RETURN_IF_ERROR(device.status(
      device.table().copy(down_.get(), gradients, slot.gradients->data(),
                          at.tiles * kTileElements * static_cast<std::int64_t>(sizeof(float))),
      kFetching));
  return slot.fetched.record(down_);
}

Status OffloadedOptimizerDevice::wait_for_room(std::size_t piece) {
  return goes_up() ? slot_of(piece).placed.wait(kPlacing) : Status();
}

void OffloadedOptimizerDevice::stage(std::size_t piece, std::int64_t tile) {
  const std::size_t from_size = dtype_size(shard_.kept.state), to_size = dtype_size(shard_.used);
  const std::int64_t first = pieces_[piece].first_tile;
  const auto from = shard_.kept.parameters.subspan(
      index(update_.tile(first + tile).parameters) * from_size, index(kTileElements) * from_size);
  std::byte* const base =
      goes_up() ? slot_of(piece).parameters->data()
                : shard_.parameters.data() + index(pieces_[piece].parameters) * to_size;
  std::byte* const to = base + index(tile * kTileElements) * to_size;
  if (shard_.kept.state == shard_.used) {
    std::memcpy(to, from.data(), from.size());
  } else {
    bf16_from_float(reinterpret_cast<const float*>(from.data()),
                    reinterpret_cast<std::uint16_t*>(to), kTileElements);
  }
}

Status OffloadedOptimizerDevice::place(std::size_t piece) {
  if (!goes_up()) return {};
  const Piece& at = pieces_[piece];
  Slot& slot = slot_of(piece);
  const std::size_t size = dtype_size(shard_.used);
  const CudaDevice& device = *compute_->device();
  TROUPE_RETURN_IF_ERROR(
      device.status(device.table().copy(up_.get(), slot.parameters->data(),
                                        shard_.parameters.data() + index(at.parameters) * size,
                                        at.tiles * kTileElements * static_cast<std::int64_t>(size)),
                    kPlacing));
  return slot.placed.record(up_);
}

}  // namespace troupe::train
