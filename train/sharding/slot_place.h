#pragma once
// Where an optimizer's slot lies in a rank's buffer, when it does not hold an element for every
// parameter: bytes, scales of blocks, numbers of whole tensors.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/optimizer/optimizer.h"
#include "train/sharding/rank_layout.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// What a slot holds of a parameter, as checkpoints have it.
struct StoredSlot {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t elements_each = 1;  // of the parameter's, for one of the slot's; 0: it has no share
};

// Updates in all of which what a slot holds counts, where parameters have it in turn
// (SlotStorage::kInTurn): an update's own; or, of a state between two of them, both, since what a
// turn leaves behind is nothing to the next one.
struct SlotUse {
  std::int64_t first = 1, last = 1;

  static SlotUse in(std::int64_t update) { return {update, update}; }
  static SlotUse after(std::int64_t update) { return {update, update + 1}; }
};

// Of one slot of one rank. Immutable; the optimizer outlives it.
class SlotPlace {
 public:
  SlotPlace(const RankLayout& layout, const Optimizer& optimizer, std::size_t slot, DType state);

  std::size_t bytes() const { return bytes_; }
  // Where what belongs to the elements from `begin` on begins, `begin` counted as
  // UpdateRange::slots counts: a multiple of kUpdateBlockElements, or a tensor's first element.
  // What is kept by tensor lies at the tensor's first element.
  std::size_t position(std::int64_t begin) const;
  // Of so many elements of one unit, from there on.
  std::size_t bytes_of(std::int64_t begin, std::int64_t elements) const;
  // It is kept by tensor, so that chunks have no part of it.
  bool by_tensor() const { return by_tensor_; }
  // Parameters have it in turn.
  bool in_turn() const { return !turns_.empty(); }
  // Whether it is theirs that are in the unit of the element `begin`, or of a treatment.
  bool is_used(std::int64_t begin, const SlotUse& use) const;
  bool is_used(std::uint16_t treatment, const SlotUse& use) const;
  // Nothing where the slot holds nothing of the parameter.
  std::optional<StoredSlot> stored(const ParameterInfo& parameter) const;

 private:
  // Of the unit that begins there: what of it has the slot in turn; 0: nothing.
  struct Turn {
    std::int64_t begin = 0;
    std::uint16_t treatment = 0;
  };
  // From `begin` on `block_bytes` for every block of elements, behind `at`; `tensor_bytes` for the
  // tensor that begins there.
  struct Stretch {
    std::int64_t begin = 0;
    std::size_t at = 0, end = 0;
    std::size_t block_bytes = 0, tensor_bytes = 0;
  };

  std::size_t position_in(const Stretch& stretch, std::int64_t begin) const;

  const Optimizer* optimizer_;
  std::size_t slot_;
  DType state_;
  std::vector<Stretch> stretches_;
  std::vector<Turn> turns_;  // where it is in turn: of all units
  std::size_t bytes_ = 0;
  bool by_tensor_ = false;
};

// Bytes of all slots of a rank.
std::int64_t slot_bytes(const RankLayout& layout, const Optimizer& optimizer, DType state);

}  // namespace troupe::train
