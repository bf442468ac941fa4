#include "train/trainer/buddy_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// In pieces, each of which is a sign of life.
Status broadcast_pieces(collective::Communicator& group, int root, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += HostAccess::kPieceBytes) {
    const std::size_t size = std::min(HostAccess::kPieceBytes, bytes.size() - at);
    TROUPE_RETURN_IF_ERROR(group.broadcast(bytes.subspan(at, size), root));
  }
  return {};
}

std::span<std::byte> slice(std::span<std::byte> buffer, std::int64_t offset, std::int64_t elements,
                           std::size_t element_bytes) {
  return buffer.subspan(static_cast<std::size_t>(offset) * element_bytes,
                        static_cast<std::size_t>(elements) * element_bytes);
}

}  // namespace

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
      TROUPE_RETURN_IF_ERROR(
          broadcast_pieces(group, root, slice(slot.data, range.slots, range.elements, bytes)));
  }
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

Result<std::unique_ptr<BuddyState>> BuddyState::open(const BuddyTask& task, int owner) {
  // Nothing but the owner's shard, whatever the run's strategy keeps whole.
  RankLayout layout(task.own.layout(), Strategy::kZero3, task.own.mesh(), owner);
  StateOptions options = task.state;
  options.kept_of = owner;
  auto state = TROUPE_TRY(TrainingState::open(layout, options, task.memory, task.label));
  std::unique_ptr<BuddyState> made(new BuddyState(std::move(layout), std::move(state)));
  const StateBuffers buffers = made->state_.kept();
  made->part_ = UpdatedPart::of(made->layout_, buffers);
  made->updates_ =
      make_cpu_optimizer_device(OptimizerShard::of(made->layout_, buffers, task.optimizer),
                                task.parallel_for, &made->state_.update_log());
  return made;
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
