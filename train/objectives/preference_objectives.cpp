// Objectives of pairs of answers and of answers that are judged.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "train/objectives/objectives.h"

namespace troupe::train {
namespace {

using Kind = MetricInfo::Kind;

// Sums of one answer's targets.
struct Answer {
  SequenceTargets targets;
  std::vector<double> weights;  // of each target; empty: 1 each
  double policy = 0, reference = 0;

  double length() const { return static_cast<double>(targets.end - targets.first); }
  double weight(std::size_t at) const { return weights.empty() ? 1 : weights[at]; }
};

Answer answer_of(const TargetTokens& targets, const SequenceTargets& sequence,
                 std::vector<double> weights = {}) {
  Answer answer{.targets = sequence, .weights = std::move(weights)};
  const auto& reference = targets.asked.reference;
  TROUPE_CHECK(reference.empty() || reference.size() == targets.tokens.size());
  for (std::size_t i = sequence.first; i < sequence.end; ++i) {
    answer.policy += answer.weight(i - sequence.first) * targets.log_probabilities[i];
    if (!reference.empty()) answer.reference += reference[i];
  }
  return answer;
}

// Adds the derivative by an answer's sum to its targets'.
void spread(const Answer& answer, double derivative, std::vector<float>& derivatives) {
  for (std::size_t i = answer.targets.first; i < answer.targets.end; ++i)
    derivatives[i] += static_cast<float>(derivative * answer.weight(i - answer.targets.first));
}

TargetLosses nothing_of(const TargetTokens& targets) {
  return {.losses = std::vector<float>(targets.tokens.size()),
          .derivatives = std::vector<float>(targets.tokens.size())};
}

class PairObjective final : public Objective {
 public:
  explicit PairObjective(const PairOptions& options) : options_(options) {}
  std::string_view name() const override { return "stage=dpo"; }
  Division division() const override { return Division::kMicroBatches; }
  Together together() const override { return Together::kPairs; }
  bool asks_reference() const override { return has_reference(options_.loss); }
  std::span<const MetricInfo> metrics() const override {
    const std::span all(kMetrics);
    return options_.loss == PairLoss::kOrpo ? all : all.first(6);
  }

  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result = nothing_of(targets);
    const auto sequences = targets_by_sequence(targets.batch, targets.tokens);
    const std::size_t pairs = sequences.size() / 2;
    if (targets.tokens.empty() || pairs == 0) return result;
    const double share = 1 / static_cast<double>(pairs);
    std::array<double, std::size(kMetrics)> means{};
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      const SequenceTargets &c = sequences[2 * pair], &r = sequences[2 * pair + 1];
      const std::size_t common = std::min(c.end - c.first, r.end - r.first);
      const Answer chosen = answer_of(targets, c, weights_of(c, common)),
                   rejected = answer_of(targets, r, weights_of(r, common));
      const double by_chosen_mean = 1 / std::max(1.0, chosen.length());
      const double chosen_unit = takes_means(options_.loss) ? by_chosen_mean : 1;
      const double rejected_unit =
          takes_means(options_.loss) ? 1 / std::max(1.0, rejected.length()) : 1;
      const PairResult one =
          pair_loss(options_, {chosen.policy * chosen_unit, chosen.reference * chosen_unit},
                    {rejected.policy * rejected_unit, rejected.reference * rejected_unit});
      const double sft_loss = -chosen.policy * by_chosen_mean;
      result.sequence_loss += share * (one.loss + options_.sft_weight * sft_loss);
      spread(chosen, share * (one.by_chosen * chosen_unit - options_.sft_weight * by_chosen_mean),
             result.derivatives);
      spread(rejected, share * one.by_rejected * rejected_unit, result.derivatives);
      const double values[] = {one.chosen_reward,
                               one.rejected_reward,
                               one.chosen_reward > one.rejected_reward ? 1.0 : 0.0,
                               one.chosen_reward - one.rejected_reward,
                               chosen.policy * chosen_unit,
                               rejected.policy * rejected_unit,
                               sft_loss,
                               one.odds_ratio_loss};
      for (std::size_t i = 0; i < std::size(values); ++i) means[i] += share * values[i];
    }
    for (std::size_t i = 0; i < metrics().size(); ++i) result.metrics.set(i, means[i], 1);
    return result;
  }

