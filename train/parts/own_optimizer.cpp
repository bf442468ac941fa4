#include "train/parts/own_optimizer.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::size_t kBlock = RoundingWords::kElements;
using Block = std::array<float, kBlock>;

// The random words of [first, first + count): the pairs that they are made in begin at even
// positions.
struct BlockWords {
  BlockWords(std::uint64_t key, std::int64_t first) : odd(static_cast<std::size_t>(first & 1)) {
    fill_rounding_words(key, first - static_cast<std::int64_t>(odd), words);
  }
  // 16 bits for element i of buffer b: the parameters are 0, slot s is s + 1.
  std::uint32_t of(std::size_t buffer, std::size_t i) const {
    const std::uint32_t word = buffer < 2 ? words.low[i + odd] : words.high[i + odd];
    return (buffer % 2 == 0 ? word : word >> 16) & 0xffffu;
  }
  RoundingWords words;
  std::size_t odd;
};

class Update final : public PreparedUpdate {
 public:
  Update(const ElementwiseOptimizer& optimizer, const OptimizerStep& step,
         std::span<const ParameterGroup> groups)
      : optimizer_(optimizer), gradient_scale_(step.gradient_scale), key_(step.rounding_key) {
    for (const ParameterGroup& group : groups)
      groups_.push_back(
          {.learning_rate = static_cast<float>(step.learning_rate * group.learning_rate_factor),
           .decays = group.decays,
           .updates = step.updates});
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    // The first word of a block of random words may belong to the element before the first one.
    const std::size_t step = key_ ? kBlock - 1 : kBlock;
    for (std::size_t at = 0; at < chunk.gradients.size(); at += step)
      update_block(groups_[group], chunk, at, std::min(step, chunk.gradients.size() - at));
  }

 private:
  void update_block(const ElementwiseStep& step, const UpdateChunk& chunk, std::size_t at,
                    std::size_t count) const {
    Block gradients;
    for (std::size_t i = 0; i < count; ++i)
      gradients[i] = chunk.gradients[at + i] * gradient_scale_;
    const std::size_t slot_count = chunk.slots.size();
    std::array<Block, kOptimizerSlotsMax + 1> values;
    std::array<std::span<float>, kOptimizerSlotsMax> slots;
    const auto bytes_of = [&](std::size_t buffer) {
      return buffer == 0 ? chunk.parameters : chunk.slots[buffer - 1];
    };
    for (std::size_t b = 0; b <= slot_count; ++b) {
      load(bytes_of(b), chunk.state, at, count, values[b]);
      if (b > 0) slots[b - 1] = std::span(values[b]).first(count);
    }
    optimizer_.update_elements(step, std::span(values[0]).first(count),
                               std::span<const float>(gradients).first(count),
                               std::span(slots).first(slot_count));
    std::optional<BlockWords> words;
    if (key_ && chunk.state == DType::kBF16)
      words.emplace(*key_, chunk.begin + static_cast<std::int64_t>(at));
    for (std::size_t b = 0; b <= slot_count; ++b)
      store(bytes_of(b), chunk.state, at, count, values[b], words ? &*words : nullptr, b);
  }

  static void load(std::span<std::byte> bytes, DType type, std::size_t at, std::size_t count,
                   Block& values) {
    if (type == DType::kBF16) {
      const auto words = elements_of<std::uint16_t>(bytes).subspan(at, count);
      for (std::size_t i = 0; i < count; ++i) values[i] = bf16_to_float(words[i]);
    } else {
      const auto floats = elements_of<float>(bytes).subspan(at, count);
      std::copy(floats.begin(), floats.end(), values.begin());
    }
  }

  static void store(std::span<std::byte> bytes, DType type, std::size_t at, std::size_t count,
                    const Block& values, const BlockWords* random, std::size_t buffer) {
    if (type == DType::kBF16) {
      const auto words = elements_of<std::uint16_t>(bytes).subspan(at, count);
      for (std::size_t i = 0; i < count; ++i)
        words[i] =
            random ? random_bf16(values[i], random->of(buffer % 4, i)) : float_to_bf16(values[i]);
    } else {
      std::copy_n(values.begin(), count,
                  elements_of<float>(bytes).begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  const ElementwiseOptimizer& optimizer_;
  float gradient_scale_;
  std::optional<std::uint64_t> key_;
  std::vector<ElementwiseStep> groups_;
};

class OwnOptimizer final : public Optimizer {
 public:
  explicit OwnOptimizer(std::shared_ptr<const ElementwiseOptimizer> own)
      : own_(std::move(own)), names_(own_->slots()), slots_(names_.begin(), names_.end()) {}
  std::string_view name() const override { return own_->name(); }
  std::span<const std::string_view> slots() const override { return slots_; }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<Update>(*own_, step, groups);
  }

 private:
  const std::shared_ptr<const ElementwiseOptimizer> own_;
  const std::vector<std::string> names_;
  const std::vector<std::string_view> slots_;
};

}  // namespace

std::shared_ptr<const Optimizer> run_optimizer(std::shared_ptr<const ElementwiseOptimizer> own) {
  return std::make_shared<OwnOptimizer>(std::move(own));
}

}  // namespace troupe::train
