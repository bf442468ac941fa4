#include "train/objectives/objective.h"

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

// The cross-entropy times a weight of each target's, which may be negative.
class WeightedCrossEntropy final : public Loss {
 public:
  explicit WeightedCrossEntropy(std::span<const float> weights) : weights_(weights) {}
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override {
    TROUPE_CHECK(gradient && chunk.first + chunk.rows <= std::ssize(weights_),
                 "targets from {} on, {} of them, and {} weights", chunk.first, chunk.rows,
                 weights_.size());
    // Losses are written where the weights were.
    operators.upload(weights_.data() + chunk.first, losses.data(), losses.size_bytes());
    operators.weighted_cross_entropy(chunk.logits, chunk.targets.data(), losses.data(),
                                     losses.data(), scale, chunk.bf16_gradient, chunk.rows,
                                     chunk.classes);
    return {};
  }

 private:
  std::span<const float> weights_;
};

std::vector<std::int64_t> tokens_with_targets(const MicroBatch& batch) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < batch.rows * batch.length; ++i)
    if ((i + 1) % batch.length != 0 &&
        batch.labels[static_cast<std::size_t>(i) + 1] != kIgnoreLabel)
      tokens.push_back(i);
  return tokens;
}

LossSum sum_of(std::span<const float> losses) {
  LossSum sum{.target_count = std::ssize(losses)};
  for (const float loss : losses) sum.loss_sum += loss;
  return sum;
}

}  // namespace

Status Objective::check(const Operators& operators, const ModelConfig& model) const {
  const Status supported = needs_operators(operators, {loss_operator()}, name());
  if (own_loss()) return supported;
  // Passes without gradients have no dropout, so that the first would not be that of the second.
  if (model.has_dropout())
    return error(Code::kUnsupported,
                 "{} needs the log-probabilities of the very pass that is differentiated, which "
                 "dropout makes another one: set the dropouts of config.json to 0",
                 name());
  return supported;
}

Result<TargetLosses> Objective::look(Model& model, const MicroBatch& batch, UnitAccess& units,
                                     Activations& activations) const {
  if (own_loss()) return TargetLosses();
  std::vector<float> log_probabilities;
  TROUPE_RETURN_IF_ERROR(
      model.forward(batch, units, KeptCrossEntropy(log_probabilities), activations).status());
  for (float& value : log_probabilities) value = -value;
  const std::vector<std::int64_t> tokens = tokens_with_targets(batch);
  TROUPE_CHECK(tokens.size() == log_probabilities.size());
  TargetLosses looked = TROUPE_TRY(
      losses_of({.batch = batch, .tokens = tokens, .log_probabilities = log_probabilities}));
  TROUPE_CHECK(looked.losses.size() == tokens.size() && looked.derivatives.size() == tokens.size(),
               "{} gave {} losses and {} derivatives of {} targets", name(), looked.losses.size(),
               looked.derivatives.size(), tokens.size());
  return looked;
}

Result<LossSum> Objective::learn(Model& model, const MicroBatch& batch, UnitAccess& units,
                                 const TargetLosses& looked, float scale,
                                 Activations& activations) const {
  if (const Loss* loss = own_loss())
    return model.forward_backward(batch, units, *loss, scale, activations);
  // A cross-entropy is the negative of a log-probability.
  std::vector<float> weights = looked.derivatives;
  for (float& weight : weights) weight = -weight;
  TROUPE_RETURN_IF_ERROR(
      model.forward_backward(batch, units, WeightedCrossEntropy(weights), scale, activations)
          .status());
  return sum_of(looked.losses);
}

Result<LossSum> Objective::forward_backward(Model& model, const MicroBatch& batch,
                                            UnitAccess& units, float scale,
                                            Activations& activations) const {
  const TargetLosses looked = TROUPE_TRY(look(model, batch, units, activations));
  return learn(model, batch, units, looked, scale, activations);
}

Result<LossSum> Objective::forward(Model& model, const MicroBatch& batch, UnitAccess& units,
                                   Activations& activations) const {
  if (const Loss* loss = own_loss()) return model.forward(batch, units, *loss, activations);
  return sum_of(TROUPE_TRY(look(model, batch, units, activations)).losses);
}

}  // namespace troupe::train
