#include "train/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"

namespace troupe::train {

Status check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature))
    return error(Code::kInvalidArgument, "temperature={} must be 0 (greedy) or greater",
                 options.temperature);
  if (options.top_k < 0)
    return error(Code::kInvalidArgument, "top_k={} must be 0 (all) or greater", options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0))
    return error(Code::kInvalidArgument, "top_p={} must be above 0 and at most 1", options.top_p);
  if (!(options.repetition_penalty > 0.0) || !std::isfinite(options.repetition_penalty))
    return error(Code::kInvalidArgument, "repetition_penalty={} must be above 0",
                 options.repetition_penalty);
  return {};
}

void penalize_repetition(std::span<float> logits, std::span<const std::int32_t> sequence,
                         double penalty) {
  if (penalty == 1.0) return;
  std::vector<std::int32_t> tokens(sequence.begin(), sequence.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  const auto factor = static_cast<float>(penalty);
  for (const std::int32_t token : tokens) {
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = logit < 0 ? logit * factor : logit / factor;
  }
}

std::int32_t greedy_token(std::span<const float> logits) {
  TROUPE_CHECK(!logits.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i)
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  return static_cast<std::int32_t>(best);
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          Random& random) {
  if (options.temperature == 0.0) return greedy_token(logits);
  struct Candidate {
    double weight;
    std::int32_t id;
  };
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i]))
      candidates.push_back({logits[i] / options.temperature, static_cast<std::int32_t>(i)});
  if (candidates.empty()) return greedy_token(logits);
  // Of a large vocabulary the few that may be taken are found much sooner than all are sorted.
  const std::size_t wanted =
      options.top_k > 0 ? std::min(static_cast<std::size_t>(options.top_k), candidates.size())
                        : candidates.size();
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(wanted),
                    candidates.end(), [](const Candidate& a, const Candidate& b) {
                      return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
                    });
  candidates.resize(wanted);

  const double greatest = candidates.front().weight;
  double sum = 0.0;
  for (Candidate& candidate : candidates)
    sum += candidate.weight = std::exp(candidate.weight - greatest);
  std::size_t kept = 0;
  double kept_sum = 0.0;
  while (kept < candidates.size() && (kept == 0 || kept_sum < options.top_p * sum))
    kept_sum += candidates[kept++].weight;

  double left = random.unit() * kept_sum;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= candidates[i].weight;
    if (left < 0.0) return candidates[i].id;
  }
  return candidates[kept - 1].id;
}

}  // namespace troupe::train
