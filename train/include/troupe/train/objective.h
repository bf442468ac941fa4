#pragma once
// An objective of a program's own: what a language model's training makes smaller. One of two
// forms, by what a target's loss follows from:
//
//   TargetObjective   the log-probabilities of the targets, of a whole micro-batch together
//   LogitsObjective   the logits at one place, all of the vocabulary's
//
// Both give losses and their derivatives; passes, sharding, sums over ranks and the division by the
// number of the step's labels are the run's. Objects hold no state, and what a call gives is a pure
// function of what it is given and of the arguments: a step is computed again after a kill, on
// whatever rank, and must come out with the same bits. Calls may come from any thread.

#include <cstdint>
#include <span>
#include <string_view>

#include "troupe/status.h"

namespace troupe::train {

// The tokens of a micro-batch that have a target, in order: the target of a token is the one
// behind it. A token is row·length + its place in the row.
struct ScoredTargets {
  std::int64_t rows = 0, length = 0;
  std::span<const std::int32_t> ids;     // (rows, length)
  std::span<const std::int32_t> labels;  // (rows, length), −100 where nothing is to be learned
  // (rows, length), or empty: equal for the neighbours that are one sample. Empty: rows are.
  std::span<const std::int32_t> segments;
  std::span<const std::int64_t> tokens;
  std::span<const float> log_probabilities;  // of the targets, one for each of `tokens`
};

// The model passes over a micro-batch twice: forward alone for the log-probabilities, then forward
// and backward with what this makes of them. A model with dropout is refused.
class TargetObjective {
 public:
  virtual ~TargetObjective() = default;
  // As in messages: "focal loss".
  virtual std::string_view name() const = 0;
  // For each target its loss, and the derivative of the sum of all targets' losses by the target's
  // log-probability (cross-entropy: minus that, and −1). What counts as constant has no part in
  // the derivative. All spans are as long as targets.tokens. An error ends the run with it.
  virtual Status evaluate(const ScoredTargets& targets, std::span<float> losses,
                          std::span<float> derivatives) const = 0;
};

// One pass, as with the cross-entropy.
class LogitsObjective {
 public:
  virtual ~LogitsObjective() = default;
  virtual std::string_view name() const = 0;
  // The loss of one target, an index of `logits`. With `differentiates` each logit is replaced by
  // the derivative of the loss by it; else they may be left as anything.
  virtual float evaluate(std::span<float> logits, std::int32_t target,
                         bool differentiates) const = 0;
};

}  // namespace troupe::train
