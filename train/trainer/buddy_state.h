#pragma once
// What a rank keeps of another's state, and the links on which it comes: see BuddyPlan. On CPUs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "train/sharding/buddy_plan.h"
#include "train/sharding/host_update.h"
#include "train/sharding/optimizer_device.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/tile_sums.h"
#include "train/trainer/host_access.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_state.h"

namespace troupe::train {

// The part of a state that one rank updates: parameters, the optimizer's slots, reduced gradients.
// Whoever holds it, and however, its ranges have the same sizes in the same order.
struct UpdatedPart {
  StateBuffers buffers;
  std::vector<UpdateRange> ranges;

  static UpdatedPart of(const RankLayout& layout, const StateBuffers& buffers);
  std::vector<UpdateRange> tiles() const { return tiles_of(ranges); }
  // Of its parameters and slots after so many updates (CommitRecord::moment_updates), tile by tile
  // in the order of the ranges (TileSums).
  std::vector<std::uint64_t> tile_sums(std::int64_t updates, const ParallelFor& parallel_for) const;
};
// Collective in a group: all members get the root's parameters and slots (broadcast_pieces()).
Status broadcast_state(collective::Communicator& group, int root, const UpdatedPart& part);
// The same with reduced gradients.
Status broadcast_gradients(collective::Communicator& group, int root, const UpdatedPart& part);

// Of what it is made. All of it outlives the state.
struct BuddyTask {
  const RankLayout& own;  // of the rank that keeps it
  StateOptions state;
  const Optimizer& optimizer;
  ParallelFor parallel_for;
  SurvivingMemory& memory;
  std::string label;
};

// Its bytes are verified before each update that changes them, and before they are given to
// anybody: by sums that were noted when they were written. A copy that is damaged is named, and
// counts for nothing until it is written again.
class BuddyState {
 public:
  // Every so many steps owner and buddy compare the sums of their states.
  static constexpr std::int64_t kCompareEvery = 16;

  // Of `owner`'s state: what an earlier process of this rank kept of it, or new memory, in which no
  // step is loaded.
  static Result<std::unique_ptr<BuddyState>> open(const BuddyTask& task, int owner);

  int owner() const { return layout_.rank(); }
  StepTransaction& transaction() { return state_.transaction(); }
  const UpdatedPart& part() const { return part_; }

  // As OptimizerDevice has it. Where a tile is not what the last update wrote, a sentence that says
  // where in the model it lies: then nothing may be done with the state any more but forget() it.
  using Damage = std::optional<std::string>;
  Damage update(const OptimizerStep& step, std::int64_t number);
  // The same of all tiles, without an update. Nothing is looked at where no step is loaded, or
  // while an update is under way, which verifies what it has not changed yet.
  Damage verify();
  // Where it differs from its owner's state, of which `sums` are the tile_sums().
  Damage compare(std::span<const std::uint64_t> sums);
  // Before it is written anew, as StepTransaction::load() wants it.
  void forget();
  // It was written.
  void written(const CommitRecord& as_of);

 private:
  BuddyState(RankLayout layout, TrainingState state, const BuddyTask& task);
  std::string place_of(std::int64_t tile) const;
  std::string damage_text(std::int64_t tile);

  const int keeper_;
  const RankLayout layout_;
  TrainingState state_;
  const UpdatedPart part_;
  const ParallelFor parallel_for_;
  HostUpdate update_;
  TileSums sums_;
};

// A rank's links to its buddy, and to the rank whose buddy it is, in one generation.
class BuddyLinks {
 public:
  // Collective. `plan` is not none() and outlives it.
  static Result<BuddyLinks> make(collective::Communicator& world, const BuddyPlan& plan);

  // What is sent or received, in a group of two whose rank 0 is the owner.
  using Transfer = std::function<Status(collective::Communicator& group)>;
  // Collective: every rank sends to its buddy and receives from whom it is the buddy of. `keepers`,
  // by rank: those that receive at all; empty: all.
  Status pass(const Transfer& send, const Transfer& receive,
              const std::vector<bool>& keepers = {}) const;

 private:
  BuddyLinks() = default;

  const BuddyPlan* plan_ = nullptr;
  int rank_ = -1;
  std::unique_ptr<collective::Communicator> to_buddy_, from_owner_;
};

}  // namespace troupe::train
