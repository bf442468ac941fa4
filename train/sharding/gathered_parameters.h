#pragma once
// The trained or the frozen parameters of all units under a strategy, as a model's pass reaches
// them.
//
// Where a rank's parameters are whole and in the type that the model computes with, a unit is used
// in place. Else it is materialised in an arena by the gather schedule: cast from the own
// parameters, or copied from the host's memory where they lie there, and gathered over the shard
// group where they are sharded.

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/unit_access.h"
#include "train/sharding/communication_queue.h"
#include "train/sharding/gather_schedule.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/shard_operations.h"
#include "train/sharding/working_memory.h"

namespace troupe::train {

struct GatherOptions {
  DType kept = DType::kF32;     // of the parameters' region
  DType compute = DType::kF32;  // what the model gets: kF32 or kBF16
  GatherLimits limits;
  bool tied = false;
  // The parameters' region is memory of the host that the device copies from, and of `compute`.
  bool from_host = false;
};

// Working memory: what a memory plan counts.
struct GatherBuffers {
  std::int64_t arena_bytes = 0;   // materialised units
  std::int64_t vector_bytes = 0;  // fp32 copies of 1-D parameters, for bf16
  static GatherBuffers plan(const RankLayout& layout, const GatherOptions& options);
  // As WorkingMemory counts; other ranks read the arena.
  std::int64_t sent_bytes() const { return WorkingMemory::rounded(arena_bytes); }
  std::int64_t own_bytes() const { return WorkingMemory::rounded(vector_bytes); }
};

enum class GatherPass { kTraining, kForwardOnly };

// One thread uses it. Everything passed in outlives it.
class GatheredParameters {
 public:
  // parameters: the region's buffer, layout.elements(Region::kParameters) of options.kept.
  // `memory` has room for GatherBuffers::sent_bytes() and own_bytes().
  GatheredParameters(const RankLayout& layout, const GatherOptions& options,
                     const MeshCommunicators& communicators, CommunicationQueue& queue,
                     ShardOperations& operations, std::span<std::byte> parameters,
                     WorkingMemory& memory);

  // Whether units are used where the parameters' region holds them.
  bool resident() const;
  // Whether refresh() and publish() wait for other ranks.
  bool refresh_communicates() const;
  bool publish_communicates() const;
  // The region has changed: what stays materialised is made again. Collective. Done when the queue
  // is drained.
  void refresh();
  // Where parameters are whole and updated in shards, gathers what the shards' owners updated.
  void publish();

  void begin_pass(GatherPass pass);
  // Submits what the schedule wants before the event, and waits for an acquired unit.
  Status enter(const UnitEvent& event);
  // After enter() of its acquisition.
  UnitBuffer acquired(int unit);
  void release(const UnitEvent& event);

 private:
  const GatherSchedule& schedule() const {
    return pass_ == GatherPass::kTraining ? training_ : forward_;
  }
  const std::byte* resident_at(int unit) const;
  CommunicationQueue::Ticket submit_gather(int unit, std::int64_t offset);
  Status materialise(int unit, std::span<std::byte> target);
  Status expand(int unit, const std::byte* parameters);
  std::span<std::byte> arena_at(std::int64_t offset, int unit);
  std::span<float> vectors_of(int unit);

  const RankLayout& layout_;
  const GatherOptions options_;
  const MeshCommunicators& communicators_;
  CommunicationQueue& queue_;
  ShardOperations& operations_;
  std::span<std::byte> parameters_;

  GatherSchedule training_, forward_;
  GatherPass pass_ = GatherPass::kTraining;
  std::size_t at_ = 0;                               // the next event of the pass
  std::vector<CommunicationQueue::Ticket> tickets_;  // by unit, of its last gather
  std::span<std::byte> arena_;
  std::span<float> vectors_;
  std::vector<std::size_t> vector_offsets_;  // by unit
};

}  // namespace troupe::train
