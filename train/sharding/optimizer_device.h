#pragma once
// Who computes the norm's parts and the update of what a rank owns, where its buffers lie: the
// CPU's threads, a GPU (cuda_optimizer_device.h), or both (offloaded_optimizer_device.h).
//
// An update is a transaction on memory that survives its process: whatever kills it, the next
// update of the same step finishes it, with the bits of an undisturbed one. That log lies beside
// the buffers and is the device's own; which step is under way is train/transaction's record, in
// memory of the host.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/model/parameter_layout.h"
#include "train/optimizer/optimizer.h"
#include "train/optimizer/update_log.h"
#include "train/optimizer/update_range.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/state_buffers.h"

namespace troupe::train {

// Runs fn(i, slot) for every i in [0, count), on as many threads as there are; back when all are
// done. No two calls at a time have the same slot.
using ParallelFor =
    std::function<void(std::int64_t count, const std::function<void(std::int64_t, int slot)>& fn)>;

inline constexpr std::int64_t kChunksPerTile = kTileElements / kUpdateElements;
static_assert(kTileElements % kUpdateElements == 0);

// Tiles of a range that are updated together, from the first one on, because of tensors that are
// updated as wholes.
struct UpdateBlock {
  struct Tensor {
    const ParameterInfo* parameter = nullptr;
    std::size_t group = 0;
    std::int64_t number = 1;  // TensorUpdate::number
    UpdateRange range;        // of its elements
  };
  std::int64_t first_tile = 0, tiles = 0;  // in the order of the ranges
  std::vector<Tensor> tensors;
};

// What a rank updates, and by which optimizer: the layout's answer, for one set of buffers. Layout
// and optimizer outlive it.
struct OptimizerShard {
  StateBuffers buffers;
  std::vector<UpdateRange> ranges;          // whole tiles each
  const ParameterGroups* groups = nullptr;  // of all flat positions
  const Optimizer* optimizer = nullptr;
  std::vector<UpdateBlock> blocks;  // all tiles, in order; empty: each tile by itself

  // The buffers are as large as the layout says, and the slots are the optimizer's.
  static OptimizerShard of(const RankLayout& layout, const StateBuffers& buffers,
                           const Optimizer& optimizer);
  // The ranges alone: for sizes before there are buffers. `parameters`: which region's layout they
  // have.
  static std::vector<UpdateRange> ranges_of(const RankLayout& layout,
                                            Region parameters = Region::kParameters);
  // Of such ranges.
  static std::vector<UpdateBlock> blocks_of(const RankLayout& layout,
                                            std::span<const UpdateRange> ranges);
  std::int64_t elements() const;
  std::int64_t tiles() const { return elements() / kTileElements; }
  // Chunks are the ranges', cut, in their order.
  std::int64_t chunks() const { return elements() / kUpdateElements; }
};

// The ranges, cut into tiles, in their order.
std::vector<UpdateRange> tiles_of(std::span<const UpdateRange> ranges);

// Told what an update has come to, so that faults can strike there. From any of its threads.
using UpdateObserver = std::function<void(std::uint64_t chunk, std::string_view moment)>;

// One per rank, for all its generations. One thread uses it.
class OptimizerDevice {
 public:
  virtual ~OptimizerDevice() = default;

  // Where parts of the parameters may stand aside (Optimizer::is_active()); null: they never do.
  virtual const Optimizer* optimizer() const { return nullptr; }
  // Σ g² of each tile of the shard, in the order of its ranges: what combine_tile_sums() takes.
  // The reduced gradients are complete. Errors: the device's.
  virtual Result<std::vector<double>> tile_sums() = 0;
  // The update of the shard, as the transaction's step `number` ≥ 1: chunks that an update of the
  // same number has done are left alone, those that a killed process left half written are restored
  // first. All of it is done and can be seen by the next process when this returns OK. An error
  // means that the device is lost: the update may be finished in another process only. `number`
  // means nothing without a log.
  virtual Status update(const OptimizerStep& step, std::int64_t number) = 0;
  // Before steps are done that may have been done before (StepTransaction::load): nothing counts as
  // done, nothing is restored. Done when it returns OK.
  virtual Status forget_updates() = 0;
  // After parameters that are updated elsewhere than where they are used were loaded, or found in
  // memory of a process before: the owner's are where they are used, too, when it returns OK.
  // Nothing where the two are one.
  virtual Status place_parameters() { return {}; }
};

// `log`: null where no other process could finish an update; else for chunks of
// ShardedOptimizer::chunk_bytes(), with an undo slot per thread, and it outlives the device.
// `observer` may be empty; it is told of one chunk in the midst of each tile, "saved", "written"
// and "done": telling takes a tenth of what an update does.
std::unique_ptr<OptimizerDevice> make_cpu_optimizer_device(OptimizerShard shard,
                                                           ParallelFor parallel_for, UpdateLog* log,
                                                           UpdateObserver observer = {});

}  // namespace troupe::train
