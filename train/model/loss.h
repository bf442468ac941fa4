#pragma once
// A loss turns chunks of logits into numbers and gradients.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Rows of logits for tokens that have a target. The rows are a micro-batch's in order; chunks come
// one after another, each token once.
struct LogitsChunk {
  float* logits = nullptr;  // (rows, classes), the implementation may destroy them
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  std::int64_t first = 0;                 // of the micro-batch's targets, the chunk's first one
  std::span<const std::int32_t> targets;  // (rows): the token that follows
  std::span<const std::int32_t> tokens;   // (rows): index of the token in the micro-batch
  // (rows, classes): where the gradient goes, rounded to bf16, instead of over the logits; or null.
  std::uint16_t* bf16_gradient = nullptr;
};

class Loss {
 public:
  virtual ~Loss() = default;
  // Writes each row's loss to `losses` (rows). With `gradient`, replaces the logits by the gradient
  // of Σ losses·scale, or writes it to chunk.bf16_gradient. Rows must not influence each other.
  virtual Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale,
                          bool gradient, std::span<float> losses) const = 0;
  // The losses of some further targets, in order, in memory of the host.
  virtual void on_host(std::span<const float> losses) const { static_cast<void>(losses); }
  // Where a target's gradient depends on other targets: the loss that they are shown to first.
  // Null: none is.
  virtual const Loss* look() const { return nullptr; }
  // Targets [first, end) have been shown, as all before them; the last call's end is all of them.
  virtual Status looked(std::int64_t, std::int64_t) const { return {}; }
  // Where each target's gradient is that of the loss shown first times a weight: the ends of groups
  // of targets within which weights depend on one another, in order, the last of them the number of
  // targets. A group is shown as a whole then, and what its gradients are made of is kept, so that
  // logits are computed once. Empty: evaluate() makes the gradients, of logits that are computed
  // again.
  virtual std::vector<std::int64_t> group_ends() const { return {}; }
  // Of all targets; of those that were looked at last they are valid.
  virtual std::span<const float> weights() const { return {}; }
};

// −log softmax(logits)[target].
class CrossEntropyLoss final : public Loss {
 public:
  Status evaluate(Operators& operators, const LogitsChunk& chunk, float scale, bool gradient,
                  std::span<float> losses) const override;
};

// Sums over a micro-batch.
struct LossSum {
  double loss_sum = 0.0;  // not scaled; not finite when a logit was not
  std::int64_t target_count = 0;
};

}  // namespace troupe::train
