#include "train/sharding/gradient_reducer.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {
namespace {

using collective::Bfloat16;
static_assert(sizeof(Bfloat16) == sizeof(std::uint16_t));

// A shard group of one member holds everything, too.
bool holds_whole_gradients(const RankLayout& layout) {
  return !layout.sharded(Region::kGradients) || layout.mesh().dp_shard == 1;
}

// Elements of this rank's parts of all units, and where each begins.
std::int64_t reduced_elements(const RankLayout& layout, std::vector<std::int64_t>* offsets) {
  std::int64_t sum = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (offsets) offsets->push_back(sum);
    sum += layout.reduced(unit).size();
  }
  return sum;
}

std::span<Bfloat16> as_bfloat16(std::span<std::uint16_t> values) {
  return {reinterpret_cast<Bfloat16*>(values.data()), values.size()};
}

// Whether sums of a shard group are formed here, of parts in bf16.
bool sums_parts(const RankLayout& layout, const ReductionOptions& options) {
  const Mesh& mesh = layout.mesh();
  return options.order != ReductionOrder::kAcrossWorldSizes && options.reduce == DType::kBF16 &&
         mesh.dp_shard > 1 && mesh.dp_replicate > 1;
}

}  // namespace

ReductionBuffers ReductionBuffers::plan(const RankLayout& layout, const ReductionOptions& options) {
  ReductionBuffers buffers;
  const bool across = options.order == ReductionOrder::kAcrossWorldSizes;
  const bool narrow = options.reduce == DType::kBF16 && layout.mesh().size() > 1;
  const bool whole = holds_whole_gradients(layout);
  const bool in_place_always =
      whole && !across && (options.order == ReductionOrder::kOff || options.micro_batches == 1);
  std::int64_t largest = 0, largest_other = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    largest = std::max(largest, layout.unit_elements(unit));
    if (unit > 0 || !options.tied)
      largest_other = std::max(largest_other, layout.unit_elements(unit));
  }
  if (!in_place_always) {
    buffers.first_unit = options.tied ? layout.unit_elements(0) : 0;
    buffers.other_units = largest_other;
    buffers.other_count = options.overlaps ? 2 : 1;
  }
  if (narrow) buffers.narrow = largest;
  const Mesh& mesh = layout.mesh();
  std::int64_t from_group = 0, from_all = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    from_group = std::max(from_group, layout.owned(unit).size() * mesh.dp_shard);
    from_all = std::max(from_all, layout.reduced(unit).size() * mesh.size());
  }
  if (!across) {
    if (sums_parts(layout, options)) buffers.received = from_group;
    return buffers;
  }
  if (mesh.size() > 1) (narrow ? buffers.received : buffers.exchange) = from_all;
  const int depth = GradientTree(options.micro_batches * layout.mesh().size()).depth();
  // The lowest level is the region itself, the newest leaf is added from where it arrived.
  buffers.stack = std::max(0, depth - 2) * reduced_elements(layout, nullptr);
  return buffers;
}

Status GradientReducer::check(const RankLayout& layout, const ReductionOptions& options,
                              const ShardOperations& operations) {
  const int members = layout.mesh().dp_shard;
  if (!sums_parts(layout, options) || members <= operations.summed_parts_max()) return {};
  return error(Code::kUnsupported,
               "gradients are reduced in bf16 over replicated shard groups of {} ranks, and this "
               "device sums at most {} parts: reduce in fp32, or make the shard groups smaller "
               "(troupe.mesh)",
               members, operations.summed_parts_max());
}

