#include "train/parts/own_objective.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

class ObjectiveOfTargets final : public Objective {
 public:
  explicit ObjectiveOfTargets(std::shared_ptr<const TargetObjective> own) : own_(std::move(own)) {}
  std::string_view name() const override { return own_->name(); }
  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses found{.losses = std::vector<float>(targets.tokens.size()),
                       .derivatives = std::vector<float>(targets.tokens.size())};
    TROUPE_RETURN_IF_ERROR(own_->evaluate({.rows = targets.batch.rows,
                                           .length = targets.batch.length,
                                           .ids = targets.batch.ids,
                                           .labels = targets.batch.labels,
                                           .segments = targets.batch.segment_ids,
                                           .tokens = targets.tokens,
                                           .log_probabilities = targets.log_probabilities},
                                          found.losses, found.derivatives));
    return found;
  }

 private:
  const std::shared_ptr<const TargetObjective> own_;
};

// Row by row, where the logits lie.
class LossOfLogits final : public Loss {
 public:
  explicit LossOfLogits(const LogitsObjective& own) : own_(own) {}
  Status evaluate(Operators&, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    const auto classes = static_cast<std::size_t>(chunk.classes);
    for (std::size_t row = 0; row < static_cast<std::size_t>(chunk.rows); ++row) {
      const std::span<float> logits(chunk.logits + row * classes, classes);
      losses[row] = own_.evaluate(logits, chunk.targets[row], gradient);
      if (!gradient) continue;
      for (float& derivative : logits) derivative *= scale;
      if (chunk.bf16_gradient)
        bf16_from_float(logits.data(), chunk.bf16_gradient + row * classes, classes);
    }
    return {};
  }

 private:
  const LogitsObjective& own_;
};

class ObjectiveOfLogits final : public Objective {
 public:
  explicit ObjectiveOfLogits(std::shared_ptr<const LogitsObjective> own)
      : own_(std::move(own)), loss_(*own_) {}
  std::string_view name() const override { return own_->name(); }
  const Loss* own_loss() const override { return &loss_; }
  Result<TargetLosses> losses_of(const TargetTokens&) const override {
    TROUPE_CHECK(false, "{} asks nothing of the log-probabilities", name());
    return TargetLosses();
  }

 private:
  const std::shared_ptr<const LogitsObjective> own_;
  const LossOfLogits loss_;
};

}  // namespace

std::shared_ptr<const Objective> run_objective(std::shared_ptr<const TargetObjective> own) {
  return std::make_shared<ObjectiveOfTargets>(std::move(own));
}
std::shared_ptr<const Objective> run_objective(std::shared_ptr<const LogitsObjective> own) {
  return std::make_shared<ObjectiveOfLogits>(std::move(own));
}

}  // namespace troupe::train
