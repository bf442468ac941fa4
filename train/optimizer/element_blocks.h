#pragma once
// A chunk as short stretches of fp32 numbers, whatever the state is kept in: an optimizer is
// written as one loop over them, and results are rounded once where they are stored. Private to
// this folder.

#include <array>
#include <cstdint>
#include <optional>

#include "train/optimizer/optimizer.h"
#include "train/optimizer/random_rounding.h"

namespace troupe::train {

// Elements [0, count) of a stretch; `at` is the first one's place in the chunk.
struct ElementBlock {
  std::int64_t at = 0, count = 0;
  float* parameters = nullptr;
  const float* gradients = nullptr;  // scaled
  std::array<float*, kOptimizerSlotsMax> slots{};
};

class ElementBlocks {
 public:
  static constexpr std::int64_t kElements = RoundingWords::kElements;
  static_assert(kElements == kUpdateBlockElements);

  // `state_slots`: so many of the chunk's slots, the first ones, have an element of the state's
  // type for every one of the chunk's. Chunks begin at even positions.
  ElementBlocks(const UpdateChunk& chunk, float gradient_scale,
                std::optional<std::uint64_t> rounding_key, std::size_t state_slots);

  template <typename Update>
  void for_each(Update&& update) {
    const auto size = static_cast<std::int64_t>(chunk_.gradients.size());
    for (std::int64_t at = 0; at < size; at += kElements) {
      update(load(at, size - at < kElements ? size - at : kElements));
      store();
    }
  }

 private:
  const ElementBlock& load(std::int64_t at, std::int64_t count);
  void store();

  using Values = std::array<float, static_cast<std::size_t>(kElements)>;
  const UpdateChunk& chunk_;
  const float gradient_scale_;
  const std::optional<std::uint64_t> key_;
  const std::size_t state_slots_;
  ElementBlock block_;
  Values gradients_;
  std::array<Values, 1 + kOptimizerSlotsMax> values_;  // of a state in bf16
};

// What the parameters of a group have in common in a step.
struct GroupRate {
  float learning_rate = 0;
  float keep = 1;   // what a parameter is multiplied with by decoupled weight decay
  float decay = 0;  // the weight decay

  static std::vector<GroupRate> of(const OptimizerStep& step, double weight_decay,
                                   std::span<const ParameterGroup> groups);
};

}  // namespace troupe::train