GradientReducer::GradientReducer(const RankLayout& layout, const ReductionOptions& options,
                                 const MeshCommunicators& communicators, CommunicationQueue& queue,
                                 ShardOperations& operations, std::span<float> gradients,
                                 WorkingMemory& memory)
    : layout_(layout),
      options_(options),
      communicators_(communicators),
      queue_(queue),
      operations_(operations),
      gradients_(gradients),
      world_size_(layout.mesh().size()),
      begun_(index(layout.units()), false),
      scratch_in_use_(index(layout.units()), 0),
      heights_(index(layout.units()), 0) {
  TROUPE_CHECK(static_cast<std::int64_t>(gradients.size()) == layout.elements(Region::kGradients));
  TROUPE_CHECK(options.reduce == DType::kF32 || options.reduce == DType::kBF16);
  const ReductionBuffers buffers = ReductionBuffers::plan(layout, options);
  first_scratch_.values = memory.take_sent_elements<float>(buffers.first_unit);
  other_scratch_.resize(index(buffers.other_count));
  for (Scratch& scratch : other_scratch_)
    scratch.values = memory.take_sent_elements<float>(buffers.other_units);
  narrow_ = memory.take_sent_elements<std::uint16_t>(buffers.narrow);
  received_ = memory.take_own_elements<std::uint16_t>(buffers.received);
  exchange_ = memory.take_own_elements<float>(buffers.exchange);
  stack_ = memory.take_own_elements<float>(buffers.stack);
  level_elements_ = reduced_elements(layout, &stack_offsets_);
}

void GradientReducer::begin_step(std::int64_t leaves) {
  leaves_ = leaves;
  micro_batches_ = (leaves + world_size_ - 1) / world_size_;
  TROUPE_CHECK(micro_batches_ <= options_.micro_batches, "{} micro-batches where {} were announced",
               micro_batches_, options_.micro_batches);
  if (options_.order == ReductionOrder::kAcrossWorldSizes &&
      (!tree_ || tree_->leaves() != leaves)) {
    tree_.emplace(leaves);
  }
  std::fill(heights_.begin(), heights_.end(), 0);
}

std::int64_t GradientReducer::number_in_step(std::int64_t micro_batch, int data_rank) const {
  const std::int64_t position = micro_batch * world_size_ + data_rank;
  if (position >= leaves_ || !tree_) return position;
  return tree_->leaf_at(position);
}

void GradientReducer::begin_micro_batch(std::int64_t micro_batch) {
  micro_batch_ = micro_batch;
  std::fill(begun_.begin(), begun_.end(), false);
}

bool GradientReducer::lands_in_place() const {
  if (!holds_whole_gradients(layout_)) return false;
  if (options_.order == ReductionOrder::kAcrossWorldSizes) return false;
  return first() || options_.order == ReductionOrder::kOff;
}

GradientReducer::Scratch& GradientReducer::scratch_of(int unit) {
  if (unit == 0 && options_.tied) return first_scratch_;
  return other_scratch_[index(scratch_in_use_[index(unit)])];
}

std::span<float> GradientReducer::region(int unit, ElementRange range) const {
  if (range.size() == 0) return {};
  return gradients_.subspan(index(layout_.offset(Region::kGradients, unit, range.begin)),
                            index(range.size()));
}

Result<UnitGradient> GradientReducer::local(int unit) {
  const ElementRange whole{0, layout_.unit_elements(unit)};
  const bool in_place = lands_in_place();
  const bool begins = !begun_[index(unit)];
  begun_[index(unit)] = true;
  if (begins && !in_place) {
    scratch_in_use_[index(unit)] = static_cast<int>(next_scratch_);
    if (unit != 0 || !options_.tied) next_scratch_ = (next_scratch_ + 1) % other_scratch_.size();
    Scratch& scratch = scratch_of(unit);
    TROUPE_RETURN_IF_ERROR(queue_.wait(scratch.busy));
  }
  const std::span<float> buffer =
      in_place ? region(unit, whole) : scratch_of(unit).values.first(index(whole.end));
  // Without determinism a whole gradient goes on growing over the micro-batches.
  return UnitGradient{buffer, first() || !in_place};
}

