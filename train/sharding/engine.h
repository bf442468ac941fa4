#pragma once
// The sharding engine of one rank in one generation: everything between a communicator and a model.
//
//   engine.begin_step(micro_batches);
//   for each turn: engine.begin_turn(turn); model.forward_backward(…, engine.units(), …);
//                  engine.units().end_pass();
//   engine.finish_gradients(); norm = engine.optimizer().norm();
//   engine.optimizer().update(…); engine.parameters_changed();

#include <memory>
#include <vector>

#include "train/sharding/communication_queue.h"
#include "train/sharding/gradient_reducer.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/sharding/sharded_units.h"
#include "train/sharding/working_memory.h"

namespace troupe::train {

struct EngineOptions {
  ReductionOptions reduction;
  ComputeOptions compute;
};

// Bytes of working memory that an engine allocates.
std::int64_t engine_bytes(const RankLayout& layout, const EngineOptions& options);

// One thread uses it. Everything passed in outlives it. Failures are the communicator's.
class Engine {
 public:
  // Ends the queue's thread first: its work uses the rest. The communicator must know no more of
  // memory that goes.
  ~Engine();
  // Collective. options.reduction.overlaps: communication gets a thread of its own, and
  // options.compute.limits.prefetch means something.
  static Result<std::unique_ptr<Engine>> make(const RankLayout& layout,
                                              const EngineOptions& options,
                                              collective::Communicator& world, Operators& operators,
                                              const Clock& clock, OptimizerDevice& updates,
                                              const StateBuffers& buffers);

  GradientReducer& reducer() { return *reducer_; }
  ShardedUnits& units() { return *units_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const MeshCommunicators& communicators() const { return *communicators_; }

  void begin_step(std::int64_t micro_batches) { reducer_->begin_step(micro_batches); }
  void begin_turn(std::int64_t turn);
  // All gradients of the step are where their owners want them.
  Status finish_gradients() { return reducer_->finish_step(); }
  // After the parameters' region was loaded or updated: makes it known to all. Collective.
  Status parameters_changed(bool updated_by_owners);

 private:
  Engine() = default;

  Status register_segment(const memory::Segment& segment);

  collective::Communicator* world_ = nullptr;
  std::vector<const memory::Segment*> registered_;
  WorkingMemory memory_;
  std::unique_ptr<MeshCommunicators> communicators_;
  std::unique_ptr<CommunicationQueue> queue_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<ShardedUnits> units_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

}  // namespace troupe::train
