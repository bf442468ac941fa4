#include "train/objectives/objective.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// The cross-entropy, of which the host keeps each target's.
class KeptCrossEntropy final : public Loss {
 public:
  explicit KeptCrossEntropy(std::vector<float>& losses) : losses_(losses) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    return CrossEntropyLoss().evaluate(operators, chunk, scale, gradient, losses);
  }
  void on_host(std::span<const float> losses) const override {
    losses_.insert(losses_.end(), losses.begin(), losses.end());
  }

 private:
  std::vector<float>& losses_;
};

// A value head's outputs, one for each target, for the host.
class KeptValues final : public Loss {
 public:
  explicit KeptValues(std::vector<float>& values) : values_(values) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float, bool,
                  std::span<float> losses) const override {
    TROUPE_CHECK(chunk.classes == 1, "{} outputs of a value head", chunk.classes);
    chunk_.resize(losses.size());
    operators.download(chunk.logits, chunk_.data(), losses.size_bytes());
    operators.upload(chunk_.data(), losses.data(), losses.size_bytes());
    return {};
  }
  void on_host(std::span<const float> values) const override {
    values_.insert(values_.end(), values.begin(), values.end());
  }

 private:
  std::vector<float>& values_;
  mutable std::vector<float> chunk_;
};

// All logits, for the host.
class KeptLogits final : public Loss {
 public:
  explicit KeptLogits(std::vector<float>& logits) : logits_(logits) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float, bool,
                  std::span<float> losses) const override {
    const auto count = static_cast<std::size_t>(chunk.rows * chunk.classes);
    const std::size_t before = logits_.size();
    logits_.resize(before + count);
    operators.download(chunk.logits, logits_.data() + before, count * sizeof(float));
    operators.zero(losses.data(), chunk.rows);
    return {};
  }

 private:
  std::vector<float>& logits_;
};

// A loss, and beside it whether each target is the token with the greatest logit: of equal ones the
// first.
class HitCountingLoss final : public Loss {
 public:
  HitCountingLoss(const Loss& loss, std::vector<bool>& hits) : loss_(loss), hits_(hits) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    logits_.resize(static_cast<std::size_t>(chunk.rows * chunk.classes));
    targets_.resize(chunk.targets.size());
    operators.download(chunk.logits, logits_.data(), logits_.size() * sizeof(float));
    operators.download(chunk.targets.data(), targets_.data(), chunk.targets.size_bytes());
    for (std::size_t row = 0; row < targets_.size(); ++row) {
      const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(row) * chunk.classes;
      hits_.push_back(std::max_element(begin, begin + chunk.classes) - begin == targets_[row]);
    }
    return loss_.evaluate(operators, chunk, scale, gradient, losses);
  }
  void on_host(std::span<const float> losses) const override { loss_.on_host(losses); }

 private:
  const Loss& loss_;
  std::vector<bool>& hits_;
  mutable std::vector<float> logits_;
  mutable std::vector<std::int32_t> targets_;
};

std::vector<std::int64_t> tokens_with_targets(const MicroBatch& batch) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < batch.tokens(); ++i)
    if (batch.has_target(i)) tokens.push_back(i);
  return tokens;
}

// An objective's loss: shown all targets, it asks the objective for the weights of their gradients,
// which may be of either sign. Of one pass.
class ObjectiveLoss final : public Loss {
 public:
  // `hits`: as of Objective::forward(); null: nobody wants them.
  ObjectiveLoss(const Objective& objective, const MicroBatch& batch, const Asked& asked,
                std::vector<bool>* hits = nullptr)
      : objective_(objective), batch_(batch), asked_(asked), tokens_(tokens_with_targets(batch)) {
    if (hits) counted_cross_entropy_.emplace(kept_cross_entropy_, *hits);
  }