 private:
  static constexpr MetricInfo kMetrics[] = {
      {"rewards/chosen"}, {"rewards/rejected"}, {"rewards/accuracies"}, {"rewards/margins"},
      {"logps/chosen"},   {"logps/rejected"},   {"sft_loss"},           {"odds_ratio_loss"}};
  std::vector<double> weights_of(const SequenceTargets& answer, std::size_t common) const {
    if (!options_.ld_alpha) return {};
    std::vector<double> weights(answer.end - answer.first, 1.0);
    std::fill(weights.begin() + static_cast<std::ptrdiff_t>(common), weights.end(),
              *options_.ld_alpha);
    return weights;
  }

  const PairOptions options_;
};

class KtoObjective final : public Objective {
 public:
  explicit KtoObjective(const KtoOptions& options) : options_(options) {}
  std::string_view name() const override { return "stage=kto"; }
  Division division() const override { return Division::kMicroBatches; }
  Together together() const override { return Together::kSequences; }
  bool asks_reference() const override { return true; }
  bool asks_drift() const override { return true; }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }

  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result = nothing_of(targets);
    const auto sequences = targets_by_sequence(targets.batch, targets.tokens);
    const auto& desirable = targets.batch.desirable;
    if (desirable.empty()) return result;  // a rank without samples
    TROUPE_CHECK(desirable.size() == sequences.size());
    const auto rows = static_cast<double>(sequences.size());
    const auto chosen_rows = static_cast<double>(
        std::count_if(desirable.begin(), desirable.end(), [](auto good) { return good != 0; }));
    double chosen_sft = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const bool good = desirable[i] != 0;
      const Answer answer = answer_of(targets, sequences[i]);
      const KtoResult one =
          kto_loss(options_, {answer.policy, answer.reference}, good, targets.asked.drift);
      result.sequence_loss += one.loss / rows;
      double derivative = one.by_policy / rows;
      if (good) {
        // The mean over good answers, times rows, over good answers again: as LLaMA-Factory
        // divides.
        const double share = options_.sft_weight * rows / (chosen_rows * chosen_rows);
        const double length = std::max(1.0, answer.length());
        chosen_sft -= share * answer.policy / length;
        derivative -= share / length;
      }
      spread(answer, derivative, result.derivatives);
      MetricSums& metrics = result.metrics;
      const std::size_t reward = good ? 0 : 1, log_probability = good ? 3 : 4;
      metrics.set(reward, metrics.sums[reward] + one.reward, metrics.counts[reward] + 1);
      metrics.set(log_probability, metrics.sums[log_probability] + answer.policy,
                  metrics.counts[log_probability] + 1);
    }
    result.sequence_loss += chosen_sft;
    result.metrics.set(5, targets.asked.drift, 1);
    return result;
  }

 private:
  static constexpr MetricInfo kMetrics[] = {
      {"rewards/chosen"}, {"rewards/rejected"}, {"rewards/margins", Kind::kDifference},
      {"logps/chosen"},   {"logps/rejected"},   {"kl", Kind::kSum}};
  const KtoOptions options_;
};

// A reward model learns to give the better answer the greater value.
class RewardObjective final : public Objective {
 public:
  std::string_view name() const override { return "stage=rm"; }
  Division division() const override { return Division::kMicroBatches; }
  bool judges_values() const override { return true; }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }

  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result = nothing_of(targets);
    // One target for each sequence: its last token's value.
    const std::size_t pairs = targets.tokens.size() / 2;
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      const double difference =
          double{targets.log_probabilities[2 * pair]} - targets.log_probabilities[2 * pair + 1];
      result.sequence_loss += minus_log_sigmoid(difference) / static_cast<double>(pairs);
      const double slope = sigmoid(-difference) / static_cast<double>(pairs);
      result.derivatives[2 * pair] = static_cast<float>(-slope);
      result.derivatives[2 * pair + 1] = static_cast<float>(slope);
      result.metrics.set(0, result.metrics.sums[0] + (difference > 0 ? 1 : 0),
                         result.metrics.counts[0] + 1);
    }
    return result;
  }

 private:
  static constexpr MetricInfo kMetrics[] = {{"accuracy"}};
};

}  // namespace

std::unique_ptr<const Objective> make_pair_objective(const PairOptions& options) {
  return std::make_unique<PairObjective>(options);
}
std::unique_ptr<const Objective> make_kto_objective(const KtoOptions& options) {
  return std::make_unique<KtoObjective>(options);
}
std::unique_ptr<const Objective> make_reward_objective() {
  return std::make_unique<RewardObjective>();
}

}  // namespace troupe::train
