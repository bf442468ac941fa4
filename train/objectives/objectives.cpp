#include "train/objectives/objectives.h"

#include <cmath>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

class CrossEntropyObjective final : public Objective {
 public:
  std::string_view name() const override { return "cross-entropy"; }
  bool is_cross_entropy() const override { return true; }
  Result<TargetLosses> losses_of(const TargetTokens&) const override {
    TROUPE_CHECK(false, "cross-entropy asks nothing of the log-probabilities");
    return TargetLosses();
  }
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
  return std::make_unique<CrossEntropyObjective>();
}

}  // namespace troupe::train
