#pragma once
// Parameters and gradients of a model under a strategy: the UnitAccess of training.
//
// Where a rank's parameters are whole and in the type that the model computes with, acquire gives
// them in place. Else a unit is materialised in an arena by the gather schedule: cast from the own
// parameters, or copied from the host's memory where they lie there, and gathered over the shard
// group where they are sharded.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/clock.h"
#include "train/model/unit_access.h"
#include "train/sharding/communication_queue.h"
#include "train/sharding/gather_schedule.h"
#include "train/sharding/gradient_reducer.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/offload.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/shard_operations.h"
#include "train/sharding/strategy.h"
#include "train/sharding/working_memory.h"

namespace troupe::train {

struct ComputeOptions {
  // Of the parameters' region: kF32, or kBF16 (pure_bf16, or a copy of those that are updated).
  DType state = DType::kF32;
  DType compute = DType::kF32;  // what the model gets: kF32 or kBF16
  GatherLimits limits;
  bool tied = false;
  // The parameters' region is memory of the host that the device copies from, and of `compute`.
  bool from_host = false;
};

// What of these follows from the run's strategy, from what is offloaded, and from whether the
// embedding's weights are the head's.
void follow(ComputeOptions& options, Strategy strategy, Offload offload, bool tied);

// Working memory of ShardedUnits: what a memory plan counts.
struct GatherBuffers {
  std::int64_t arena_bytes = 0;   // materialised units
  std::int64_t vector_bytes = 0;  // fp32 copies of 1-D parameters, for bf16
  static GatherBuffers plan(const RankLayout& layout, const ComputeOptions& options);
  // As WorkingMemory counts; other ranks read the arena.
  std::int64_t sent_bytes() const { return WorkingMemory::rounded(arena_bytes); }
  std::int64_t own_bytes() const { return WorkingMemory::rounded(vector_bytes); }
};

// Times of one pass, in seconds of the calling thread: where work is enqueued on a device, what
// enqueueing took.
struct PassSeconds {
  double communication_forward = 0;   // waited for gathers before the backward pass
  double communication_backward = 0;  // for gathers and reductions since
  double forward = 0;                 // arithmetic; the head belongs to the backward pass
  double backward = 0;
};

// One thread uses it. Everything passed in outlives it.
class ShardedUnits final : public UnitAccess {
 public:
  // parameters: the region's buffer, layout.elements(Region::kParameters) of options.state.
  // `memory` has room for GatherBuffers::sent_bytes() and own_bytes().
  ShardedUnits(const RankLayout& layout, const ComputeOptions& options,
               const MeshCommunicators& communicators, CommunicationQueue& queue,
               ShardOperations& operations, GradientReducer& reducer, const Clock& clock,
               std::span<std::byte> parameters, WorkingMemory& memory);

  // The parameters' region has changed (loaded, or updated by the optimizer): what stays
  // materialised is made again. Collective.
  Status refresh();
  // Where parameters are whole and moments sharded, gathers what the shards' owners updated.
  // Collective; before refresh().
  Status publish();

  // Seconds that refresh() and publish() have waited for other ranks since the last call: what of
  // an update is communication. Casts alone do not count.
  double take_communication_seconds();

  enum class Pass { kTraining, kForwardOnly };
  // kForwardOnly begins again by itself after each whole pass.
  void begin_pass(Pass pass);
  // After the last release of a pass: its times.
  PassSeconds end_pass();

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int unit, Phase phase) override;
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int unit) override;

 private:
  bool resident() const;
  const std::byte* resident_at(int unit) const;
  const GatherSchedule& schedule() const { return pass_ == Pass::kTraining ? training_ : forward_; }
  Status enter(UnitEvent event);
  CommunicationQueue::Ticket submit_gather(int unit, std::int64_t offset);
  Status materialise(int unit, std::span<std::byte> target);
  Status expand(int unit, const std::byte* parameters);
  std::span<std::byte> arena_at(std::int64_t offset, int unit);
  std::span<float> vectors_of(int unit);
  template <typename Work>
  auto timed(double& seconds, Work&& work);
  template <typename Work>
  auto in_pass(Work&& work);
  template <typename Work>
  Status between_passes(Work&& work);

  const RankLayout& layout_;
  const ComputeOptions options_;
  const MeshCommunicators& communicators_;
  CommunicationQueue& queue_;
  ShardOperations& operations_;
  GradientReducer& reducer_;
  const Clock& clock_;
  std::span<std::byte> parameters_;

  GatherSchedule training_, forward_;
  Pass pass_ = Pass::kTraining;
  std::size_t at_ = 0;                               // the next event of the pass
  std::vector<CommunicationQueue::Ticket> tickets_;  // by unit, of its last gather
  std::span<std::byte> arena_;
  std::int64_t arena_elements_ = 0;
  std::span<float> vectors_;
  std::vector<std::size_t> vector_offsets_;  // by unit

  PassSeconds seconds_;
  double seconds_between_passes_ = 0;
  bool in_backward_ = false;
  TimePoint phase_began_{};
};

}  // namespace troupe::train
