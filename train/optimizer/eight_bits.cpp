// AdamW and Lion with moments of 8 bits in blocks (Dettmers et al., 2021), as bitsandbytes has
// them: parameters are stepped with the moments before they are quantised again. Tensors of fewer
// than 4096 elements and embeddings, which transformers registers so, keep theirs in the state's
// type.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "train/optimizer/adamw.h"
#include "train/optimizer/dynamic_codes.h"
#include "train/optimizer/element_blocks.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

constexpr std::uint16_t kWhole = 0, kQuantized = 1;
constexpr std::int64_t kQuantizedElementsMin = 4096;

// Slots: the moments, then the scales of each.
constexpr std::string_view kEightBitAdamSlots[] = {"exp_avg", "exp_avg_sq", "exp_avg_absmax",
                                                   "exp_avg_sq_absmax"};
constexpr std::string_view kEightBitLionSlots[] = {"exp_avg", "exp_avg_absmax"};

struct EightBitFactors {
  float learning_rate, keep;
  float beta1, beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon;
};

// Of a stretch of a block: the moments are fp32.
using MomentLoop = void (*)(const EightBitFactors& k, const ElementBlock& block, float* first,
                            float* second);

TROUPE_VECTORIZED
void adam_moments(const EightBitFactors& k, const ElementBlock& block, float* __restrict m,
                  float* __restrict v) {
  float* __restrict const p = block.parameters;
  const float* __restrict const gradients = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float g = gradients[i];
    m[i] = m[i] * k.beta1 + g * k.beta1_rest;
    v[i] = v[i] * k.beta2 + g * g * k.beta2_rest;
    p[i] = p[i] * k.keep - k.step_size * (m[i] / (std::sqrt(v[i]) / k.root_correction + k.epsilon));
  }
}

TROUPE_VECTORIZED
void lion_moments(const EightBitFactors& k, const ElementBlock& block, float* m, float*) {
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float g = block.gradients[i];
    const float towards = m[i] * k.beta1 + g * k.beta1_rest;
    const float sign = towards > 0.0f ? 1.0f : towards < 0.0f ? -1.0f : 0.0f;
    block.parameters[i] = block.parameters[i] * k.keep - k.learning_rate * sign;
    m[i] = m[i] * k.beta2 + g * k.beta2_rest;
  }
}

class EightBitUpdate final : public PreparedUpdate {
 public:
  EightBitUpdate(const OptimizerSettings& settings, bool is_adam, const OptimizerStep& step,
                 std::span<const ParameterGroup> groups)
      : loop_(is_adam ? adam_moments : lion_moments),
        moments_(is_adam ? 2 : 1),
        groups_(groups),
        gradient_scale_(step.gradient_scale),
        key_(step.rounding_key) {
    const auto count = static_cast<double>(step.updates);
    for (std::size_t i = 0;
         const GroupRate& rate : GroupRate::of(step, settings.weight_decay, groups)) {
      const double learning_rate = step.learning_rate * groups[i++].learning_rate_factor;
      factors_.push_back(
          {.learning_rate = rate.learning_rate,
           .keep = rate.keep,
           .beta1 = static_cast<float>(settings.beta1),
           .beta1_rest = static_cast<float>(1.0 - settings.beta1),
           .beta2 = static_cast<float>(settings.beta2),
           .beta2_rest = static_cast<float>(1.0 - settings.beta2),
           .step_size = static_cast<float>(learning_rate / (1.0 - std::pow(settings.beta1, count))),
           .root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, count))),
           .epsilon = static_cast<float>(settings.epsilon)});
    }
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    const EightBitFactors& factors = factors_[group];
    if (groups_[group].treatment == kWhole) {
      return ElementBlocks(chunk, gradient_scale_, key_, moments_)
          .for_each([&](const ElementBlock& block) {
            loop_(factors, block, block.slots[0], block.slots[1]);
          });
    }
    ElementBlocks(chunk, gradient_scale_, key_, 0).for_each([&](const ElementBlock& block) {
      std::array<std::array<float, static_cast<std::size_t>(kUpdateBlockElements)>, 2> values;
      const auto count = static_cast<std::size_t>(block.count);
      const auto each_moment = [&](const auto& fn) {
        for (std::size_t i = 0; i < moments_; ++i) {
          fn(i == 0 ? DynamicCodes::with_sign() : DynamicCodes::without_sign(),
             elements_of<std::uint8_t>(chunk.slots[i])
                 .subspan(static_cast<std::size_t>(block.at), count),
             elements_of<float>(chunk.slots[moments_ + i])[static_cast<std::size_t>(
                 block.at / kUpdateBlockElements)],
             std::span(values[i]).first(count));
        }
      };
      each_moment([](const DynamicCodes& book, auto codes, float& scale, auto moments) {
        book.decode(codes, scale, moments);
      });
      loop_(factors, block, values[0].data(), values[1].data());
      each_moment([](const DynamicCodes& book, auto codes, float& scale, auto moments) {
        scale = book.encode(moments, codes);
      });
    });
  }

 private:
  const MomentLoop loop_;
  const std::size_t moments_;
  const std::span<const ParameterGroup> groups_;
  const float gradient_scale_;
  const std::optional<std::uint64_t> key_;
  std::vector<EightBitFactors> factors_;  // by group
};

class EightBits final : public Optimizer, public UpdateRule {
 public:
  EightBits(const OptimizerSettings& settings, bool is_adam)
      : settings_(settings), is_adam_(is_adam) {}

  std::string_view name() const override { return is_adam_ ? "8-bit AdamW" : "8-bit Lion"; }
  std::span<const std::string_view> slots() const override {
    return is_adam_ ? std::span<const std::string_view>(kEightBitAdamSlots)
                    : std::span<const std::string_view>(kEightBitLionSlots);
  }
  const UpdateRule* rule() const override { return this; }
  TensorRule rule_of(std::string_view name, std::span<const std::int64_t> shape) const override {
    if (elements_of_shape(shape) < kQuantizedElementsMin || is_embedding(name)) return {};
    return {.unit = UpdateUnit::kBlock, .treatment = kQuantized};
  }
  SlotStorage storage(std::size_t slot, std::uint16_t treatment) const override {
    const bool scales = slot >= slots().size() / 2;
    if (treatment == kWhole) return scales ? SlotStorage::kNothing : SlotStorage::kState;
    return scales ? SlotStorage::kScales : SlotStorage::kBytes;
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<EightBitUpdate>(settings_, is_adam_, step, groups);
  }

 private:
  const OptimizerSettings settings_;
  const bool is_adam_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerSettings& settings) {
  return std::make_unique<EightBits>(settings, true);
}

std::unique_ptr<Optimizer> make_lion_8bit(const OptimizerSettings& settings) {
  return std::make_unique<EightBits>(settings, false);
}

}  // namespace troupe::train
