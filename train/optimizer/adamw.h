#pragma once
// AdamW (Loshchilov and Hutter, 2019): p −= lr·wd·p (where a group decays), m and v updated,
// p −= lr·m̂ / (√v̂ + ε), in torch.optim.AdamW's order.
//
// A state in bf16 is computed in fp32 from the stored values, then parameter and moments are
// rounded once each: to nearest, ties to even, as torch.optim.AdamW(fused=True) does with bf16
// parameters, or randomly by the step's rounding_key. The update uses the moments as they are
// before they are rounded.

#include <cstdint>
#include <optional>
#include <span>

#include "train/optimizer/optimizer.h"

namespace troupe::train {

struct AdamWStep {
  double learning_rate = 5e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;        // counts from 1: bias correction
  float gradient_scale = 1.0f;  // these two: see OptimizerStep
  std::optional<std::uint64_t> rounding_key = std::nullopt;
};

// The same for a group of parameters, in fp32, rounded once: for updates that come in many pieces.
struct AdamWFactors {
  AdamWFactors(const AdamWStep& step, const ParameterGroup& group);

  float beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon, gradient_scale;
  float keep;  // what a parameter is multiplied with
  std::optional<std::uint64_t> rounding_key;
};

// Elements of one group; `begin` is the flat position of the first one. All spans have the same
// size. bf16: bit patterns.
void adamw_update(const AdamWFactors& factors, std::int64_t begin, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moments,
                  std::span<float> second_moments);
void adamw_update(const AdamWFactors& factors, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments);

// The same for positions of any groups.
void adamw_update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                  std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moments, std::span<float> second_moments);
void adamw_update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments);

// ε as it counts where √v is not divided by its correction before ε is added, as in transformers'
// old AdamW: GaLore's, APOLLO's, Muon's.
double uncorrected_epsilon(const AdamWStep& settings, std::int64_t updates);

class AdamW final : public Optimizer {
 public:
  // Of `settings` the betas, ε and the weight decay.
  explicit AdamW(const AdamWStep& settings) : settings_(settings) {}

  std::string_view name() const override { return "AdamW"; }
  std::span<const std::string_view> slots() const override;
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override;
  // The settings with what a step brings: for devices that have AdamW's arithmetic themselves.
  AdamWStep at(const OptimizerStep& step) const;

 private:
  AdamWStep settings_;
};

}  // namespace troupe::train