Status GradientReducer::reduce(int unit) {
  TROUPE_CHECK(begun_[index(unit)], "unit {} is reduced, but nobody put a gradient there", unit);
  const std::span<float> buffer = TROUPE_TRY(local(unit)).values;
  const bool in_place = lands_in_place(), is_first = first(), is_last = last();
  const bool grows = options_.order == ReductionOrder::kOff && in_place;
  if (grows && !is_last) return {};
  const auto ticket = queue_.submit([=, this, micro_batch = micro_batch_] {
    if (options_.order == ReductionOrder::kAcrossWorldSizes) {
      TROUPE_RETURN_IF_ERROR(combine_leaves(unit, buffer, micro_batch));
      return is_last ? share_with_replicas(unit) : Status();
    }
    return sum_over_ranks(unit, buffer, in_place, is_first || grows, is_last);
  });
  if (!in_place) scratch_of(unit).busy = ticket;
  return {};
}

Status GradientReducer::sum_over_ranks(int unit, std::span<float> local, bool in_place, bool first,
                                       bool last) {
  const ElementRange reduced = layout_.reduced(unit);
  const std::span<float> stored = region(unit, reduced);
  const std::span<const float> sum = local.subspan(index(reduced.begin), index(reduced.size()));
  if (!narrow_.empty()) {
    TROUPE_RETURN_IF_ERROR(reduce_scatter_narrow(unit, local));
  } else if (in_place && first && last && communicators_.replicate() && !communicators_.shard()) {
    // Everybody wants everything at once.
    return communicators_.replicate()->all_reduce(local);
  } else {
    TROUPE_RETURN_IF_ERROR(reduce_scatter(unit, local));
  }
  if (!in_place && !stored.empty()) {
    TROUPE_RETURN_IF_ERROR(
        first ? operations_.copy(std::as_bytes(sum), std::as_writable_bytes(stored))
              : operations_.add(stored, sum));
  }
  return last ? share_with_replicas(unit) : Status();
}

Status GradientReducer::reduce_scatter(int unit, std::span<float> local) {
  const ElementRange own = layout_.owned(unit);
  const auto owned = local.subspan(index(own.begin), index(own.size()));
  if (communicators_.shard()) {
    TROUPE_RETURN_IF_ERROR(communicators_.shard()->reduce_scatter(
        std::span<const float>(local), owned, layout_.owned_counts(unit)));
  }
  if (communicators_.replicate()) {
    const ElementRange reduced = layout_.reduced(unit);
    TROUPE_RETURN_IF_ERROR(communicators_.replicate()->reduce_scatter(
        std::span<const float>(owned), local.subspan(index(reduced.begin), index(reduced.size())),
        layout_.reduced_counts(unit)));
  }
  return {};
}

// The gradient as it travels.
Result<std::span<Bfloat16>> GradientReducer::narrowed(std::span<const float> local) {
  const std::span<std::uint16_t> narrow = narrow_.first(local.size());
  TROUPE_RETURN_IF_ERROR(operations_.narrow(local, narrow));
  return as_bfloat16(narrow);
}

Status GradientReducer::reduce_scatter_narrow(int unit, std::span<float> local) {
  if (communicators_.shard() && communicators_.replicate()) return reduce_group_narrow(unit, local);
  const std::span<Bfloat16> all = TROUPE_TRY(narrowed(local));
  const ElementRange reduced = layout_.reduced(unit);
  const auto sum = all.subspan(index(reduced.begin), index(reduced.size()));
  if (communicators_.shard()) {
    TROUPE_RETURN_IF_ERROR(communicators_.shard()->reduce_scatter(std::span<const Bfloat16>(all),
                                                                  sum, layout_.owned_counts(unit)));
  } else if (communicators_.replicate()) {
    TROUPE_RETURN_IF_ERROR(communicators_.replicate()->reduce_scatter(
        std::span<const Bfloat16>(all), sum, layout_.reduced_counts(unit)));
  }
  return operations_.widen(narrow_.subspan(index(reduced.begin), sum.size()),
                           local.subspan(index(reduced.begin), sum.size()));
}