  const Loss* look() const override {
    if (objective_.judges_values()) return &kept_values_;
    if (counted_cross_entropy_) return &*counted_cross_entropy_;
    return &kept_cross_entropy_;
  }
  Status looked(std::int64_t first, std::int64_t end) const override {
    TROUPE_CHECK(std::ssize(values_) == end && end <= std::ssize(tokens_));
    // A cross-entropy is the negative of a log-probability.
    const float sign = objective_.judges_values() ? 1.0f : -1.0f;
    shown_.resize(tokens_.size());
    weights_.resize(tokens_.size());
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); ++i)
      shown_[i] = sign * values_[i];
    looked_ = TROUPE_TRY(objective_.losses_of(
        {.batch = batch_, .tokens = tokens_, .log_probabilities = shown_, .asked = asked_}));
    TROUPE_CHECK(
        looked_.losses.size() == tokens_.size() && looked_.derivatives.size() == tokens_.size(),
        "{} gave {} losses and {} derivatives of {} targets", objective_.name(),
        looked_.losses.size(), looked_.derivatives.size(), tokens_.size());
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); ++i)
      weights_[i] = sign * looked_.derivatives[i];
    return {};
  }
  std::vector<std::int64_t> group_ends() const override {
    using Together = Objective::Together;
    const Together together = objective_.together();
    std::vector<std::int64_t> ends;
    // A value head's gradient is the weight alone.
    if (objective_.judges_values() || tokens_.empty()) return ends;
    if (together == Together::kAll) return {std::ssize(tokens_)};
    if (together == Together::kNone) {
      for (std::int64_t i = 0; i < std::ssize(tokens_); ++i) ends.push_back(i + 1);
      return ends;
    }
    const auto sequences = targets_by_sequence(batch_, tokens_);
    const std::size_t step = together == Together::kPairs ? 2 : 1;
    for (std::size_t i = step; i < sequences.size(); i += step)
      ends.push_back(static_cast<std::int64_t>(sequences[i - 1].end));
    ends.push_back(std::ssize(tokens_));
    return ends;
  }
  std::span<const float> weights() const override { return weights_; }
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    TROUPE_CHECK(gradient && chunk.first + chunk.rows <= std::ssize(weights_),
                 "targets from {} on, {} of them, and {} weights", chunk.first, chunk.rows,
                 weights_.size());
    const float* weights = weights_.data() + chunk.first;
    // Losses are written where the weights were.
    operators.upload(weights, losses.data(), losses.size_bytes());
    if (!objective_.judges_values()) {
      operators.weighted_cross_entropy(chunk.logits, chunk.targets.data(), losses.data(),
                                       losses.data(), scale, chunk.bf16_gradient, chunk.rows,
                                       chunk.classes);
      return {};
    }
    scaled_.assign(weights, weights + chunk.rows);
    for (float& weight : scaled_) weight *= scale;
    operators.upload(scaled_.data(), chunk.logits, scaled_.size() * sizeof scaled_[0]);
    return {};
  }

  ObjectiveSum sum() const {
    ObjectiveSum sum{
        {.loss_sum = looked_.sequence_loss, .target_count = std::ssize(looked_.losses)},
        looked_.metrics};
    for (const float loss : looked_.losses) sum.loss_sum += loss;
    return sum;
  }

 private:
  const Objective& objective_;
  const MicroBatch& batch_;
  const Asked& asked_;
  const std::vector<std::int64_t> tokens_;
  // Written while a pass goes on, which knows the loss as a constant.
  mutable std::vector<float> values_, shown_, weights_, scaled_;
  mutable TargetLosses looked_;
  const KeptCrossEntropy kept_cross_entropy_{values_};
  const KeptValues kept_values_{values_};
  std::optional<HitCountingLoss> counted_cross_entropy_;
};

// Of one target in the mean of all.
double share_of(const MicroBatch& batch) {
  return 1 / static_cast<double>(std::max<std::int64_t>(1, count_targets(batch)));
}

// As the objective sees it.
MicroBatch seen_by(const Objective& objective, MicroBatch batch) {
  batch.targets_ends = objective.judges_values();
  return batch;
}

}  // namespace

Result<std::vector<float>> target_log_probabilities(Model& model, const MicroBatch& batch,
                                                    UnitAccess& units, Activations& activations) {
  std::vector<float> values;
  TROUPE_RETURN_IF_ERROR(
      model.forward(batch, units, KeptCrossEntropy(values), activations).status());
  for (float& value : values) value = -value;
  return values;
}

Asked known_answers(const MicroBatch& batch) {
  Asked asked;
  for (std::int64_t i = 0; i < batch.tokens(); ++i) {
    if (!batch.has_target(i)) continue;
    TROUPE_CHECK(!batch.reference.empty(), "neither a reference nor what it says");
    asked.reference.push_back(batch.reference[static_cast<std::size_t>(i) + 1]);
  }
  return asked;
}

