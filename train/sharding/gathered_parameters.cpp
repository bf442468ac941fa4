#include "train/sharding/gathered_parameters.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

std::vector<std::int64_t> unit_sizes(const RankLayout& layout) {
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < layout.units(); ++unit) sizes.push_back(layout.unit_elements(unit));
  return sizes;
}

GatherSchedule training_schedule(const RankLayout& layout, const GatherOptions& options) {
  return GatherSchedule(unit_sizes(layout),
                        training_events(layout.units(), options.tied, layout.first_backward_unit()),
                        options.limits);
}

GatherSchedule forward_schedule(const RankLayout& layout, const GatherOptions& options) {
  return GatherSchedule(unit_sizes(layout), forward_events(layout.units(), options.tied),
                        options.limits);
}

bool is_resident(const RankLayout& layout, const GatherOptions& options) {
  return !options.from_host && options.kept == options.compute &&
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

GatherBuffers GatherBuffers::plan(const RankLayout& layout, const GatherOptions& options) {
  GatherBuffers buffers;
  if (options.compute == DType::kBF16) buffers.vector_bytes = 4 * total_vector_elements(layout);
  if (is_resident(layout, options)) return buffers;
  const std::int64_t elements = std::max(training_schedule(layout, options).arena_elements(),
                                         forward_schedule(layout, options).arena_elements());
  buffers.arena_bytes = elements * static_cast<std::int64_t>(dtype_size(options.compute));
  return buffers;
}

GatheredParameters::GatheredParameters(const RankLayout& layout, const GatherOptions& options,
                                       const MeshCommunicators& communicators,
                                       CommunicationQueue& queue, ShardOperations& operations,
                                       std::span<std::byte> parameters, WorkingMemory& memory)
    : layout_(layout),
      options_(options),
      communicators_(communicators),
      queue_(queue),
      operations_(operations),
      parameters_(parameters),
      training_(training_schedule(layout, options)),
      forward_(forward_schedule(layout, options)),
      tickets_(index(layout.units()), 0) {
  TROUPE_CHECK(options.compute == options.kept || options.kept == DType::kF32);
  TROUPE_CHECK(options.compute == options.kept || !options.from_host);
  TROUPE_CHECK(parameters.size() ==
               index(layout.elements(Region::kParameters)) * dtype_size(options.kept));
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

bool GatheredParameters::resident() const { return is_resident(layout_, options_); }

bool GatheredParameters::refresh_communicates() const {
  return !resident() && layout_.sharded(Region::kParameters) && communicators_.shard();
}

bool GatheredParameters::publish_communicates() const {
  return !layout_.sharded(Region::kParameters) && layout_.sharded(Region::kOptimizer) &&
         communicators_.shard();
}

const std::byte* GatheredParameters::resident_at(int unit) const {
  return parameters_.data() +
         index(layout_.offset(Region::kParameters, unit, 0)) * dtype_size(options_.kept);
}

std::span<std::byte> GatheredParameters::arena_at(std::int64_t offset, int unit) {
  const std::size_t size = dtype_size(options_.compute);
  return arena_.subspan(index(offset) * size, index(layout_.unit_elements(unit)) * size);
}

std::span<float> GatheredParameters::vectors_of(int unit) {
  return vectors_.subspan(vector_offsets_[index(unit)],
                          index(layout_.layout().units()[index(unit)].vector_elements));
}

Status GatheredParameters::expand(int unit, const std::byte* parameters) {
  if (options_.compute != DType::kBF16) return {};
  return operations_.expand(
      layout_.layout(), unit,
      {reinterpret_cast<const std::uint16_t*>(parameters), index(layout_.unit_elements(unit))},
      vectors_of(unit));
}

Status GatheredParameters::materialise(int unit, std::span<std::byte> target) {
  if (target.empty()) return {};
  const bool sharded = layout_.sharded(Region::kParameters);
  const ElementRange own =
      sharded ? layout_.owned(unit) : ElementRange{0, layout_.unit_elements(unit)};
  const std::size_t from_size = dtype_size(options_.kept), to_size = dtype_size(options_.compute);
  if (own.size() > 0) {
    const auto from =
        parameters_.subspan(index(layout_.offset(Region::kParameters, unit, own.begin)) * from_size,
                            index(own.size()) * from_size);
    const auto to = target.subspan(index(own.begin) * to_size, index(own.size()) * to_size);
    TROUPE_RETURN_IF_ERROR(
        options_.kept == options_.compute
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

CommunicationQueue::Ticket GatheredParameters::submit_gather(int unit, std::int64_t offset) {
  return queue_.submit([this, unit, offset] { return materialise(unit, arena_at(offset, unit)); });
}

void GatheredParameters::refresh() {
  if (!resident()) {
    for (const int unit : training_.persistent())
      tickets_[index(unit)] = submit_gather(unit, training_.offset_at(0, unit));
    return;
  }
  if (options_.compute != DType::kBF16) return;
  for (int unit = 0; unit < layout_.units(); ++unit)
    if (layout_.unit_elements(unit) > 0)
      queue_.submit([this, unit] { return expand(unit, resident_at(unit)); });
}

void GatheredParameters::publish() {
  if (!publish_communicates()) return;
  // Collectives are over memory of the device: sharding_setup.h refuses this.
  TROUPE_CHECK(!options_.from_host);
  for (int unit = 0; unit < layout_.units(); ++unit) {
    if (layout_.unit_elements(unit) == 0) continue;
    const std::size_t size = dtype_size(options_.kept);
    const auto whole =
        parameters_.subspan(index(layout_.offset(Region::kParameters, unit, 0)) * size,
                            index(layout_.unit_elements(unit)) * size);
    queue_.submit([this, unit, whole] {
      return all_gather_units(*communicators_.shard(), whole, options_.kept, layout_.owned(unit),
                              layout_.owned_counts(unit));
    });
  }
}

void GatheredParameters::begin_pass(GatherPass pass) {
  pass_ = pass;
  at_ = 0;
}

Status GatheredParameters::enter(const UnitEvent& event) {
  if (resident()) return {};
  TROUPE_CHECK(at_ < schedule().steps().size(), "unit {} beyond the schedule", event.unit);
  const GatherStep& step = schedule().steps()[at_];
  TROUPE_CHECK(step.event == event, "unit {} is used where unit {} was expected", event.unit,
               step.event.unit);
  for (const int unit : step.gathers)
    tickets_[index(unit)] = submit_gather(unit, schedule().offset_at(at_, unit));
  return event.acquire ? queue_.wait(tickets_[index(event.unit)]) : Status();
}

UnitBuffer GatheredParameters::acquired(int unit) {
  UnitBuffer buffer;
  buffer.dtype = options_.compute;
  buffer.data =
      resident() ? resident_at(unit) : arena_at(schedule().offset_at(at_++, unit), unit).data();
  if (options_.compute == DType::kBF16) buffer.vectors = vectors_of(unit).data();
  return buffer;
}

void GatheredParameters::release(const UnitEvent& event) {
  if (resident()) return;
  // A pass that failed releases what it holds, in whatever order.
  if (at_ >= schedule().steps().size() || schedule().steps()[at_].event != event) return;
  ++at_;
  // An evaluation is one forward pass after the other.
  if (pass_ == GatherPass::kForwardOnly && at_ == schedule().steps().size()) at_ = 0;
}

}  // namespace troupe::train
