#include "train/sharding/sharded_units.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

std::vector<std::int64_t> unit_sizes(const RankLayout& layout) {
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < layout.units(); ++unit) sizes.push_back(layout.unit_elements(unit));
  return sizes;
}

GatherSchedule training_schedule(const RankLayout& layout, const ComputeOptions& options) {
  return GatherSchedule(unit_sizes(layout), training_events(layout.units(), options.tied),
                        options.limits);
}

GatherSchedule forward_schedule(const RankLayout& layout, const ComputeOptions& options) {
  return GatherSchedule(unit_sizes(layout), forward_events(layout.units(), options.tied),
                        options.limits);
}

// Whether units are used where the parameters' region holds them.
bool is_resident(const RankLayout& layout, const ComputeOptions& options) {
  return !options.from_host && options.state == options.compute &&
         (!layout.sharded(Region::kParameters) || layout.mesh().dp_shard == 1);
}

std::int64_t total_vector_elements(const RankLayout& layout) {
  std::int64_t sum = 0;
  for (const UnitInfo& unit : layout.layout().units()) sum += unit.vector_elements;
  return sum;
}

Status all_gather_units(collective::Communicator& communicator, std::span<std::byte> unit,
                        DType dtype, ElementRange own, std::span<const std::size_t> counts) {
  const Deadline deadline = Deadline::after(communicator.default_timeout());
  const auto type =
      dtype == DType::kBF16 ? collective::DataType::kBfloat16 : collective::DataType::kFloat32;
  return communicator.all_gather(unit.data() + index(own.begin) * dtype_size(dtype), unit.data(),
                                 counts, type, deadline);
}

}  // namespace

void follow(ComputeOptions& options, Strategy strategy, Offload offload, bool tied) {
  options.tied = tied;
  options.limits.reshard_after_forward = row_of(strategy).reshards_after_forward;
  // Units are gathered from a copy of what is updated.
  if (offload != Offload::kNothing) options.state = options.compute;
  options.from_host = offload == Offload::kParameters;
}

GatherBuffers GatherBuffers::plan(const RankLayout& layout, const ComputeOptions& options) {
  GatherBuffers buffers;
  if (options.compute == DType::kBF16) buffers.vector_bytes = 4 * total_vector_elements(layout);
  if (is_resident(layout, options)) return buffers;
  const std::int64_t elements = std::max(training_schedule(layout, options).arena_elements(),
                                         forward_schedule(layout, options).arena_elements());
  buffers.arena_bytes = elements * static_cast<std::int64_t>(dtype_size(options.compute));
  return buffers;
}

ShardedUnits::ShardedUnits(const RankLayout& layout, const ComputeOptions& options,
                           const MeshCommunicators& communicators, CommunicationQueue& queue,
                           ShardOperations& operations, GradientReducer& reducer,
                           const Clock& clock, std::span<std::byte> parameters,
                           WorkingMemory& memory)
    : layout_(layout),
      options_(options),
      communicators_(communicators),
      queue_(queue),
      operations_(operations),
      reducer_(reducer),
      clock_(clock),
      parameters_(parameters),
      training_(training_schedule(layout, options)),
      forward_(forward_schedule(layout, options)),
      tickets_(index(layout.units()), 0) {
  TROUPE_CHECK(options.compute == options.state || options.state == DType::kF32);
  TROUPE_CHECK(options.compute == options.state || !options.from_host);
  TROUPE_CHECK(parameters.size() ==
               index(layout.elements(Region::kParameters)) * dtype_size(options.state));
  const GatherBuffers buffers = GatherBuffers::plan(layout, options);
  arena_ = memory.take_sent(buffers.arena_bytes);
  vectors_ = memory.take_own_elements<float>(buffers.vector_bytes /
                                             static_cast<std::int64_t>(sizeof(float)));
  std::size_t offset = 0;
  for (const UnitInfo& unit : layout.layout().units()) {
    vector_offsets_.push_back(offset);
    offset += index(unit.vector_elements);
  }
}

bool ShardedUnits::resident() const { return is_resident(layout_, options_); }

const std::byte* ShardedUnits::resident_at(int unit) const {
  return parameters_.data() +
         index(layout_.offset(Region::kParameters, unit, 0)) * dtype_size(options_.state);
}

std::span<std::byte> ShardedUnits::arena_at(std::int64_t offset, int unit) {
  const std::size_t size = dtype_size(options_.compute);
  return arena_.subspan(index(offset) * size, index(layout_.unit_elements(unit)) * size);
}

std::span<float> ShardedUnits::vectors_of(int unit) {
  return vectors_.subspan(vector_offsets_[index(unit)],
                          index(layout_.layout().units()[index(unit)].vector_elements));
}

Status ShardedUnits::expand(int unit, const std::byte* parameters) {
  if (options_.compute != DType::kBF16) return {};
  return operations_.expand(
      layout_.layout(), unit,
      {reinterpret_cast<const std::uint16_t*>(parameters), index(layout_.unit_elements(unit))},
      vectors_of(unit));
}

