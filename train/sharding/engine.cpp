#include "train/sharding/engine.h"

namespace troupe::train {
namespace {

// Beyond a collective's own deadline: only a bug gets there.
constexpr auto kQueueMargin = std::chrono::seconds(60);

}  // namespace

std::int64_t engine_bytes(const RankLayout& layout, const EngineOptions& options) {
  const GatherBuffers gather = GatherBuffers::plan(layout, options.compute);
  return gather.arena_bytes + gather.vector_bytes +
         ReductionBuffers::plan(layout, options.reduction).bytes();
}

Result<std::unique_ptr<Engine>> Engine::make(const RankLayout& layout, const EngineOptions& options,
                                             collective::Communicator& world, Operators& operators,
                                             const Clock& clock, OptimizerDevice& updates,
                                             const StateBuffers& buffers) {
  std::unique_ptr<Engine> engine(new Engine());
  engine->communicators_ = std::make_unique<MeshCommunicators>(
      TROUPE_TRY(MeshCommunicators::make(world, layout.mesh())));
  engine->world_ = &world;
  const ReductionBuffers reduction = ReductionBuffers::plan(layout, options.reduction);
  const GatherBuffers gather = GatherBuffers::plan(layout, options.compute);
  const bool several = world.world_size() > 1;
  engine->memory_ = TROUPE_TRY(WorkingMemory::allocate(
      reduction.sent_bytes() + WorkingMemory::rounded(gather.arena_bytes), several));
  if (several && buffers.segment)
    TROUPE_RETURN_IF_ERROR(engine->register_segment(*buffers.segment));
  if (several && engine->memory_.segment().valid())
    TROUPE_RETURN_IF_ERROR(engine->register_segment(engine->memory_.segment()));
  engine->queue_ = options.reduction.overlaps
                       ? make_threaded_queue(world.default_timeout() + kQueueMargin)
                       : make_inline_queue();
  engine->reducer_ = std::make_unique<GradientReducer>(
      layout, options.reduction, *engine->communicators_, *engine->queue_, operators,
      buffers.gradients, engine->memory_);
  engine->units_ = std::make_unique<ShardedUnits>(layout, options.compute, *engine->communicators_,
                                                  *engine->queue_, *engine->reducer_, clock,
                                                  buffers.parameters, engine->memory_);
  engine->optimizer_ = std::make_unique<ShardedOptimizer>(layout, *engine->communicators_, updates);
  return engine;
}

Engine::~Engine() {
  queue_.reset();
  for (const memory::Segment* segment : registered_) world_->unregister_segment(*segment);
}

Status Engine::register_segment(const memory::Segment& segment) {
  TROUPE_RETURN_IF_ERROR(world_->register_segment(segment));
  registered_.push_back(&segment);
  return {};
}

void Engine::begin_turn(std::int64_t turn) {
  reducer_->begin_turn(turn);
  units_->begin_pass(ShardedUnits::Pass::kTraining);
}

Status Engine::parameters_changed(bool updated_by_owners) {
  if (updated_by_owners) TROUPE_RETURN_IF_ERROR(units_->publish());
  return units_->refresh();
}

}  // namespace troupe::train
