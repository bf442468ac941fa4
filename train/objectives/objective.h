#pragma once
// What a training stage computes of a micro-batch: the loss, and what of it flows back.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/model/model.h"
#include "train/report/step_metrics.h"

namespace troupe::train {

// What an objective has asked for before the pass that trains.
struct Asked {
  std::vector<float> reference;         // log-probabilities of the targets by the reference model
  std::vector<float> reference_logits;  // (targets, classes), where those are asked for
  // How much more probable answers to other questions are to the model than to the reference: the
  // mean over this micro-batch, nothing where it has no such answers.
  std::optional<double> own_drift;
  // What the loss is computed with, at least 0. ask() gives own_drift; who trains on several ranks
  // puts the mean of all of theirs in its place.
  double drift = 0;
};

// The tokens of a micro-batch that have a target, in order.
struct TargetTokens {
  const MicroBatch& batch;
  std::span<const std::int64_t> tokens;      // row·length + place: the target is the token behind
  std::span<const float> log_probabilities;  // of the targets; with a value head the values
  const Asked& asked;
};

// Of each target: its loss, and the derivative of the sum of all losses by the target's
// log-probability (cross-entropy: minus that, and −1). Dividing is the objective's where it
// divides by less than the step: see Objective::division(). Detached factors are constants to the
// derivative.
struct TargetLosses {
  std::vector<float> losses, derivatives;
  // Losses of whole sequences, which belong to no single target.
  double sequence_loss = 0;
  MetricSums metrics = {};  // as Objective::metrics() lists them
};

// Sums over a micro-batch.
struct ObjectiveSum : LossSum {
  MetricSums metrics = {};
};

// What the forward passes of an objective work with, all of the caller's.
struct AskedModels {
  Model& model;
  Model* reference = nullptr;  // null: there is none
  UnitAccess& units;
  Activations& activations;
};

// Holds no state: one object serves steps, evaluations and memory estimates of a run, and any
// number of threads.
class Objective {
 public:
  // What the sum of a step's losses is divided by.
  enum class Division {
    kTargets,       // labels of the step, on all ranks
    kMicroBatches,  // each of which gives the mean of its own
    kRanks,         // not by a rank's micro-batches, each of which gives its mean
  };

  virtual ~Objective() = default;

  // As in messages: "DFT".
  virtual std::string_view name() const = 0;
  // The loss of an objective in which each target's follows from its own logits: one pass does it,
  // and nothing is asked of the log-probabilities. The object's; null for others.
  virtual const Loss* own_loss() const { return nullptr; }
  // What gradients of logits are made with.
  virtual OperatorName loss_operator() const { return OperatorName::weighted_cross_entropy; }
  // The pure function of the log-probabilities; both results have an entry for each target. Not
  // called where there is an own_loss().
  virtual Result<TargetLosses> losses_of(const TargetTokens& targets) const = 0;

  virtual Division division() const { return Division::kTargets; }
  // Which targets' derivatives depend on one another's log-probabilities. losses_of() is asked for
  // the derivatives of some as soon as theirs are known: the others' are 0 then.
  enum class Together { kAll, kPairs, kSequences, kNone };
  virtual Together together() const { return Together::kAll; }
  // The model has a value head: targets are the last tokens of sequences.
  virtual bool judges_values() const { return false; }
  virtual bool asks_reference() const { return false; }
  // Logits of the targets instead of their log-probabilities.
  virtual bool asks_reference_logits() const { return false; }
  virtual bool asks_drift() const { return false; }
  virtual std::span<const MetricInfo> metrics() const { return {}; }
  // The loss of objectives in which each target's follows from its own logits and from what was
  // asked, both of which outlive it; a micro-batch has the mean of its targets. Null for others.
  virtual std::unique_ptr<const Loss> loss_of(const Asked& asked) const;
  bool asks() const { return asks_reference() || asks_reference_logits() || asks_drift(); }

  // Ok, or why these operators, or a model of this configuration, cannot be trained by it.
  Status check(const Operators& operators, const ModelConfig& model) const;

  // Forward passes alone, before the pass that trains; none where asks() says so. Without a
  // reference, what it says is known: of each label, in MicroBatch::reference. `others`: the
  // answers to other questions, of objectives that ask for the drift, with no targets where this
  // rank has no sample. Collective where `models.units` are.
  Result<Asked> ask(const AskedModels& models, const MicroBatch& batch,
                    const MicroBatch& others) const;
  // The pass that gives gradients of Σ losses·scale: see Model::forward_backward.
  Result<ObjectiveSum> forward_backward(Model& model, const MicroBatch& batch, UnitAccess& units,
                                        float scale, Activations& activations,
                                        const Asked& asked = {}) const;
  // The losses alone, for evaluation. `hits`: receives of each target, in order, whether no token
  // was more probable; nothing of objectives that judge values.
  Result<ObjectiveSum> forward(Model& model, const MicroBatch& batch, UnitAccess& units,
                               Activations& activations, const Asked& asked = {},
                               std::vector<bool>* hits = nullptr) const;
};

// The log-probabilities of a micro-batch's targets, in order. Collective where `units` are.
Result<std::vector<float>> target_log_probabilities(Model& model, const MicroBatch& batch,
                                                    UnitAccess& units, Activations& activations);

// What is asked of a reference whose answers are known (MicroBatch::reference).
Asked known_answers(const MicroBatch& batch);

// The targets [first, end) of each sequence of a batch (a row, or a segment of one), in order.
struct SequenceTargets {
  std::size_t first = 0, end = 0;
};
std::vector<SequenceTargets> targets_by_sequence(const MicroBatch& batch,
                                                 std::span<const std::int64_t> tokens);

}  // namespace troupe::train