Status ShardedUnits::materialise(int unit, std::span<std::byte> target) {
  const bool sharded = layout_.sharded(Region::kParameters);
  const ElementRange own =
      sharded ? layout_.owned(unit) : ElementRange{0, layout_.unit_elements(unit)};
  const std::size_t from_size = dtype_size(options_.state), to_size = dtype_size(options_.compute);
  if (own.size() > 0) {
    const auto from =
        parameters_.subspan(index(layout_.offset(Region::kParameters, unit, own.begin)) * from_size,
                            index(own.size()) * from_size);
    const auto to = target.subspan(index(own.begin) * to_size, index(own.size()) * to_size);
    TROUPE_RETURN_IF_ERROR(
        options_.state == options_.compute
            ? operations_.copy(from, to)
            : operations_.narrow({reinterpret_cast<const float*>(from.data()), index(own.size())},
                                 {reinterpret_cast<std::uint16_t*>(to.data()), index(own.size())}));
  }
  if (sharded && communicators_.shard()) {
    TROUPE_RETURN_IF_ERROR(all_gather_units(*communicators_.shard(), target, options_.compute, own,
                                            layout_.owned_counts(unit)));
  }
  return expand(unit, target.data());
}

CommunicationQueue::Ticket ShardedUnits::submit_gather(int unit, std::int64_t offset) {
  return queue_.submit([this, unit, offset] { return materialise(unit, arena_at(offset, unit)); });
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

template <typename Work>
Status ShardedUnits::between_passes(Work&& work) {
  return timed(seconds_between_passes_, work);
}

Status ShardedUnits::refresh() {
  if (resident()) {
    if (options_.compute != DType::kBF16) return {};
    for (int unit = 0; unit < layout_.units(); ++unit)
      queue_.submit([this, unit] { return expand(unit, resident_at(unit)); });
    return queue_.drain();
  }
  const auto gather = [&] {
    for (const int unit : training_.persistent())
      tickets_[index(unit)] = submit_gather(unit, training_.offset_at(0, unit));
    return queue_.drain();
  };
  const bool gathers = layout_.sharded(Region::kParameters) && communicators_.shard();
  return gathers ? between_passes(gather) : gather();
}

Status ShardedUnits::publish() {
  if (layout_.sharded(Region::kParameters) || !layout_.sharded(Region::kOptimizer) ||
      !communicators_.shard()) {
    return {};
  }
  // Collectives are over memory of the device: sharding_setup.h refuses this.
  TROUPE_CHECK(!options_.from_host);
  return between_passes([&] {
    for (int unit = 0; unit < layout_.units(); ++unit) {
      const std::size_t size = dtype_size(options_.state);
      const auto whole =
          parameters_.subspan(index(layout_.offset(Region::kParameters, unit, 0)) * size,
                              index(layout_.unit_elements(unit)) * size);
      queue_.submit([this, unit, whole] {
        return all_gather_units(*communicators_.shard(), whole, options_.state, layout_.owned(unit),
                                layout_.owned_counts(unit));
      });
    }
    return queue_.drain();
  });
}

double ShardedUnits::take_communication_seconds() {
  return std::exchange(seconds_between_passes_, 0);
}

void ShardedUnits::begin_pass(Pass pass) {
  pass_ = pass;
  at_ = 0;
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

Status ShardedUnits::enter(UnitEvent event) {
  if (event.phase == Phase::kBackward && !in_backward_) {
    const TimePoint now = clock_.now();
    seconds_.forward =
        std::chrono::duration<double>(now - phase_began_).count() - seconds_.communication_forward;
    in_backward_ = true;
    phase_began_ = now;
  }
  if (resident()) return {};
  TROUPE_CHECK(at_ < schedule().steps().size(), "unit {} beyond the schedule", event.unit);
  const GatherStep& step = schedule().steps()[at_];
  TROUPE_CHECK(step.event == event, "unit {} is used where unit {} was expected", event.unit,
               step.event.unit);
  return in_pass([&] {
    for (const int unit : step.gathers)
      tickets_[index(unit)] = submit_gather(unit, schedule().offset_at(at_, unit));
    return event.acquire ? queue_.wait(tickets_[index(event.unit)]) : Status();
  });
}

Result<UnitParameters> ShardedUnits::acquire(int unit, Phase phase) {
  TROUPE_RETURN_IF_ERROR(enter({unit, phase, true}));
  UnitParameters parameters;
  parameters.dtype = options_.compute;
  if (resident()) {
    parameters.data = resident_at(unit);
  } else {
    parameters.data = arena_at(schedule().offset_at(at_++, unit), unit).data();
  }
  if (options_.compute == DType::kBF16) parameters.vectors = vectors_of(unit).data();
  return parameters;
}

void ShardedUnits::release(int unit, Phase phase) {
  if (resident()) return;
  // A pass that failed releases what it holds, in whatever order.
  if (at_ >= schedule().steps().size() ||
      schedule().steps()[at_].event != UnitEvent{unit, phase, false}) {
    return;
  }
  ++at_;
  // An evaluation is one forward pass after the other.
  if (pass_ == Pass::kForwardOnly && at_ == schedule().steps().size()) at_ = 0;
}

Result<UnitGradient> ShardedUnits::gradient(int unit) {
  return in_pass([&] { return reducer_.local(unit); });
}

Status ShardedUnits::gradient_done(int unit) {
  return in_pass([&] { return reducer_.reduce(unit); });
}

}  // namespace troupe::train
