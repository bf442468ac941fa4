#pragma once
// What an optimizer is to the rest of training: the buffers that it keeps beside the parameters,
// and the update of a chunk.
//
// An update is a pure function of a chunk's parameters, gradients and slots, of their flat
// positions and of the step: an element gets the same bits wherever a shard begins, and an update
// that was cut off is done again from what the chunk held before. The granule of an update is a
// chunk of kUpdateElements elements; chunks know nothing of the tensors that they are cut from.
//
// Sharding, transactions, checkpoints, offload and plans go through the slots by name and know
// nothing else of an optimizer.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "train/optimizer/update_range.h"
#include "train/tensor/dtype.h"
#include "train/tensor/parameter_groups.h"

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

// What is updated at once. All parts have the same number of elements.
struct UpdateChunk {
  std::int64_t begin = 0;  // flat position of the first element
  DType state = DType::kF32;
  std::span<std::byte> parameters;  // of `state`
  std::span<const float> gradients;
  std::span<const std::span<std::byte>> slots;  // of `state`, in the order of Optimizer::slots()
};

// A step's update of all chunks, from any thread.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  // All of the chunk is of one group, given by its index.
  virtual void update(std::size_t group, const UpdateChunk& chunk) const = 0;
};

// Immutable; may be used from any thread.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // For people: "AdamW".
  virtual std::string_view name() const = 0;
  // The names of the buffers that it keeps, each with an element of the state's type for every
  // parameter, zero before the first update. Checkpoints have them as "SLOT.PARAMETER", so that a
  // name has no dot. In static memory.
  virtual std::span<const std::string_view> slots() const = 0;
  virtual std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const = 0;
};

// Updates a chunk, cut where groups end.
void update_chunk(const PreparedUpdate& prepared, const ParameterGroups& groups,
                  const UpdateChunk& chunk);

// A chunk's bytes as what they are.
template <typename T>
std::span<T> elements_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace troupe::train
