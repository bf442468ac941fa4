#include "train/sharding/optimizer_device.h"

#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "train/optimizer/gradient_norm.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

class CpuOptimizerDevice final : public OptimizerDevice {
 public:
  CpuOptimizerDevice(OptimizerShard shard, ParallelFor parallel_for, UpdateLog* log,
                     UpdateObserver observer)
      : shard_(std::move(shard)),
        parallel_for_(std::move(parallel_for)),
        log_(log),
        observer_(std::move(observer)) {
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

  Result<std::vector<double>> tile_sums() override {
    std::vector<double> sums(tiles_.size());
    parallel_for_(std::ssize(tiles_), [&](std::int64_t i, int) {
      sums[index(i)] = tile_sum_of_squares(
          shard_.buffers.gradients.subspan(index(tiles_[index(i)].gradients), kTile));
    });
    return sums;
  }

  Status update(const AdamWStep& step, std::int64_t number) override {
    const AdamWFactors factors(step);
    if (log_) {
      TROUPE_CHECK(number >= 1);
      log_->restore(number, [this](std::int64_t chunk) {
        const Parts parts = parts_of(chunk);
        return std::vector<std::span<std::byte>>(parts.begin(), parts.end());
      });
    }
    if (shard_.buffers.state == DType::kBF16)
      update_all<std::uint16_t>(factors, number);
    else
      update_all<float>(factors, number);
    return {};
  }

  Status forget_updates() override {
    if (log_) log_->forget();
    return {};
  }

 private:
  // What the update of a chunk changes: its parameters and moments.
  using Parts = std::array<std::span<std::byte>, 3>;
  static constexpr std::size_t kTile = static_cast<std::size_t>(kTileElements);
  static constexpr std::size_t kChunk = static_cast<std::size_t>(kUpdateElements);

  template <typename T>
  void update_all(const AdamWFactors& factors, std::int64_t number) {
    parallel_for_(std::ssize(tiles_), [&](std::int64_t tile, int slot) {
      const std::int64_t first = tile * kChunksPerTile;
      for (std::int64_t chunk = first; chunk < first + kChunksPerTile; ++chunk) {
        if (log_)
          update_logged<T>(factors, number, slot, chunk);
        else
          update_chunk<T>(factors, chunk);
      }
    });
  }

  template <typename T>
  void update_logged(const AdamWFactors& factors, std::int64_t number, int slot,
                     std::int64_t chunk) {
    if (log_->done(number, chunk)) return;
    const bool told = observer_ && chunk % kChunksPerTile == kChunksPerTile / 2;
    log_->run(
        number, slot, chunk, parts_of(chunk), [&] { update_chunk<T>(factors, chunk); },
        [&](std::string_view moment) {
          if (told) observer_(static_cast<std::uint64_t>(chunk), moment);
        });
  }

  template <typename T>
  void update_chunk(const AdamWFactors& factors, std::int64_t chunk) {
    const UpdateRange at = place_of(chunk);
    const auto part = [](std::span<std::byte> region, std::int64_t offset) {
      return std::span<T>(reinterpret_cast<T*>(region.data()) + offset, kChunk);
    };
    const StateBuffers& b = shard_.buffers;
    adamw_update(factors, shard_.decays, at.flat, part(b.parameters, at.parameters),
                 std::span<const float>(b.gradients.subspan(index(at.gradients), kChunk)),
                 part(b.exp_avg, at.moments), part(b.exp_avg_sq, at.moments));
  }

  UpdateRange place_of(std::int64_t chunk) const {
    UpdateRange at = tiles_[index(chunk / kChunksPerTile)];
    const std::int64_t within = chunk % kChunksPerTile * kUpdateElements;
    at.flat += within;
    at.parameters += within;
    at.gradients += within;
    at.moments += within;
    return at;
  }

  Parts parts_of(std::int64_t chunk) const {
    const UpdateRange at = place_of(chunk);
    const std::size_t size = dtype_size(shard_.buffers.state);
    const auto part = [size](std::span<std::byte> region, std::int64_t offset) {
      return region.subspan(index(offset) * size, kChunk * size);
    };
    const StateBuffers& b = shard_.buffers;
    return {part(b.parameters, at.parameters), part(b.exp_avg, at.moments),
            part(b.exp_avg_sq, at.moments)};
  }

  const OptimizerShard shard_;
  const ParallelFor parallel_for_;
  UpdateLog* const log_;
  const UpdateObserver observer_;
  std::vector<UpdateRange> tiles_;
};

}  // namespace

OptimizerShard OptimizerShard::of(const RankLayout& layout, const StateBuffers& buffers) {
  const std::size_t size = dtype_size(buffers.state);
  TROUPE_CHECK(buffers.parameters.size() == index(layout.elements(Region::kParameters)) * size);
  TROUPE_CHECK(buffers.gradients.size() == index(layout.elements(Region::kGradients)));
  TROUPE_CHECK(buffers.exp_avg.size() == index(layout.elements(Region::kOptimizer)) * size);
  TROUPE_CHECK(buffers.exp_avg_sq.size() == buffers.exp_avg.size());
  return {
      .buffers = buffers, .ranges = ranges_of(layout), .decays = layout.layout().decay_ranges()};
}

std::vector<UpdateRange> OptimizerShard::ranges_of(const RankLayout& layout) {
  std::vector<UpdateRange> ranges;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ElementRange own = layout.updated(unit);
    if (own.size() == 0) continue;
    ranges.push_back({.flat = layout.layout().units()[index(unit)].flat_offset + own.begin,
                      .parameters = layout.offset(Region::kParameters, unit, own.begin),
                      .gradients = layout.offset(Region::kGradients, unit, own.begin),
                      .moments = layout.offset(Region::kOptimizer, unit, own.begin),
                      .elements = own.size()});
  }
  return ranges;
}

std::int64_t OptimizerShard::elements() const {
  std::int64_t sum = 0;
  for (const UpdateRange& range : ranges) sum += range.elements;
  return sum;
}

std::unique_ptr<OptimizerDevice> make_cpu_optimizer_device(OptimizerShard shard,
                                                           ParallelFor parallel_for, UpdateLog* log,
                                                           UpdateObserver observer) {
  return std::make_unique<CpuOptimizerDevice>(std::move(shard), std::move(parallel_for), log,
                                              std::move(observer));
}

}  // namespace troupe::train
