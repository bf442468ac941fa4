#include "train/optimizer/element_blocks.h"

#include "runtime/base/check.h"
#include "train/tensor/convert.h"

namespace troupe::train {

ElementBlocks::ElementBlocks(const UpdateChunk& chunk, float gradient_scale,
                             std::optional<std::uint64_t> rounding_key, std::size_t state_slots)
    : chunk_(chunk),
      gradient_scale_(gradient_scale),
      key_(rounding_key),
      state_slots_(state_slots) {
  TROUPE_CHECK(state_slots <= chunk.slots.size() && chunk.begin % 2 == 0);
  TROUPE_CHECK(chunk.state == DType::kBF16 || !key_, "a state in fp32 is not rounded");
}

const ElementBlock& ElementBlocks::load(std::int64_t at, std::int64_t count) {
  block_.at = at;
  block_.count = count;
  const float* const from = chunk_.gradients.data() + at;
  for (std::int64_t i = 0; i < count; ++i)
    gradients_[static_cast<std::size_t>(i)] = from[i] * gradient_scale_;
  block_.gradients = gradients_.data();
  for (std::size_t buffer = 0; buffer <= state_slots_; ++buffer) {
    const std::span<std::byte> bytes = buffer == 0 ? chunk_.parameters : chunk_.slots[buffer - 1];
    float*& values = buffer == 0 ? block_.parameters : block_.slots[buffer - 1];
    if (chunk_.state != DType::kBF16) {
      values = elements_of<float>(bytes).data() + at;
      continue;
    }
    values = values_[buffer].data();
    float_from_bf16(elements_of<std::uint16_t>(bytes).data() + at, values, count);
  }
  return block_;
}

void ElementBlocks::store() {
  if (chunk_.state != DType::kBF16) return;
  RoundingWords words;
  if (key_) fill_rounding_words(*key_, chunk_.begin + block_.at, words);
  for (std::size_t buffer = 0; buffer <= state_slots_; ++buffer) {
    const std::span<std::byte> bytes = buffer == 0 ? chunk_.parameters : chunk_.slots[buffer - 1];
    std::uint16_t* const out = elements_of<std::uint16_t>(bytes).data() + block_.at;
    const float* const values = values_[buffer].data();
    for (std::int64_t i = 0; i < block_.count; ++i) {
      if (!key_) {
        out[i] = float_to_bf16(values[i]);
        continue;
      }
      const std::uint32_t word = buffer % 4 < 2 ? words.low[i] : words.high[i];
      out[i] = random_bf16(values[i], (buffer % 2 == 0 ? word : word >> 16) & 0xffffu);
    }
  }
}

std::vector<GroupRate> GroupRate::of(const OptimizerStep& step, double weight_decay,
                                     std::span<const ParameterGroup> groups) {
  std::vector<GroupRate> rates;
  for (const ParameterGroup& group : groups) {
    const double rate = step.learning_rate * group.learning_rate_factor;
    const double decay = group.decays ? weight_decay : 0.0;
    rates.push_back({.learning_rate = static_cast<float>(rate),
                     .keep = static_cast<float>(1.0 - rate * decay),
                     .decay = static_cast<float>(decay)});
  }
  return rates;
}

}  // namespace troupe::train
