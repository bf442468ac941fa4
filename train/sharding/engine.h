#pragma once
// The sharding engine of one rank in one generation: everything between a communicator and a model,
// on whatever device the buffers lie.
//
//   engine.begin_step(micro_batches);
//   for each micro-batch: engine.begin_micro_batch(micro_batch); model.forward_backward(…,
//   engine.units(), …);
//                  engine.units().end_pass();
//   engine.finish_gradients(); norm = engine.optimizer().norm();
//   engine.optimizer().update(…); engine.parameters_changed();

#include <memory>
#include <vector>

#include "train/sharding/communication_queue.h"
#include "train/sharding/engine_device.h"
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

// The working memory of an engine, on its device.
WorkingBytes working_bytes(const RankLayout& layout, const EngineOptions& options);
// All of it.
std::int64_t engine_bytes(const RankLayout& layout, const EngineOptions& options);

// One thread uses it. Everything passed in outlives it. Failures are the communicator's and the
// device's: after the first one nothing runs, and what was computed since the last drain
// (finish_gradients, parameters_changed) must not be believed.
class Engine {
 public:
  // Ends the queue first: its work uses the rest. The communicator must know no more of memory that
  // goes.
  ~Engine();
  // Collective. options.reduction.overlaps: communication runs beside arithmetic, and
  // options.compute.limits.prefetch means something. `buffers` are the device's. kUnsupported: a
  // sum that the device cannot form, with the way out.
  static Result<std::unique_ptr<Engine>> make(const RankLayout& layout,
                                              const EngineOptions& options, EngineDevice& device,
                                              const Clock& clock, OptimizerDevice& updates,
                                              const StateBuffers& buffers);

  GradientReducer& reducer() { return *reducer_; }
  ShardedUnits& units() { return *units_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const MeshCommunicators& communicators() const { return *communicators_; }

  void begin_step(std::int64_t micro_batches) { reducer_->begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t micro_batch);
  // All gradients of the step are where their owners want them, on the device too.
  Status finish_gradients() { return reducer_->finish_step(); }
  // After the parameters' region was loaded or updated (on a GPU: on the compute stream, or waited
  // for): makes it known to all. Collective.
  Status parameters_changed(bool updated_by_owners);
  // After the frozen parameters were loaded, or found. Collective.
  Status frozen_loaded();

 private:
  Engine() = default;

  Status register_segment(const memory::Segment& segment);

  std::vector<const memory::Segment*> registered_;
  WorkingMemory memory_;
  std::unique_ptr<MeshCommunicators> communicators_;
  std::unique_ptr<CommunicationQueue> queue_;
  std::unique_ptr<ShardOperations> operations_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<ShardedUnits> units_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

}  // namespace troupe::train
