// Optimizers that update every element by itself, as torch.optim and bitsandbytes have them: Adam
// with weight decay in the gradient, Lion, Adagrad, RMSprop, AdEMAMix.

#include <cmath>
#include <vector>

#include "train/optimizer/element_blocks.h"
#include "train/optimizer/optimizers.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

// Of a step and a group, in fp32, rounded once.
struct ElementFactors {
  float learning_rate, keep, decay;
  float beta1, beta1_rest, beta2, beta2_rest, step_size, mean_correction, root_correction, epsilon;
};

using ElementLoop = void (*)(const ElementFactors&, const ElementBlock&);

TROUPE_VECTORIZED
void adam_loop(const ElementFactors& factors, const ElementBlock& block) {
  const ElementFactors k = factors;
  float* __restrict const p = block.parameters;
  float* __restrict const m = block.slots[0];
  float* __restrict const v = block.slots[1];
  const float* __restrict const g = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float gradient = g[i] + k.decay * p[i];
    m[i] = m[i] + (gradient - m[i]) * k.beta1_rest;
    v[i] = v[i] * k.beta2 + gradient * gradient * k.beta2_rest;
    p[i] -= k.step_size * (m[i] / (std::sqrt(v[i]) / k.root_correction + k.epsilon));
  }
}

TROUPE_VECTORIZED
void lion_loop(const ElementFactors& factors, const ElementBlock& block) {
  const ElementFactors k = factors;
  float* __restrict const p = block.parameters;
  float* __restrict const m = block.slots[0];
  const float* __restrict const g = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float towards = m[i] * k.beta1 + g[i] * k.beta1_rest;
    const float sign = towards > 0.0f ? 1.0f : towards < 0.0f ? -1.0f : 0.0f;
    p[i] = p[i] * k.keep - k.learning_rate * sign;
    m[i] = m[i] * k.beta2 + g[i] * k.beta2_rest;
  }
}

TROUPE_VECTORIZED
void adagrad_loop(const ElementFactors& factors, const ElementBlock& block) {
  const ElementFactors k = factors;
  float* __restrict const p = block.parameters;
  float* __restrict const sum = block.slots[0];
  const float* __restrict const g = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float gradient = g[i] + k.decay * p[i];
    sum[i] += gradient * gradient;
    p[i] -= k.learning_rate * (gradient / (std::sqrt(sum[i]) + k.epsilon));
  }
}

TROUPE_VECTORIZED
void rmsprop_loop(const ElementFactors& factors, const ElementBlock& block) {
  const ElementFactors k = factors;
  float* __restrict const p = block.parameters;
  float* __restrict const v = block.slots[0];
  const float* __restrict const g = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float gradient = g[i] + k.decay * p[i];
    v[i] = v[i] * k.beta2 + gradient * gradient * k.beta2_rest;
    p[i] -= k.learning_rate * (gradient / (std::sqrt(v[i]) + k.epsilon));
  }
}

// bitsandbytes' α and β₃ of the slow mean, without its ramps.
constexpr float kSlowWeight = 5.0f;
constexpr double kSlowBeta = 0.9999;

TROUPE_VECTORIZED
void ademamix_loop(const ElementFactors& factors, const ElementBlock& block) {
  const ElementFactors k = factors;
  constexpr float slow_rest = static_cast<float>(1.0 - kSlowBeta);
  constexpr float slow_keep = static_cast<float>(kSlowBeta);
  float* __restrict const p = block.parameters;
  float* __restrict const fast = block.slots[0];
  float* __restrict const slow = block.slots[1];
  float* __restrict const v = block.slots[2];
  const float* __restrict const g = block.gradients;
  for (std::int64_t i = 0; i < block.count; ++i) {
    fast[i] = fast[i] * k.beta1 + g[i] * k.beta1_rest;
    slow[i] = slow[i] * slow_keep + g[i] * slow_rest;
    v[i] = v[i] * k.beta2 + g[i] * g[i] * k.beta2_rest;
    const float mean = fast[i] * k.mean_correction + kSlowWeight * slow[i];
    p[i] = p[i] * k.keep -
           k.learning_rate * (mean / (std::sqrt(v[i]) / k.root_correction + k.epsilon));
  }
}

