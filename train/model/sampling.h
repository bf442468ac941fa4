#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>

#include "runtime/base/random.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct SamplingOptions {
  // Logits of tokens that the sequence has are divided by it, negative ones multiplied; 1: not.
  double repetition_penalty = 1.0;
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // keep the k most likely; 0: all
  double top_p = 1.0;        // then the fewest whose probabilities come to p
};

// kInvalidArgument for temperature < 0, top_k < 0, top_p outside (0, 1] or a repetition_penalty
// that is not above 0.
Status check_sampling(const SamplingOptions& options);

// The first of the greatest.
std::int32_t greedy_token(std::span<const float> logits);

// The penalty, as HF's RepetitionPenaltyLogitsProcessor: each token of `sequence` counts once.
void penalize_repetition(std::span<float> logits, std::span<const std::int32_t> sequence,
                         double penalty);

// In the order of HF's generate, behind the penalty: temperature, top_k, top_p. Equal logits rank
// by id. Not-finite logits count as −∞; where all are, the greedy token.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          Random& random);

}  // namespace troupe::train
