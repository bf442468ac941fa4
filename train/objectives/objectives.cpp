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

// Anchored supervised fine-tuning (LLaMA-Factory's asft_loss_func): DFT, and what the model's
// probabilities of all tokens have left of a reference's.
class AnchoredObjective final : public Objective {
 public:
  explicit AnchoredObjective(double divergence) : divergence_(divergence) {}
  std::string_view name() const override { return "use_asft_loss"; }
  OperatorName loss_operator() const override { return OperatorName::divergence_cross_entropy; }
  // As LLaMA-Factory: a micro-batch has its own mean, and is not divided by accumulation.
  Division division() const override { return Division::kRanks; }
  bool asks_reference_logits() const override { return true; }
  std::unique_ptr<const Loss> loss_of(const Asked& asked) const override {
    return std::make_unique<AnchoredLoss>(divergence_, asked);
  }
  Result<TargetLosses> losses_of(const TargetTokens&) const override {
    TROUPE_CHECK(false, "{} asks nothing of the log-probabilities", name());
    return TargetLosses();
  }

 private:
  class AnchoredLoss final : public Loss {
   public:
    AnchoredLoss(double divergence, const Asked& asked) : divergence_(divergence), asked_(asked) {}
    Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                    std::span<float> losses) const override {
      const auto first = static_cast<std::size_t>(chunk.first * chunk.classes);
      const auto count = static_cast<std::size_t>(chunk.rows * chunk.classes);
      TROUPE_CHECK(first + count <= asked_.reference_logits.size(), "targets without a reference");
      reference_.assign(
          asked_.reference_logits.begin() + static_cast<std::ptrdiff_t>(first),
          asked_.reference_logits.begin() + static_cast<std::ptrdiff_t>(first + count));
      operators.divergence_cross_entropy(
          chunk.logits, chunk.targets.data(), reference_.data(), losses.data(),
          gradient ? scale : 0.0f, static_cast<float>(divergence_),
          gradient ? Elements(chunk.bf16_gradient) : Elements(), chunk.rows, chunk.classes);
      return {};
    }

   private:
    const double divergence_;
    const Asked& asked_;
    mutable std::vector<float> reference_;  // the chunk's, which the operator destroys
  };

  const double divergence_;
};

class DftObjective final : public Objective {
 public:
  std::string_view name() const override { return "use_dft_loss"; }
  Together together() const override { return Together::kNone; }
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
  if (options.anchored) return std::make_unique<AnchoredObjective>(*options.anchored);
  if (options.dft) return std::make_unique<DftObjective>();
  if (options.entropy_adaptive)
    return std::make_unique<OnePassObjective<EntropyAdaptiveLoss>>(
        "use_eaft_loss", OperatorName::entropy_weighted_cross_entropy,
        EntropyAdaptiveLoss(*options.entropy_adaptive));
  return std::make_unique<OnePassObjective<CrossEntropyLoss>>(
      "cross-entropy", OperatorName::cross_entropy, CrossEntropyLoss());
}

}  // namespace troupe::train