std::vector<SequenceTargets> targets_by_sequence(const MicroBatch& batch,
                                                 std::span<const std::int64_t> tokens) {
  std::vector<SequenceTargets> sequences;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < batch.tokens(); ++i) {
    if (!batch.ends_sequence(i)) continue;
    const std::size_t first = at;
    while (at < tokens.size() && tokens[at] <= i) ++at;
    sequences.push_back({first, at});
  }
  return sequences;
}

std::unique_ptr<const Loss> Objective::loss_of(const Asked&) const { return nullptr; }

Status Objective::check(const Operators& operators, const ModelConfig&) const {
  return needs_operators(operators, {loss_operator()}, name());
}

Result<Asked> Objective::ask(const AskedModels& models, const MicroBatch& batch,
                             const MicroBatch& others) const {
  Asked asked;
  if (!asks()) return asked;
  const auto by_reference = [&](const MicroBatch& of) -> Result<std::vector<float>> {
    if (!models.reference) return known_answers(of).reference;
    return target_log_probabilities(*models.reference, of, models.units, models.activations);
  };
  if (asks_reference_logits()) {
    TROUPE_CHECK(models.reference, "{} without a reference", name());
    asked.reference_logits.reserve(
        static_cast<std::size_t>(count_targets(batch) * models.model.config().vocab_size));
    TROUPE_RETURN_IF_ERROR(
        models.reference
            ->forward(batch, models.units, KeptLogits(asked.reference_logits), models.activations)
            .status());
    return asked;
  }
  asked.reference = TROUPE_TRY(by_reference(batch));
  if (!asks_drift()) return asked;
  const auto policy =
      TROUPE_TRY(target_log_probabilities(models.model, others, models.units, models.activations));
  const auto reference = TROUPE_TRY(by_reference(others));
  if (!policy.empty()) {
    double sum = 0;
    for (std::size_t i = 0; i < policy.size(); ++i) sum += double{policy[i]} - reference[i];
    const auto sequences = targets_by_sequence(others, {});
    asked.own_drift = sum / static_cast<double>(sequences.size());
  }
  asked.drift = std::max(0.0, asked.own_drift.value_or(0));
  return asked;
}

Result<ObjectiveSum> Objective::forward_backward(Model& model, const MicroBatch& batch,
                                                 UnitAccess& units, float scale,
                                                 Activations& activations,
                                                 const Asked& asked) const {
  if (const Loss* loss = own_loss())
    return ObjectiveSum{TROUPE_TRY(model.forward_backward(batch, units, *loss, scale, activations)),
                        {}};
  if (const auto loss = loss_of(asked)) {
    const double share = share_of(batch);
    LossSum sum = TROUPE_TRY(model.forward_backward(
        batch, units, *loss, static_cast<float>(scale * share), activations));
    sum.loss_sum *= share;
    return ObjectiveSum{sum, {}};
  }
  const MicroBatch seen = seen_by(*this, batch);
  const ObjectiveLoss loss(*this, seen, asked);
  TROUPE_RETURN_IF_ERROR(model.forward_backward(seen, units, loss, scale, activations).status());
  return loss.sum();
}

Result<ObjectiveSum> Objective::forward(Model& model, const MicroBatch& batch, UnitAccess& units,
                                        Activations& activations, const Asked& asked,
                                        std::vector<bool>* hits) const {
  const auto one_pass = [&](const Loss& loss) {
    if (hits) return model.forward(batch, units, HitCountingLoss(loss, *hits), activations);
    return model.forward(batch, units, loss, activations);
  };
  if (const Loss* loss = own_loss()) return ObjectiveSum{TROUPE_TRY(one_pass(*loss)), {}};
  if (const auto loss = loss_of(asked)) {
    LossSum sum = TROUPE_TRY(one_pass(*loss));
    sum.loss_sum *= share_of(batch);
    return ObjectiveSum{sum, {}};
  }
  const MicroBatch seen = seen_by(*this, batch);
  const ObjectiveLoss loss(*this, seen, asked, hits);
  TROUPE_RETURN_IF_ERROR(model.forward(seen, units, loss, activations).status());
  return loss.sum();
}

}  // namespace troupe::train