struct ElementKind {
  std::string_view name;
  std::span<const std::string_view> slots;
  ElementLoop loop;
};

class ElementUpdate final : public PreparedUpdate {
 public:
  ElementUpdate(const ElementKind& kind, const OptimizerSettings& settings,
                const OptimizerStep& step, std::span<const ParameterGroup> groups)
      : kind_(kind), gradient_scale_(step.gradient_scale), key_(step.rounding_key) {
    const auto count = static_cast<double>(step.updates);
    const double beta1_power = std::pow(settings.beta1, count);
    for (std::size_t i = 0;
         const GroupRate& rate : GroupRate::of(step, settings.weight_decay, groups)) {
      const double learning_rate = step.learning_rate * groups[i++].learning_rate_factor;
      factors_.push_back(
          {.learning_rate = rate.learning_rate,
           .keep = rate.keep,
           .decay = rate.decay,
           .beta1 = static_cast<float>(settings.beta1),
           .beta1_rest = static_cast<float>(1.0 - settings.beta1),
           .beta2 = static_cast<float>(settings.beta2),
           .beta2_rest = static_cast<float>(1.0 - settings.beta2),
           .step_size = static_cast<float>(learning_rate / (1.0 - beta1_power)),
           .mean_correction = static_cast<float>(1.0 / (1.0 - beta1_power)),
           .root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, count))),
           .epsilon = static_cast<float>(settings.epsilon)});
    }
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    ElementBlocks(chunk, gradient_scale_, key_, kind_.slots.size())
        .for_each([&](const ElementBlock& block) { kind_.loop(factors_[group], block); });
  }

 private:
  const ElementKind& kind_;
  const float gradient_scale_;
  const std::optional<std::uint64_t> key_;
  std::vector<ElementFactors> factors_;  // by group
};

class ElementOptimizer final : public Optimizer {
 public:
  ElementOptimizer(const ElementKind& kind, const OptimizerSettings& settings)
      : kind_(kind), settings_(settings) {}

  std::string_view name() const override { return kind_.name; }
  std::span<const std::string_view> slots() const override { return kind_.slots; }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<ElementUpdate>(kind_, settings_, step, groups);
  }

 private:
  const ElementKind& kind_;
  const OptimizerSettings settings_;
};

constexpr std::string_view kAdamSlots[] = {"exp_avg", "exp_avg_sq"};
constexpr std::string_view kLionSlots[] = {"exp_avg"};
constexpr std::string_view kAdagradSlots[] = {"sum"};
constexpr std::string_view kRmspropSlots[] = {"square_avg"};
constexpr std::string_view kAdemamixSlots[] = {"exp_avg", "exp_avg_slow", "exp_avg_sq"};

constexpr ElementKind kAdam{"Adam", kAdamSlots, adam_loop};
constexpr ElementKind kLion{"Lion", kLionSlots, lion_loop};
constexpr ElementKind kAdagrad{"Adagrad", kAdagradSlots, adagrad_loop};
constexpr ElementKind kRmsprop{"RMSprop", kRmspropSlots, rmsprop_loop};
constexpr ElementKind kAdemamix{"AdEMAMix", kAdemamixSlots, ademamix_loop};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerSettings& settings) {
  return std::make_unique<ElementOptimizer>(kAdam, settings);
}

std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings) {
  return std::make_unique<ElementOptimizer>(kLion, settings);
}

// torch.optim.Adagrad's own ε: transformers gives it the learning rate alone.
std::unique_ptr<Optimizer> make_adagrad(const OptimizerSettings& given) {
  OptimizerSettings settings = given;
  settings.epsilon = 1e-10;
  return std::make_unique<ElementOptimizer>(kAdagrad, settings);
}

// torch.optim.RMSprop's own α and ε.
std::unique_ptr<Optimizer> make_rmsprop(const OptimizerSettings& given) {
  OptimizerSettings settings = given;
  settings.beta2 = 0.99;
  settings.epsilon = 1e-8;
  return std::make_unique<ElementOptimizer>(kRmsprop, settings);
}

std::unique_ptr<Optimizer> make_ademamix(const OptimizerSettings& settings) {
  return std::make_unique<ElementOptimizer>(kAdemamix, settings);
}

}  // namespace troupe::train
