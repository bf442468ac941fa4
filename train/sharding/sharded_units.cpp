#include "train/sharding/sharded_units.h"

#include <utility>

namespace troupe::train {

void follow(ComputeOptions& options, Strategy strategy, Offload offload, bool tied) {
  options.tied = tied;
  options.limits.reshard_after_forward = row_of(strategy).reshards_after_forward;
  // Units are gathered from a copy of what is updated.
  if (offload != Offload::kNothing) options.state = options.compute;
  options.from_host = offload == Offload::kParameters;
}

UnitBuffers UnitBuffers::plan(const RankLayout& layout, const ComputeOptions& options) {
  UnitBuffers buffers{.trained = GatherBuffers::plan(layout, options.of_trained()), .frozen = {}};
  if (layout.frozen()) buffers.frozen = GatherBuffers::plan(*layout.frozen(), options.of_frozen());
  return buffers;
}

ShardedUnits::ShardedUnits(const RankLayout& layout, const ComputeOptions& options,
                           const MeshCommunicators& communicators, CommunicationQueue& queue,
                           ShardOperations& operations, GradientReducer& reducer,
                           const Clock& clock, const StateBuffers& state, WorkingMemory& memory)
    : queue_(queue),
      reducer_(reducer),
      clock_(clock),
      fp16_(options.fp16),
      trained_(layout, options.of_trained(), communicators, queue, operations, state.parameters,
               memory) {
  if (layout.frozen())
    frozen_.emplace(*layout.frozen(), options.of_frozen(), communicators, queue, operations,
                    state.frozen, memory);
}

template <typename Work>
auto ShardedUnits::timed(double& seconds, Work&& work) {
  const TimePoint began = clock_.now();
  auto result = work();
  seconds += std::chrono::duration<double>(clock_.now() - began).count();
  return result;
}

template <typename Work>
auto ShardedUnits::in_pass(Work&& work) {
  return timed(in_backward_ ? seconds_.communication_backward : seconds_.communication_forward,
               work);
}

Status ShardedUnits::refresh() {
  const auto refresh = [&] {
    trained_.refresh();
    return queue_.drain();
  };
  return trained_.refresh_communicates() ? timed(seconds_between_passes_, refresh) : refresh();
}

Status ShardedUnits::refresh_frozen() {
  if (!frozen_) return {};
  frozen_->refresh();
  return queue_.drain();
}

Status ShardedUnits::publish() {
  if (!trained_.publish_communicates()) return {};
  return timed(seconds_between_passes_, [&] {
    trained_.publish();
    return queue_.drain();
  });
}

double ShardedUnits::take_communication_seconds() {
  return std::exchange(seconds_between_passes_, 0);
}

void ShardedUnits::begin_pass(Pass pass) {
  trained_.begin_pass(pass);
  if (frozen_) frozen_->begin_pass(pass);
  seconds_ = {};
  in_backward_ = false;
  phase_began_ = clock_.now();
}

PassSeconds ShardedUnits::end_pass() {
  const double spent = std::chrono::duration<double>(clock_.now() - phase_began_).count();
  if (in_backward_) {
    seconds_.backward = spent - seconds_.communication_backward;
  } else {
    seconds_.forward = spent - seconds_.communication_forward;
  }
  return seconds_;
}

Status ShardedUnits::enter(const UnitEvent& event) {
  if (event.phase == Phase::kBackward && !in_backward_) {
    const TimePoint now = clock_.now();
    seconds_.forward =
        std::chrono::duration<double>(now - phase_began_).count() - seconds_.communication_forward;
    in_backward_ = true;
    phase_began_ = now;
  }
  if (trained_.resident() && (!frozen_ || frozen_->resident())) return {};
  return in_pass([&] {
    if (frozen_) TROUPE_RETURN_IF_ERROR(frozen_->enter(event));
    return trained_.enter(event);
  });
}

Result<UnitParameters> ShardedUnits::acquire(int unit, Phase phase) {
  TROUPE_RETURN_IF_ERROR(enter({unit, phase, true}));
  UnitParameters parameters{trained_.acquired(unit)};
  if (frozen_) parameters.frozen = frozen_->acquired(unit);
  parameters.fp16 = fp16_;
  return parameters;
}

void ShardedUnits::release(int unit, Phase phase) {
  trained_.release({unit, phase, false});
  if (frozen_) frozen_->release({unit, phase, false});
}

Result<UnitGradient> ShardedUnits::gradient(int unit) {
  return in_pass([&] { return reducer_.local(unit); });
}

Status ShardedUnits::gradient_done(int unit) {
  return in_pass([&] { return reducer_.reduce(unit); });
}

}  // namespace troupe::train
