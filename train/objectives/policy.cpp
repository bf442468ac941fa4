#include "train/objectives/policy.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr struct {
  std::string_view name;
  LossAggregation aggregation;
} kAggregations[] = {
    {"token-mean", LossAggregation::kTokenMean},
    {"token-sum", LossAggregation::kTokenSum},
    {"seq-mean-token-sum", LossAggregation::kSequenceMeanTokenSum},
    {"seq-mean-token-sum-norm", LossAggregation::kSequenceMeanTokenSumNorm},
    {"seq-mean-token-mean", LossAggregation::kSequenceMeanTokenMean},
};

constexpr struct {
  std::string_view name;
  KlEstimator estimator;
} kEstimators[] = {{"kl", KlEstimator::kK1},        {"k1", KlEstimator::kK1},
                   {"abs", KlEstimator::kAbsolute}, {"mse", KlEstimator::kK2},
                   {"k2", KlEstimator::kK2},        {"low_var_kl", KlEstimator::kK3},
                   {"k3", KlEstimator::kK3}};

// verl's, in means.
constexpr double kAlmostNothing = 1e-8;

// A token's loss and its derivative; how it was limited.
struct TokenValue {
  double loss = 0, derivative = 0;
  bool is_clipped = false, is_dual_clipped = false;
};

// Tokens without weight are not asked for.
template <typename OfToken>
TokenLoss sum_over(std::span<const double> weights, OfToken of_token) {
  TokenLoss sum;
  sum.derivatives.resize(weights.size());
  double counted = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    const TokenValue token = of_token(i);
    sum.loss += weights[i] * token.loss;
    sum.derivatives[i] = weights[i] * token.derivative;
    ++counted;
    sum.clipped += token.is_clipped ? 1 : 0;
    sum.dual_clipped += token.is_dual_clipped ? 1 : 0;
  }
  sum.clipped /= std::max(1.0, counted);
  sum.dual_clipped /= std::max(1.0, counted);
  return sum;
}

TokenValue policy_of(const PolicyOptions& options, double log_ratio, double advantage) {
  const bool limited = std::abs(log_ratio) > options.log_ratio_max;
  const double ratio =
      std::exp(std::clamp(log_ratio, -options.log_ratio_max, options.log_ratio_max));
  const double plain = -advantage * ratio;
  const double clipped =
      -advantage * std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
  TokenValue token{.loss = std::max(plain, clipped), .is_clipped = clipped > plain};
  if (options.dual_clip && advantage < 0) {
    const double most = -advantage * *options.dual_clip;
    token.is_dual_clipped = token.loss > most;
    token.loss = std::min(token.loss, most);
  }
  if (!token.is_clipped && !token.is_dual_clipped && !limited) token.derivative = plain;
  return token;
}

TokenValue kl_of(const KlOptions& options, double difference) {
  TokenValue token;
  switch (options.estimator) {
    case KlEstimator::kK1:
      token = {difference, 1};
      break;
    case KlEstimator::kAbsolute:
      token = {std::abs(difference), difference > 0 ? 1.0 : difference < 0 ? -1.0 : 0.0};
      break;
    case KlEstimator::kK2:
      token = {difference * difference / 2, difference};
      break;
    case KlEstimator::kK3: {
      const double most = options.difference_max, x = std::clamp(-difference, -most, most);
      token.loss = std::expm1(x) - x;
      token.is_clipped = std::abs(difference) > most || token.loss > options.estimate_max;
      token.loss = std::min(token.loss, options.estimate_max);
      if (!token.is_clipped) token.derivative = -std::expm1(x);
      break;
    }
  }
  if (options.derivative_of_k2) token.derivative = difference;
  return token;
}

}  // namespace

std::optional<LossAggregation> loss_aggregation_from_name(std::string_view name) {
  for (const auto& known : kAggregations)
    if (known.name == name) return known.aggregation;
  return std::nullopt;
}

std::optional<KlOptions> kl_options_from_name(std::string_view name) {
  const bool of_k2 = name.ends_with('+');
  if (of_k2) name.remove_suffix(1);
  for (const auto& known : kEstimators)
    if (known.name == name)
      return KlOptions{.estimator = known.estimator, .derivative_of_k2 = of_k2};
  return std::nullopt;
}

