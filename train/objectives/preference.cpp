#include "train/objectives/preference.h"

#include <algorithm>
#include <cmath>

namespace troupe::train {
namespace {

constexpr struct {
  std::string_view name;
  PairLoss loss;
} kPairLosses[] = {{"sigmoid", PairLoss::kSigmoid},
                   {"hinge", PairLoss::kHinge},
                   {"ipo", PairLoss::kIpo},
                   {"orpo", PairLoss::kOrpo},
                   {"simpo", PairLoss::kSimpo}};

// The loss of a difference, and its derivative.
struct Margin {
  double loss = 0, derivative = 0;
};

Margin margin_loss(const PairOptions& options, double difference) {
  const double beta = options.beta, x = beta * difference;
  switch (options.loss) {
    case PairLoss::kSigmoid: {
      const double smoothing = options.label_smoothing;
      return {(1 - smoothing) * minus_log_sigmoid(x) + smoothing * minus_log_sigmoid(-x),
              beta * (smoothing * sigmoid(x) - (1 - smoothing) * sigmoid(-x))};
    }
    case PairLoss::kHinge:
      return {std::max(0.0, 1 - x), x < 1 ? -beta : 0.0};
    case PairLoss::kIpo: {
      const double from = difference - 1 / (2 * beta);
      return {from * from, 2 * from};
    }
    case PairLoss::kSimpo: {
      const double y = x - options.simpo_gamma;
      return {minus_log_sigmoid(y), -beta * sigmoid(-y)};
    }
    case PairLoss::kOrpo:
      break;
  }
  return {};
}

// log(1 − eˣ) of a log-probability, which is below 0.
double log_of_rest(double x) { return std::log1p(-std::exp(std::min(x, -1e-12))); }

}  // namespace

std::optional<PairLoss> pair_loss_from_name(std::string_view name) {
  for (const auto& known : kPairLosses)
    if (known.name == name) return known.loss;
  return std::nullopt;
}

bool has_reference(PairLoss loss) { return loss != PairLoss::kOrpo && loss != PairLoss::kSimpo; }

bool takes_means(PairLoss loss) { return loss == PairLoss::kIpo || !has_reference(loss); }

double minus_log_sigmoid(double x) {
  return std::max(0.0, -x) + std::log1p(std::exp(-std::abs(x)));
}

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

PairResult pair_loss(const PairOptions& options, const AnswerLogProbability& chosen,
                     const AnswerLogProbability& rejected) {
  const double c = chosen.policy, r = rejected.policy;
  if (options.loss == PairLoss::kOrpo) {
    const double odds = c - r - (log_of_rest(c) - log_of_rest(r));
    const double slope = -options.beta * sigmoid(-odds);
    const double ratio_loss = minus_log_sigmoid(odds);
    // The derivative of log(p / (1 − p)) by log p is 1 / (1 − p).
    return {.loss = -c + options.beta * ratio_loss,
            .by_chosen = -1 + slope / -std::expm1(std::min(c, -1e-12)),
            .by_rejected = -slope / -std::expm1(std::min(r, -1e-12)),
            .chosen_reward = options.beta * c,
            .rejected_reward = options.beta * r,
            .odds_ratio_loss = ratio_loss};
  }
  const bool compared = has_reference(options.loss);
  const double chosen_gain = c - (compared ? chosen.reference : 0);
  const double rejected_gain = r - (compared ? rejected.reference : 0);
  const Margin margin = margin_loss(options, chosen_gain - rejected_gain);
  return {.loss = margin.loss,
          .by_chosen = margin.derivative,
          .by_rejected = -margin.derivative,
          .chosen_reward = options.beta * chosen_gain,
          .rejected_reward = options.beta * rejected_gain};
}

KtoResult kto_loss(const KtoOptions& options, const AnswerLogProbability& answer, bool desirable,
                   double drift) {
  const double gain = answer.policy - answer.reference;
  const double sign = desirable ? 1 : -1;
  const double weight = desirable ? options.chosen_weight : options.rejected_weight;
  const double x = sign * options.beta * (gain - drift);
  // σ′ = σ(x)·σ(−x).
  return {.loss = weight * sigmoid(-x),
          .by_policy = -weight * sign * options.beta * sigmoid(x) * sigmoid(-x),
          .reward = options.beta * gain};
}

}  // namespace troupe::train
