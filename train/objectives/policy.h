#pragma once
// Losses of policy gradients (PPO, GRPO, DAPO), as verl and TRL compute them: pure functions of
// what is known of each token of a batch's answers. What makes the answers and their rewards is not
// here.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::train {

// The answers of a batch: rows of `length` tokens, of which those count whose mask is not 0. Other
// spans of a call have one number for each.
struct AnswerTokens {
  std::span<const std::uint8_t> mask;
  std::int64_t length = 0;
  std::int64_t rows() const { return static_cast<std::int64_t>(mask.size()) / length; }
};

// How one loss becomes of those of tokens, under verl's names (loss_agg_mode): DAPO's is
// token-mean, GRPO's seq-mean-token-mean, Dr. GRPO's seq-mean-token-sum-norm.
enum class LossAggregation {
  kTokenMean,
  kTokenSum,
  kSequenceMeanTokenSum,
  kSequenceMeanTokenSumNorm,  // and divided by the rows' length
  kSequenceMeanTokenMean,
};
std::optional<LossAggregation> loss_aggregation_from_name(std::string_view name);

// What means are taken over where the batch is a part of a step; 0: over the batch.
struct StepCounts {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;  // that have a token
};
// What each token's loss counts in the loss of the batch; 0 where the mask is. Every aggregation is
// such a sum.
std::vector<double> aggregation_weights(LossAggregation aggregation, const AnswerTokens& tokens,
                                        const StepCounts& step = {});

// A loss and its derivatives by what it is a function of, token by token.
struct TokenLoss {
  double loss = 0;
  std::vector<double> derivatives;
  // Shares of the tokens whose loss a limit cut off.
  double clipped = 0;
  double dual_clipped = 0;
};

struct PolicyOptions {
  double clip_low = 0.2;   // of the ratio of probabilities, below 1
  double clip_high = 0.2;  // and above; DAPO's is greater
  // Of tokens with a negative advantage: the ratio that the loss grows no further behind (verl's
  // clip_ratio_c); nothing in TRL.
  std::optional<double> dual_clip = 3.0;
  double log_ratio_max = 20;  // what the ratio's logarithm is limited to, either way
};
// Of the policy's log-probabilities, given those that the answers were drawn with. `weights`: see
// aggregation_weights.
TokenLoss policy_loss(const PolicyOptions& options, std::span<const double> log_probabilities,
                      std::span<const double> old_log_probabilities,
                      std::span<const double> advantages, std::span<const double> weights);

// Estimates of the divergence from a reference of one drawn token (joschu.net/blog/kl-approx.html).
enum class KlEstimator { kK1, kAbsolute, kK2, kK3 };
struct KlOptions {
  KlEstimator estimator = KlEstimator::kK3;
  bool derivative_of_k2 = false;  // a '+' behind verl's name: k2's derivative, which has no bias
  // Of k3, as verl limits them; TRL does not.
  double difference_max = 20, estimate_max = 10;
};
// verl's names: kl, k1, abs, mse, k2, low_var_kl, k3, and with '+'.
std::optional<KlOptions> kl_options_from_name(std::string_view name);
// Of the policy's log-probabilities.
TokenLoss kl_loss(const KlOptions& options, std::span<const double> log_probabilities,
                  std::span<const double> reference, std::span<const double> weights);

// Half the square of what a value head is from `returns`; a value that is further than `clip` from
// what it was counts no less than at that distance. Of the values.
TokenLoss value_loss(double clip, std::span<const double> values,
                     std::span<const double> old_values, std::span<const double> returns,
                     std::span<const double> weights);

struct Advantages {
  std::vector<double> advantages, returns;  // 0 where the mask is
};
// Generalised advantage estimation. Tokens without a mask are passed over.
Advantages generalized_advantages(double gamma, double lambda, std::span<const double> rewards,
                                  std::span<const double> values, const AnswerTokens& tokens);
// To mean 0 (or that which they have) and variance 1, over the tokens that count.
void whiten(std::span<double> values, const AnswerTokens& tokens, bool shifts_mean = true);

struct GroupOptions {
  bool divides = true;    // by the scores' standard deviation in the group; not in Dr. GRPO
  double epsilon = 1e-6;  // added to it; TRL: 1e-4
};
// GRPO: how much each answer's score is above the mean of the answers to the same question, which
// have the same number in `groups`. An answer that is alone keeps its score.
std::vector<double> group_advantages(const GroupOptions& options, std::span<const double> scores,
                                     std::span<const std::int64_t> groups);

}  // namespace troupe::train
