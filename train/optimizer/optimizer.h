#pragma once
// What an optimizer is to the rest of training: the buffers that it keeps beside the parameters,
// and the update of a chunk.
//
// An update is a pure function of a chunk's parameters, gradients and slots, of their flat
// positions and of the step: an element gets the same bits wherever a shard begins, and an update
// that was cut off is done again from what the chunk held before. The granule of an update is a
// chunk of kUpdateElements elements; chunks know nothing of the tensors that they are cut from.
//
// An optimizer that needs more of a tensor than an element says so by its rule (update_rule.h): a
// block of it, or all of it, is then the same rank's. The update of a whole tensor has two parts.
// direction() looks at all of its gradient, writes the slots that are kept by tensor, and gives the
// chunks a number for each element. The chunks are updated after that, under the log. Slots by
// tensor are two, for even and for odd numbers of updates: one is read while the other is written,
// so that direction() may be cut off anywhere and called again, without a log of its own.
//
// Sharding, transactions, checkpoints, offload and plans go through the slots by name and know
// nothing else of an optimizer.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/optimizer/update_range.h"
#include "train/tensor/dtype.h"
#include "train/tensor/parameter_groups.h"
#include "train/tensor/update_rule.h"

namespace troupe::train {

// What is the same for all elements of a step, whichever optimizer takes it.
struct OptimizerStep {
  double learning_rate = 0.0;
  std::int64_t updates = 1;     // of the slots, this one included
  float gradient_scale = 1.0f;  // the clip coefficient: multiplies every gradient
  // Of states in bf16 only: results are rounded randomly by (key, flat position) instead of to
  // nearest; see random_rounding.h.
  std::optional<std::uint64_t> rounding_key = std::nullopt;
};

// No optimizer has more slots.
inline constexpr std::size_t kOptimizerSlotsMax = 4;

// The index, among two slots by tensor, of the one that update number `updates` writes; the other
// one is read.
constexpr std::size_t written_slot(std::int64_t updates) {
  return static_cast<std::size_t>(updates % 2);
}

// What a slot holds of the parameters of one treatment.
enum class SlotStorage : std::uint8_t {
  kState,  // an element of the state's type for each of a parameter's
  kNothing,
  // The same as kState of the one treatment that takes part in an update (is_active()), with all
  // of its parameters in one unit: the others have the same memory when it is their turn. What it
  // holds counts as long as the turn goes on.
  kInTurn,
  kBytes,   // a byte for each element
  kScales,  // an fp32 number for each block of kUpdateBlockElements
  kTensor,  // fp32 numbers for the tensor as a whole: Optimizer::tensor_shape()
};

// Bytes of so many elements that lie together: whole blocks, but for kState and kBytes. Of kTensor
// chunks hold nothing.
constexpr std::size_t storage_bytes(SlotStorage storage, std::int64_t elements,
                                    std::size_t state_bytes) {
  const auto count = static_cast<std::size_t>(elements);
  switch (storage) {
    case SlotStorage::kState:
    case SlotStorage::kInTurn:
      return count * state_bytes;
    case SlotStorage::kBytes:
      return count;
    case SlotStorage::kScales:
      return count / static_cast<std::size_t>(kUpdateBlockElements) * sizeof(float);
    case SlotStorage::kNothing:
    case SlotStorage::kTensor:
      break;
  }
  return 0;
}

// What is updated at once. All parts have the same number of elements.
struct UpdateChunk {
  std::int64_t begin = 0;  // flat position of the first element
  DType state = DType::kF32;
  std::span<std::byte> parameters;  // of `state`
  std::span<const float> gradients;
  // In the order of Optimizer::slots(), in their storage.
  std::span<const std::span<std::byte>> slots;
  // Of tensors that are updated as wholes: what PreparedUpdate::direction() gave. Empty where there
  // are none.
  std::span<const float> directions = {};
};

// A tensor that is updated as a whole.
struct TensorUpdate {
  std::span<const std::int64_t> shape;
  // Its place, from 1 on, when all tensors of other treatments are counted first.
  std::int64_t number = 1;
  std::size_t group = 0;
  std::span<const float> gradients;
  // In the order of Optimizer::slots(); of those alone that are kept by tensor, else empty.
  std::span<const std::span<float>> slots;
  std::span<float> direction;  // zeros at first; what the chunks get as `directions`
};

// A step's update of all chunks, from any thread.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  // All of the chunk is of one group, given by its index.
  virtual void update(std::size_t group, const UpdateChunk& chunk) const = 0;
  // Of a tensor whose rule is UpdateUnit::kTensor, before its chunks.
  virtual void direction(const TensorUpdate& tensor) const;
};

// Immutable; may be used from any thread.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // For people: "AdamW".
  virtual std::string_view name() const = 0;
  // The names of the buffers that it keeps, zero before the first update. Checkpoints have them as
  // "SLOT.PARAMETER", so that a name has no dot. In static memory.
  virtual std::span<const std::string_view> slots() const = 0;
  // What it asks of the layout; null: nothing, and all parameters have treatment 0. Lives as long
  // as the optimizer.
  virtual const UpdateRule* rule() const { return nullptr; }
  // By slot, and by the treatment that the rule gave a tensor.
  virtual SlotStorage storage(std::size_t, std::uint16_t) const { return SlotStorage::kState; }
  // Of a slot that is kept by tensor.
  virtual std::vector<std::int64_t> tensor_shape(std::size_t, std::uint16_t,
                                                 std::span<const std::int64_t>) const {
    return {};
  }
  // Whether parameters of a treatment take part in update number `updates`: else their gradients
  // count for nothing, not in the norm either.
  virtual bool is_active(std::uint16_t, std::int64_t) const { return true; }
  // kUnsupported, by name, where it cannot update such a tensor.
  virtual Status check(std::string_view, std::span<const std::int64_t>) const { return {}; }
  virtual std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const = 0;
};

// Updates a chunk, cut where groups end. `optimizer`: whose storage the slots have; null: that of
// elements in all of them.
void update_chunk(const PreparedUpdate& prepared, const ParameterGroups& groups,
                  const UpdateChunk& chunk, const Optimizer* optimizer = nullptr);

// A chunk's bytes as what they are.
template <typename T>
std::span<T> elements_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace troupe::train
