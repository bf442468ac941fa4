#pragma once
// Losses of preference stages, as LLaMA-Factory and TRL compute them (train/dpo, train/kto,
// train/rm; dpo_trainer.py, kto_trainer.py): pure functions of the log-probabilities of whole
// answers.

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::train {

enum class PairLoss { kSigmoid, kHinge, kIpo, kOrpo, kSimpo };
std::optional<PairLoss> pair_loss_from_name(std::string_view name);
// Without one, an answer is compared with nothing but the other answer.
bool has_reference(PairLoss loss);
// Its log-probabilities are means over an answer's tokens.
bool takes_means(PairLoss loss);

struct PairOptions {
  PairLoss loss = PairLoss::kSigmoid;
  double beta = 0.1;             // pref_beta
  double label_smoothing = 0.0;  // dpo_label_smoothing, of kSigmoid
  double simpo_gamma = 0.5;
  double sft_weight = 0.0;  // pref_ftx
  // Tokens of an answer beyond the shorter one's length count so much (LD-DPO).
  std::optional<double> ld_alpha;
};

// Of one answer, in the policy and the reference; see takes_means().
struct AnswerLogProbability {
  double policy = 0, reference = 0;
};

struct PairResult {
  double loss = 0;
  double by_chosen = 0, by_rejected = 0;  // derivatives by the policy's
  double chosen_reward = 0, rejected_reward = 0;
  double odds_ratio_loss = 0;  // of kOrpo
};
// Without the SFT loss.
PairResult pair_loss(const PairOptions& options, const AnswerLogProbability& chosen,
                     const AnswerLogProbability& rejected);

struct KtoOptions {
  double beta = 0.1;
  double chosen_weight = 1.0, rejected_weight = 1.0;
  double sft_weight = 0.0;  // pref_ftx
};
struct KtoResult {
  double loss = 0;
  double by_policy = 0;  // the derivative
  double reward = 0;
};
KtoResult kto_loss(const KtoOptions& options, const AnswerLogProbability& answer, bool desirable,
                   double drift);

// −log σ(x) without overflow, and σ(x).
double minus_log_sigmoid(double x);
double sigmoid(double x);

}  // namespace troupe::train