std::vector<double> aggregation_weights(LossAggregation aggregation, const AnswerTokens& tokens,
                                        const StepCounts& step) {
  TROUPE_CHECK(tokens.length > 0);
  std::vector<double> weights(tokens.mask.size());
  std::vector<std::int64_t> by_row(static_cast<std::size_t>(tokens.rows()));
  const auto row_of = [&](std::size_t i) { return i / static_cast<std::size_t>(tokens.length); };
  std::int64_t all = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (tokens.mask[i] != 0) ++by_row[row_of(i)], ++all;
  const auto filled = std::ranges::count_if(by_row, [](std::int64_t count) { return count > 0; });
  const auto or_own = [](std::int64_t of_step, std::int64_t own) {
    return static_cast<double>(std::max<std::int64_t>(1, of_step > 0 ? of_step : own));
  };
  const double of_tokens = or_own(step.tokens, all);
  const double of_sequences = or_own(step.sequences, filled);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (tokens.mask[i] == 0) continue;
    switch (aggregation) {
      case LossAggregation::kTokenMean:
        weights[i] = 1 / of_tokens;
        break;
      case LossAggregation::kTokenSum:
        weights[i] = 1;
        break;
      case LossAggregation::kSequenceMeanTokenSum:
        weights[i] = 1 / of_sequences;
        break;
      case LossAggregation::kSequenceMeanTokenSumNorm:
        weights[i] = 1 / of_sequences / static_cast<double>(tokens.length);
        break;
      case LossAggregation::kSequenceMeanTokenMean:
        weights[i] = 1 / of_sequences / (static_cast<double>(by_row[row_of(i)]) + kAlmostNothing);
        break;
    }
  }
  return weights;
}

TokenLoss policy_loss(const PolicyOptions& options, std::span<const double> log_probabilities,
                      std::span<const double> old_log_probabilities,
                      std::span<const double> advantages, std::span<const double> weights) {
  return sum_over(weights, [&](std::size_t i) {
    return policy_of(options, log_probabilities[i] - old_log_probabilities[i], advantages[i]);
  });
}

TokenLoss kl_loss(const KlOptions& options, std::span<const double> log_probabilities,
                  std::span<const double> reference, std::span<const double> weights) {
  return sum_over(
      weights, [&](std::size_t i) { return kl_of(options, log_probabilities[i] - reference[i]); });
}

TokenLoss value_loss(double clip, std::span<const double> values,
                     std::span<const double> old_values, std::span<const double> returns,
                     std::span<const double> weights) {
  return sum_over(weights, [&](std::size_t i) -> TokenValue {
    const double kept = std::clamp(values[i], old_values[i] - clip, old_values[i] + clip);
    const double from = values[i] - returns[i], kept_from = kept - returns[i];
    if (kept_from * kept_from > from * from)
      return {.loss = kept_from * kept_from / 2, .is_clipped = true};
    return {from * from / 2, from};
  });
}

Advantages generalized_advantages(double gamma, double lambda, std::span<const double> rewards,
                                  std::span<const double> values, const AnswerTokens& tokens) {
  TROUPE_CHECK(tokens.length > 0);
  Advantages out{std::vector<double>(rewards.size()), std::vector<double>(rewards.size())};
  for (std::int64_t row = 0; row < tokens.rows(); ++row) {
    double next_value = 0, advantage = 0;
    for (std::int64_t t = tokens.length - 1; t >= 0; --t) {
      const auto i = static_cast<std::size_t>(row * tokens.length + t);
      if (tokens.mask[i] == 0) continue;
      const double delta = rewards[i] + gamma * next_value - values[i];
      advantage = delta + gamma * lambda * advantage;
      next_value = values[i];
      out.advantages[i] = advantage;
      out.returns[i] = advantage + values[i];
    }
  }
  return out;
}

void whiten(std::span<double> values, const AnswerTokens& tokens, bool shifts_mean) {
  double count = 0, sum = 0, squares = 0;
  const auto each = [&](auto work) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (tokens.mask[i] != 0) work(values[i]);
  };
  each([&](double x) { ++count, sum += x; });
  // One token has no variance.
  if (count < 2) return;
  const double mean = sum / (count + kAlmostNothing);
  each([&](double x) { squares += (x - mean) * (x - mean); });
  const double variance = squares / (count + kAlmostNothing) * count / (count - 1);
  const double factor = 1 / std::sqrt(variance + kAlmostNothing);
  each([&](double& x) { x = (x - mean) * factor + (shifts_mean ? 0 : mean); });
}

std::vector<double> group_advantages(const GroupOptions& options, std::span<const double> scores,
                                     std::span<const std::int64_t> groups) {
  struct Group {
    double count = 0, sum = 0, squares = 0;
    double mean() const { return count > 1 ? sum / count : 0; }
  };
  std::map<std::int64_t, Group> by_number;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    Group& group = by_number[groups[i]];
    ++group.count;
    group.sum += scores[i];
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    Group& group = by_number[groups[i]];
    group.squares += (scores[i] - group.mean()) * (scores[i] - group.mean());
  }
  std::vector<double> advantages(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const Group& group = by_number[groups[i]];
    const double deviation = group.count > 1 ? std::sqrt(group.squares / (group.count - 1)) : 1;
    advantages[i] =
        (scores[i] - group.mean()) / (options.divides ? deviation + options.epsilon : 1);
  }
  return advantages;
}

}  // namespace troupe::train
