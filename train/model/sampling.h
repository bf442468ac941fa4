#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>

#include "runtime/base/random.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // keep the k most likely; 0: all
  double top_p = 1.0;        // then the fewest whose probabilities come to p
};

// kInvalidArgument for temperature < 0, top_k < 0 or top_p outside (0, 1].
Status check_sampling(const SamplingOptions& options);

// The first of the greatest.
std::int32_t greedy_token(std::span<const float> logits);

// In the order of HF's generate: temperature, top_k, top_p. Equal logits rank by id. Not-finite
// logits count as −∞; where all are, the greedy token.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          Random& random);

}  // namespace troupe::train
