#pragma once
// AdamW (Loshchilov and Hutter, 2019) over flat ranges of parameters.
//
// A pure function of its arguments: the same element gets the same bits wherever a shard begins.

#include <cstdint>
#include <optional>
#include <span>

#include "train/tensor/decay_range.h"

namespace troupe::train {

// What is the same for all elements of a step.
struct AdamWStep {
  double learning_rate = 5e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;        // counts from 1: bias correction
  float gradient_scale = 1.0f;  // the clip coefficient: multiplies every gradient
  // Of states in bf16 only: results are rounded randomly by (key, flat position) instead of to
  // nearest; see random_rounding.h.
  std::optional<std::uint64_t> rounding_key = std::nullopt;
};

// The same in fp32, rounded once: for updates that come in many pieces. Made from a step wherever
// one is given.
class AdamWFactors {
 public:
  AdamWFactors(const AdamWStep& step);  // NOLINT(google-explicit-constructor)

  float beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon, gradient_scale;
  std::optional<std::uint64_t> rounding_key;
  // What a parameter is multiplied with, where it decays and where it does not.
  float keep(bool decays) const { return decays ? keep_decaying_ : 1.0f; }

 private:
  float keep_decaying_;
};

// p −= lr·wd·p (where `decays`), m and v updated, p −= lr·m̂ / (√v̂ + ε): torch.optim.AdamW's order.
// All spans have the same size.
void adamw_update(const AdamWStep& step, bool decays, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moments,
                  std::span<float> second_moments);

// The same over a state that is kept in bf16 (bit patterns): computed in fp32 from the stored
// values, as above, then parameter and moments are rounded once each: to nearest, ties to even, as
// torch.optim.AdamW(fused=True) does with bf16 parameters, or randomly by the step's rounding_key
// (flat positions count from 0 here). The update uses the moments as they are before they are
// rounded.
void adamw_update(const AdamWStep& step, bool decays, std::span<std::uint16_t> parameters,
                  std::span<const float> gradients, std::span<std::uint16_t> first_moments,
                  std::span<std::uint16_t> second_moments);

// The name under which callers of the optimizer know the ranges.
using FlatDecayRange = DecayRange;

// The same for the flat positions [begin, begin + parameters.size()), cut by `ranges`, which cover
// them.
void adamw_update(const AdamWFactors& step, std::span<const DecayRange> ranges, std::int64_t begin,
                  std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moments, std::span<float> second_moments);
void adamw_update(const AdamWFactors& step, std::span<const DecayRange> ranges, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments);

}  // namespace troupe::train