// Rounded where it leaves a rank and once it is complete, not between group and replicas: a
// communicator would round the group's sum.
Status GradientReducer::reduce_group_narrow(int unit, std::span<float> local) {
  const ElementRange own = layout_.owned(unit), reduced = layout_.reduced(unit);
  const int members = layout_.mesh().dp_shard;
  const auto received = received_.first(index(own.size() * members));
  const std::span<Bfloat16> sent = TROUPE_TRY(narrowed(local));
  TROUPE_RETURN_IF_ERROR(communicators_.shard()->all_to_all(
      std::span<const Bfloat16>(sent), as_bfloat16(received), layout_.owned_counts(unit)));
  const auto owned = local.subspan(index(own.begin), index(own.size()));
  TROUPE_RETURN_IF_ERROR(operations_.sum_parts(received, members, owned));
  const auto sum = local.subspan(index(reduced.begin), index(reduced.size()));
  TROUPE_RETURN_IF_ERROR(communicators_.replicate()->reduce_scatter(
      std::span<const float>(owned), sum, layout_.reduced_counts(unit)));
  return operations_.round(sum);
}

Status GradientReducer::share_with_replicas(int unit) {
  if (!communicators_.replicate()) return {};
  return communicators_.replicate()->all_gather(
      std::span<const float>(region(unit, layout_.reduced(unit))),
      region(unit, layout_.owned(unit)), layout_.reduced_counts(unit));
}

// --- the tree over all micro-batches

Status GradientReducer::exchange_leaves(int unit, std::span<const float> local) {
  collective::Communicator& all = *communicators_.by_data_rank();
  const std::size_t size = index(layout_.reduced(unit).size() * world_size_);
  const std::vector<std::size_t> counts = layout_.reduced_counts_by_data_rank(unit);
  if (narrow_.empty()) return all.all_to_all(local, exchange_.first(size), counts);
  const std::span<Bfloat16> sent = TROUPE_TRY(narrowed(local));
  return all.all_to_all(std::span<const Bfloat16>(sent), as_bfloat16(received_.first(size)),
                        counts);
}

Status GradientReducer::combine_leaves(int unit, std::span<float> local, std::int64_t micro_batch) {
  const auto part = index(layout_.reduced(unit).size());
  const bool alone = !communicators_.by_data_rank();
  const bool narrow = options_.reduce == DType::kBF16;
  if (!alone) {
    TROUPE_RETURN_IF_ERROR(exchange_leaves(unit, local));
  } else if (narrow) {
    TROUPE_RETURN_IF_ERROR(operations_.round(local));
  }
  for (int sender = 0; sender < world_size_; ++sender) {
    const std::int64_t position = micro_batch * world_size_ + sender;
    if (position >= tree_->leaves()) break;
    const std::size_t begin = index(sender) * part;
    std::span<const float> leaf = local;
    if (!alone && narrow) {
      // The local gradient has been sent: its place is free.
      TROUPE_RETURN_IF_ERROR(operations_.widen(received_.subspan(begin, part), local.first(part)));
      leaf = local.first(part);
    } else if (!alone) {
      leaf = exchange_.subspan(begin, part);
    }
    TROUPE_RETURN_IF_ERROR(push_leaf(unit, leaf, position));
  }
  return {};
}

std::span<float> GradientReducer::level(int unit, int level) {
  const ElementRange reduced = layout_.reduced(unit);
  if (level == 0) return region(unit, reduced);
  return stack_.subspan(index((level - 1) * level_elements_ + stack_offsets_[index(unit)]),
                        index(reduced.size()));
}

Status GradientReducer::push_leaf(int unit, std::span<const float> leaf, std::int64_t position) {
  int& height = heights_[index(unit)];
  int merges = tree_->merges_at(position);
  if (leaf.empty()) return {};
  if (merges == 0)
    return operations_.copy(std::as_bytes(leaf), std::as_writable_bytes(level(unit, height++)));
  TROUPE_RETURN_IF_ERROR(operations_.add(level(unit, height - 1), leaf));
  for (--merges; merges > 0; --merges, --height)
    TROUPE_RETURN_IF_ERROR(operations_.add(level(unit, height - 2), level(unit, height - 1)));
  return {};
}

}  // namespace troupe::train
