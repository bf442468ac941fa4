#pragma once
// From a unit's local gradient to the reduced gradient of its owner.
//
// Orders of sums:
//   kStrategy          each micro-batch's gradient is summed over the ranks by the fixed tree, the
//                      sums of the micro-batches are added in their order: the same bits under
//                      every strategy of a world size (hybrid ones where dp_replicate is a power of
//                      two, see Mesh::data_rank_of).
//   kAcrossWorldSizes  the fixed tree over all micro-batches of the step (gradient_tree.h): the
//                      same bits at every world size.
//   kOff               whole gradients are summed over the micro-batches first and reduced once:
//                      fewer bytes, equal to tolerance.
// Sums are in fp32 always. With a bf16 reduction each local gradient is rounded to bf16 before it
// travels. Except in across-world order the sum over all ranks is rounded again, once: where shard
// groups are replicated, a group's sums go to the replicas in fp32 for that. So the orders promise
// the same bits with bf16 as with fp32. One rank alone sends nothing: it rounds in across-world
// order only, for the sake of the other world sizes.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/model/unit_access.h"
#include "train/sharding/communication_queue.h"
#include "train/sharding/gradient_tree.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/shard_operations.h"
#include "train/sharding/working_memory.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

enum class ReductionOrder { kStrategy, kAcrossWorldSizes, kOff };

struct ReductionOptions {
  ReductionOrder order = ReductionOrder::kStrategy;
  // Micro-batches of a step on one rank, at most.
  std::int64_t micro_batches = 1;
  DType reduce = DType::kF32;  // or kBF16
  // The head adds to unit 0's gradient, which is complete only at the end of the backward pass.
  bool tied = false;
  // Reductions run beside the backward pass: two scratch buffers take turns.
  bool overlaps = false;
};

// Elements of the reducer's working buffers (fp32 unless said otherwise): what a memory plan
// counts.
struct ReductionBuffers {
  std::int64_t first_unit = 0;   // local gradient of unit 0, where it needs its own
  std::int64_t other_units = 0;  // local gradient of another unit, each
  int other_count = 0;           // how many of these
  std::int64_t narrow = 0;       // bf16: what travels
  std::int64_t received = 0;     // bf16: parts received from all ranks, or from the shard group
  std::int64_t exchange = 0;     // the same in fp32
  std::int64_t stack = 0;        // partial sums of the tree, all levels

  static ReductionBuffers plan(const RankLayout& layout, const ReductionOptions& options);
  std::int64_t bytes() const {
    return 4 * (first_unit + other_units * other_count + exchange + stack) +
           2 * (narrow + received);
  }
  // Of those that other ranks read, as WorkingMemory counts.
  std::int64_t sent_bytes() const {
    return WorkingMemory::rounded(4 * first_unit) +
           other_count * WorkingMemory::rounded(4 * other_units) +
           WorkingMemory::rounded(2 * narrow);
  }
  std::int64_t own_bytes() const {
    return WorkingMemory::rounded(2 * received) + WorkingMemory::rounded(4 * exchange) +
           WorkingMemory::rounded(4 * stack);
  }
};

// One thread uses it; the queue carries out what it submits. Everything passed in outlives it.
class GradientReducer {
 public:
  // kUnsupported where the operations cannot form the sums that this takes.
  static Status check(const RankLayout& layout, const ReductionOptions& options,
                      const ShardOperations& operations);

  // gradients: the region's buffer, (layout.elements(Region::kGradients)). `memory` has room for
  // ReductionBuffers::sent_bytes() and own_bytes().
  GradientReducer(const RankLayout& layout, const ReductionOptions& options,
                  const MeshCommunicators& communicators, CommunicationQueue& queue,
                  ShardOperations& operations, std::span<float> gradients, WorkingMemory& memory);

  // `leaves`: the step's micro-batches over all ranks. Each rank computes micro_batches() of them,
  // in across-world order possibly an empty one as the last one.
  void begin_step(std::int64_t leaves);
  std::int64_t micro_batches() const { return micro_batches_; }
  // The micro-batch of the step that data rank `data_rank` computes as its `micro_batch`th;
  // micro_batches()·world_size or more where there is none.
  std::int64_t number_in_step(std::int64_t micro_batch, int data_rank) const;
  void begin_micro_batch(std::int64_t micro_batch);

  // Where the unit's gradient of this micro-batch is put: fresh in every micro-batch, as its place
  // still holds what was there before (another unit's gradient, the last step's, a step's that was
  // given up). Only what grows in place over the micro-batches (kOff) is added to after the first
  // micro-batch.
  Result<UnitGradient> local(int unit);
  // The unit's gradient, for which local() was asked in this micro-batch, is complete: reduction
  // begins.
  Status reduce(int unit);
  // All reductions of the step are done.
  Status finish_step() { return queue_.drain(); }

 private:
  struct Scratch {
    std::span<float> values;
    CommunicationQueue::Ticket busy = 0;  // the reduction that reads it
  };
  bool first() const { return micro_batch_ == 0; }
  bool last() const { return micro_batch_ + 1 == micro_batches_; }
  // Whether local gradients go into the region itself in this micro-batch.
  bool lands_in_place() const;
  Scratch& scratch_of(int unit);
  std::span<float> region(int unit, ElementRange range) const;

  Status sum_over_ranks(int unit, std::span<float> local, bool in_place, bool first, bool last);
  Status reduce_scatter(int unit, std::span<float> local);
  Status reduce_scatter_narrow(int unit, std::span<float> local);
  Status reduce_group_narrow(int unit, std::span<float> local);
  Result<std::span<collective::Bfloat16>> narrowed(std::span<const float> local);
  Status combine_leaves(int unit, std::span<float> local, std::int64_t micro_batch);
  Status exchange_leaves(int unit, std::span<const float> local);
  Status share_with_replicas(int unit);
  Status push_leaf(int unit, std::span<const float> leaf, std::int64_t position);
  std::span<float> level(int unit, int level);

  const RankLayout& layout_;
  const ReductionOptions options_;
  const MeshCommunicators& communicators_;
  CommunicationQueue& queue_;
  ShardOperations& operations_;
  std::span<float> gradients_;
  const int world_size_;

  std::int64_t leaves_ = 0;
  std::int64_t micro_batches_ = 0;
  std::int64_t micro_batch_ = 0;
  std::optional<GradientTree> tree_;
  std::vector<bool> begun_;  // by unit, in this micro-batch
  Scratch first_scratch_;
  std::vector<Scratch> other_scratch_;
  std::vector<int> scratch_in_use_;  // by unit: index into other_scratch_
  std::size_t next_scratch_ = 0;

  // Used by pieces of the queue alone.
  std::span<std::uint16_t> narrow_;
  std::span<std::uint16_t> received_;
  std::span<float> exchange_;
  std::span<float> stack_;  // levels above the region itself, of level_elements_ each
  std::int64_t level_elements_ = 0;
  std::vector<std::int64_t> stack_offsets_;  // by unit, in a level
  std::vector<int> heights_;                 // by unit
};

}  // namespace troupe::train
