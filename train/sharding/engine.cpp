#include "train/sharding/engine.h"

namespace troupe::train {

WorkingBytes working_bytes(const RankLayout& layout, const EngineOptions& options) {
  const UnitBuffers gather = UnitBuffers::plan(layout, options.compute);
  const ReductionBuffers reduction = ReductionBuffers::plan(layout, options.reduction);
  return {.sent = reduction.sent_bytes() + gather.sent_bytes(),
          .own = reduction.own_bytes() + gather.own_bytes()};
}

std::int64_t engine_bytes(const RankLayout& layout, const EngineOptions& options) {
  return working_bytes(layout, options).total();
}

Result<std::unique_ptr<Engine>> Engine::make(const RankLayout& layout, const EngineOptions& options,
                                             EngineDevice& device, const Clock& clock,
                                             OptimizerDevice& updates,
                                             const StateBuffers& buffers) {
  std::unique_ptr<Engine> engine(new Engine());
  engine->communicators_ = std::make_unique<MeshCommunicators>(
      TROUPE_TRY(MeshCommunicators::make(device, layout.mesh())));
  const bool several = layout.mesh().size() > 1;
  engine->memory_ = TROUPE_TRY(device.make_memory(working_bytes(layout, options), several));
  if (several && buffers.segment)
    TROUPE_RETURN_IF_ERROR(engine->register_segment(*buffers.segment));
  if (several && engine->memory_.segment().valid())
    TROUPE_RETURN_IF_ERROR(engine->register_segment(engine->memory_.segment()));
  engine->queue_ = device.make_queue(options.reduction.overlaps);
  engine->operations_ = device.make_operations(*engine->queue_);
  TROUPE_RETURN_IF_ERROR(GradientReducer::check(layout, options.reduction, *engine->operations_));
  engine->reducer_ = std::make_unique<GradientReducer>(
      layout, options.reduction, *engine->communicators_, *engine->queue_, *engine->operations_,
      buffers.gradients, engine->memory_);
  engine->units_ = std::make_unique<ShardedUnits>(
      layout, options.compute, *engine->communicators_, *engine->queue_, *engine->operations_,
      *engine->reducer_, clock, buffers, engine->memory_);
  engine->optimizer_ = std::make_unique<ShardedOptimizer>(layout, *engine->communicators_, updates);
  return engine;
}

Engine::~Engine() {
  queue_.reset();
  for (const memory::Segment* segment : registered_)
    communicators_->world().unregister_segment(*segment);
}

Status Engine::register_segment(const memory::Segment& segment) {
  TROUPE_RETURN_IF_ERROR(communicators_->world().register_segment(segment));
  registered_.push_back(&segment);
  return {};
}

void Engine::begin_micro_batch(std::int64_t micro_batch) {
  reducer_->begin_micro_batch(micro_batch);
  units_->begin_pass(ShardedUnits::Pass::kTraining);
}

Status Engine::frozen_loaded() { return units_->refresh_frozen(); }

Status Engine::parameters_changed(bool updated_by_owners) {
  if (updated_by_owners) TROUPE_RETURN_IF_ERROR(units_->publish());
  return units_->refresh();
}

}  // namespace troupe::train
