#pragma once
// Parameters and gradients of a model under a strategy: the UnitAccess of training.

#include <optional>
#include <span>

#include "runtime/base/clock.h"
#include "train/model/unit_access.h"
#include "train/sharding/communication_queue.h"
#include "train/sharding/gathered_parameters.h"
#include "train/sharding/gradient_reducer.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/offload.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/shard_operations.h"
#include "train/sharding/state_buffers.h"
#include "train/sharding/strategy.h"
#include "train/sharding/working_memory.h"

namespace troupe::train {

struct ComputeOptions {
  // Of the parameters' region: kF32, or kBF16 (pure_bf16, or a copy of those that are updated).
  DType state = DType::kF32;
  DType compute = DType::kF32;  // what the model gets: kF32 or kBF16
  // Of frozen parameters: what they are kept in, and what the model gets.
  DType frozen = DType::kF32;
  GatherLimits limits;
  bool tied = false;
  // The parameters' region is memory of the host that the device copies from, and of `compute`.
  bool from_host = false;
  bool fp16 = false;  // products are in fp16; parameters are as above

  GatherOptions of_trained() const { return {state, compute, limits, tied, from_host}; }
  GatherOptions of_frozen() const { return {frozen, frozen, limits, tied, false}; }
};

// What of these follows from the run's strategy, from what is offloaded, and from whether the
// embedding's weights are the head's.
void follow(ComputeOptions& options, Strategy strategy, Offload offload, bool tied);

// Working memory of ShardedUnits, of trained and frozen parameters: what a memory plan counts.
struct UnitBuffers {
  GatherBuffers trained, frozen;
  static UnitBuffers plan(const RankLayout& layout, const ComputeOptions& options);
  std::int64_t bytes() const {
    return trained.arena_bytes + trained.vector_bytes + frozen.arena_bytes + frozen.vector_bytes;
  }
  std::int64_t sent_bytes() const { return trained.sent_bytes() + frozen.sent_bytes(); }
  std::int64_t own_bytes() const { return trained.own_bytes() + frozen.own_bytes(); }
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
  // The buffers of `state` are as large as the layout says. `memory` has room for
  // UnitBuffers::sent_bytes() and own_bytes().
  ShardedUnits(const RankLayout& layout, const ComputeOptions& options,
               const MeshCommunicators& communicators, CommunicationQueue& queue,
               ShardOperations& operations, GradientReducer& reducer, const Clock& clock,
               const StateBuffers& state, WorkingMemory& memory);

  // The frozen parameters have been loaded, or found: once. Collective.
  Status refresh_frozen();
  // The parameters' region has changed (loaded, or updated by the optimizer): what stays
  // materialised is made again. Collective.
  Status refresh();
  // Where parameters are whole and moments sharded, gathers what the shards' owners updated.
  // Collective; before refresh().
  Status publish();

  // Seconds that refresh() and publish() have waited for other ranks since the last call: what of
  // an update is communication. Casts alone do not count.
  double take_communication_seconds();

  using Pass = GatherPass;
  // kForwardOnly begins again by itself after each whole pass.
  void begin_pass(Pass pass);
  // After the last release of a pass: its times.
  PassSeconds end_pass();

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int unit, Phase phase) override;
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int unit) override;

 private:
  Status enter(const UnitEvent& event);
  template <typename Work>
  auto timed(double& seconds, Work&& work);
  template <typename Work>
  auto in_pass(Work&& work);

  CommunicationQueue& queue_;
  GradientReducer& reducer_;
  const Clock& clock_;
  const bool fp16_;
  GatheredParameters trained_;
  std::optional<GatheredParameters> frozen_;

  PassSeconds seconds_;
  double seconds_between_passes_ = 0;
  bool in_backward_ = false;
  TimePoint phase_began_{};
};

}  // namespace troupe::train
