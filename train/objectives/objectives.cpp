#include "train/objectives/objectives.h"

#include <cmath>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// Each target's loss follows from its own logits.
template <typename OwnLoss>
class OnePassObjective final : public Objective {
 public:
  OnePassObjective(std::string_view name, OperatorName loss_operator, OwnLoss loss)
      : name_(name), loss_operator_(loss_operator), loss_(std::move(loss)) {}
  std::string_view name() const override { return name_; }
  const Loss* own_loss() const override { return &loss_; }
  OperatorName loss_operator() const override { return loss_operator_; }
  Result<TargetLosses> losses_of(const TargetTokens&) const override {
    TROUPE_CHECK(false, "{} asks nothing of the log-probabilities", name_);
    return TargetLosses();
  }

 private:
  const std::string_view name_;
  const OperatorName loss_operator_;
  const OwnLoss loss_;
};

// Entropy-adaptive fine-tuning (arXiv 2601.02151, and LLaMA-Factory's trainer_utils): targets that
// the model is sure to know otherwise count less.
class EntropyAdaptiveLoss final : public Loss {
 public:
  explicit EntropyAdaptiveLoss(const EntropyAdaptiveOptions& options) : options_(options) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    operators.entropy_weighted_cross_entropy(
        chunk.logits, chunk.targets.data(), losses.data(), gradient ? scale : 0.0f, options_.top,
        static_cast<float>(options_.divisor), static_cast<float>(options_.power),
        gradient ? Elements(chunk.bf16_gradient) : Elements(), chunk.rows, chunk.classes);
    return {};
  }

 private:
  const EntropyAdaptiveOptions options_;
};

class DftObjective final : public Objective {
 public:
  std::string_view name() const override { return "use_dft_loss"; }
  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result;
    for (const float log_probability : targets.log_probabilities) {
      const float probability = std::exp(log_probability);
      result.losses.push_back(-log_probability * probability);
      result.derivatives.push_back(-probability);
    }
    return result;
  }
};

}  // namespace

std::unique_ptr<const Objective> make_objective(const ObjectiveOptions& options) {
  if (options.dft) return std::make_unique<DftObjective>();
  if (options.entropy_adaptive)
    return std::make_unique<OnePassObjective<EntropyAdaptiveLoss>>(
        "use_eaft_loss", OperatorName::entropy_weighted_cross_entropy,
        EntropyAdaptiveLoss(*options.entropy_adaptive));
  return std::make_unique<OnePassObjective<CrossEntropyLoss>>(
      "cross-entropy", OperatorName::cross_entropy, CrossEntropyLoss());
}

}  // namespace troupe::train
