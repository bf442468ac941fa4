#include "train/trainer/buddy_state.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "train/trainer/state_io.h"

namespace troupe::train {
namespace {

std::span<std::byte> slice(std::span<std::byte> buffer, std::int64_t offset, std::int64_t elements,
                           std::size_t element_bytes) {
  return buffer.subspan(static_cast<std::size_t>(offset) * element_bytes,
                        static_cast<std::size_t>(elements) * element_bytes);
}

std::uint64_t tile_sum(const UpdatedPart& part, const UpdateRange& tile, std::int64_t updates) {
  TileSum sum;
  for (std::int64_t at = 0; at < kTileElements; at += kUpdateElements)
    add_chunk(part.buffers, part_of(tile, at, kUpdateElements), updates, sum);
  add_tensors(part.buffers, tile, updates, sum);
  return sum.value();
}

// The first of those that threads have found.
class FirstTile {
 public:
  void note(std::int64_t tile) {
    std::int64_t first = tile_.load();
    while ((first < 0 || tile < first) && !tile_.compare_exchange_weak(first, tile)) {
    }
  }
  bool found() const { return tile() >= 0; }
  std::int64_t tile() const { return tile_.load(); }

 private:
  std::atomic<std::int64_t> tile_{-1};
};

}  // namespace

std::vector<std::uint64_t> UpdatedPart::tile_sums(std::int64_t updates,
                                                  const ParallelFor& parallel_for) const {
  const std::vector<UpdateRange> cut = tiles();
  std::vector<std::uint64_t> sums(cut.size());
  parallel_for(std::ssize(cut), [&](std::int64_t tile, int) {
    const auto at = static_cast<std::size_t>(tile);
    sums[at] = tile_sum(*this, cut[at], updates);
  });
  return sums;
}

UpdatedPart UpdatedPart::of(const RankLayout& layout, const StateBuffers& buffers) {
  return {.buffers = buffers,
          .ranges = OptimizerShard::ranges_of(layout, buffers.parameters_region)};
}

Status broadcast_state(collective::Communicator& group, int root, const UpdatedPart& part) {
  const std::size_t bytes = dtype_size(part.buffers.state);
  for (const UpdateRange& range : part.ranges) {
    TROUPE_RETURN_IF_ERROR(broadcast_pieces(
        group, root, slice(part.buffers.parameters, range.parameters, range.elements, bytes)));
    for (const SlotBuffer& slot : part.buffers.slots)
      if (!slot.place || !slot.place->in_turn())
        TROUPE_RETURN_IF_ERROR(
            broadcast_pieces(group, root, slot.part(range, part.buffers.state, {})));
  }
  for (const SlotBuffer& slot : part.buffers.slots)
    if (slot.place && slot.place->in_turn())
      TROUPE_RETURN_IF_ERROR(broadcast_pieces(group, root, slot.data));
  return {};
}

Status broadcast_gradients(collective::Communicator& group, int root, const UpdatedPart& part) {
  const auto gradients = std::as_writable_bytes(part.buffers.gradients);
  for (const UpdateRange& range : part.ranges) {
    TROUPE_RETURN_IF_ERROR(broadcast_pieces(
        group, root, slice(gradients, range.gradients, range.elements, sizeof(float))));
  }
  return {};
}

BuddyState::BuddyState(RankLayout layout, TrainingState state, const BuddyTask& task)
    : keeper_(task.own.rank()),
      layout_(std::move(layout)),
      state_(std::move(state)),
      part_(UpdatedPart::of(layout_, state_.kept())),
      parallel_for_(task.parallel_for),
      update_(OptimizerShard::of(layout_, part_.buffers, task.optimizer), &state_.update_log(), {}),
      sums_(state_.tile_sums()) {}

Result<std::unique_ptr<BuddyState>> BuddyState::open(const BuddyTask& task, int owner) {
  // Nothing but the owner's shard, whatever the run's strategy keeps whole.
  RankLayout layout(task.own.layout(), Strategy::kZero3, task.own.mesh(), owner);
  StateOptions options = task.state;
  options.kept_of = owner;
  auto state = TROUPE_TRY(TrainingState::open(layout, options, task.memory, task.label));
  return std::unique_ptr<BuddyState>(new BuddyState(std::move(layout), std::move(state), task));
}

BuddyState::Damage BuddyState::update(const OptimizerStep& step, std::int64_t number) {
  const auto prepared = update_.prepare(step);
  update_.restore(number);
  FirstTile damaged;
  update_.for_each_tile(
      *prepared, number, parallel_for_,
      [&](std::int64_t tile, int slot, std::span<const float> directions) {
        const UpdateRange& place = update_.tile(tile);
        // A process before this one has updated all of it.
        if (update_.is_done(number, tile)) {
          const std::uint64_t sum = tile_sum(part_, place, step.updates);
          const auto noted = sums_.last(tile);
          if (noted && !sums_.before(tile, number) && *noted != sum) damaged.note(tile);
          return sums_.note(tile, number, sum);
        }
        const auto noted =
            update_.is_untouched(number, tile) ? sums_.before(tile, number) : std::nullopt;
        TileSum before, after;
        update_.update_tile(*prepared, number, slot, tile, update_.gradients(tile, 1), directions,
                            &before, &after);
        add_tensors(part_.buffers, place, step.updates - 1, before);
        add_tensors(part_.buffers, place, step.updates, after);
        if (noted && *noted != before.value()) damaged.note(tile);
        sums_.note(tile, number, after.value());
      });
  return damaged.found() ? Damage(damage_text(damaged.tile())) : std::nullopt;
}

BuddyState::Damage BuddyState::verify() {
  const RankPosition at = transaction().position();
  if (!at.loaded || at.phase == CommitPhase::kCommitted) return std::nullopt;
  const std::int64_t updates = transaction().record().moment_updates;
  FirstTile damaged;
  parallel_for_(update_.tiles(), [&](std::int64_t tile, int) {
    const auto noted = sums_.last(tile);
    if (noted && *noted != tile_sum(part_, update_.tile(tile), updates)) damaged.note(tile);
  });
  return damaged.found() ? Damage(damage_text(damaged.tile())) : std::nullopt;
}

BuddyState::Damage BuddyState::compare(std::span<const std::uint64_t> sums) {
  TROUPE_CHECK(std::ssize(sums) == sums_.tiles());
  for (std::int64_t tile = 0; tile < sums_.tiles(); ++tile) {
    const auto noted = sums_.last(tile);
    if (!noted || *noted == sums[static_cast<std::size_t>(tile)]) continue;
    return fmt::format(
        "the state of rank {} and the copy of it that rank {} keeps differ after step {}, in {}: "
        "one of their machines computes wrong, or its memory was changed; neither is used",
        owner(), keeper_, transaction().record().step, place_of(tile));
  }
  return std::nullopt;
}

void BuddyState::forget() {
  transaction().unload();
  update_.forget();
  sums_.forget();
}

void BuddyState::written(const CommitRecord& as_of) {
  const std::vector<std::uint64_t> sums = part_.tile_sums(as_of.moment_updates, parallel_for_);
  for (std::size_t tile = 0; tile < sums.size(); ++tile)
    sums_.note(static_cast<std::int64_t>(tile), as_of.step, sums[tile]);
}

std::string BuddyState::damage_text(std::int64_t tile) {
  return fmt::format(
      "memory of rank {}'s machine was changed: its copy of rank {}'s state is not what step {} "
      "wrote there, in {}; it is not used, and made again",
      keeper_, owner(), transaction().record().step, place_of(tile));
}

std::string BuddyState::place_of(std::int64_t tile) const {
  const std::int64_t begin = update_.tile(tile).flat, end = begin + kTileElements;
  std::string tensors;
  for (const ParameterInfo& parameter : layout_.layout().parameters()) {
    const UnitInfo& unit = layout_.layout().units()[static_cast<std::size_t>(parameter.unit)];
    const std::int64_t at = unit.flat_offset + parameter.offset_elements;
    const std::int64_t from = std::max(begin, at), to = std::min(end, at + parameter.elements);
    if (from >= to) continue;
    tensors += fmt::format("{}{} (elements {} to {})", tensors.empty() ? "" : ", ", parameter.name,
                           from - at, to - at - 1);
  }
  return tensors.empty() ? "what lies between tensors" : tensors;
}

Result<BuddyLinks> BuddyLinks::make(collective::Communicator& world, const BuddyPlan& plan) {
  TROUPE_CHECK(!plan.none());
  BuddyLinks links;
  links.plan_ = &plan;
  links.rank_ = world.rank();
  const std::array to{links.rank_, plan.buddy_of(links.rank_)};
  const std::array from{plan.kept_by(links.rank_), links.rank_};
  links.to_buddy_ = TROUPE_TRY(world.subgroup(to, "a rank and its buddy"));
  links.from_owner_ = TROUPE_TRY(world.subgroup(from, "a rank and its buddy"));
  return links;
}

Status BuddyLinks::pass(const Transfer& send, const Transfer& receive,
                        const std::vector<bool>& keepers) const {
  const int owner = plan_->kept_by(rank_);
  const auto receives = [&](int rank) {
    return keepers.empty() || keepers[static_cast<std::size_t>(rank)];
  };
  for (int turn = 0; turn < BuddyPlan::kTurns; ++turn) {
    if (plan_->turn_of(rank_) == turn && receives(plan_->buddy_of(rank_)))
      TROUPE_RETURN_IF_ERROR(send(*to_buddy_));
    if (plan_->turn_of(owner) == turn && receives(rank_))
      TROUPE_RETURN_IF_ERROR(receive(*from_owner_));
  }
  return {};
}

}  // namespace troupe::train
