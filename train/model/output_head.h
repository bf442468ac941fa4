#pragma once
// The end of the model: final norm and logits, in chunks of tokens.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/model/activations.h"
#include "train/model/held_unit.h"
#include "train/model/linear.h"
#include "train/model/loss.h"
#include "train/model/norm.h"

namespace troupe::train {

// Works on the tokens that Activations::target_tokens names, of the last layer's output.
class OutputHead {
 public:
  // `config` and `operators` must outlive the object.
  OutputHead(const ModelConfig& config, const ModelLayout& layout, Operators& operators);

  // The losses of the first `target_count` tokens, of which those of Loss::look() come first. With
  // `gradient`, also adds the gradient of Σ losses·scale to activations.stream_gradient and puts it
  // into the gradients of the units that are trained (of a fresh one of unit 0, what append_written
  // says), and says that the head's gradient is done.
  Result<LossSum> run(std::int64_t target_count, UnitAccess& units, const Loss& loss, float scale,
                      bool gradient, Activations& activations) const;
  // Logits of the first `count` tokens to host memory: (count, vocabulary).
  Status logits(std::int64_t count, UnitAccess& units, Activations& activations,
                std::span<float> out) const;
  // What run writes in the fresh gradient of this unit by products.
  void append_written(int unit, std::vector<GradientRange>& ranges) const;

 private:
  // What a pass holds. Gradients are empty in forward-only passes.
  struct Pass {
    Pass(HeldUnit own, std::optional<HeldUnit> embedding)
        : own_unit(std::move(own)), embedding_unit(std::move(embedding)) {}
    const UnitParameters& norm() const { return own_unit.parameters(); }
    const UnitParameters& output() const {
      return (embedding_unit ? *embedding_unit : own_unit).parameters();
    }
    HeldUnit own_unit;
    std::optional<HeldUnit> embedding_unit;  // when tied
    bool gradient = false;
    UnitGradient norm_gradient, output_gradient;
  };
  Result<Pass> begin(UnitAccess& units, bool gradient) const;
  // Tokens [begin, begin + rows), a chunk: their normed rows in activations.head_normed.
  void chunk_inputs(const Pass& pass, std::int64_t begin, std::int64_t rows,
                    Activations& activations) const;
  // Of a chunk's rows [first, first + rows): logits in activations.logits.
  void some_logits(const Pass& pass, std::int64_t first, std::int64_t rows,
                   Activations& activations) const;
  // Of the gradients of a chunk's logits. `weights`: what each row's are to be multiplied with;
  // empty: nothing.
  void chunk_backward(const Pass& pass, std::int64_t begin, std::int64_t rows,
                      std::span<const float> weights, Activations& activations) const;
  // The targets in chunks of whole groups (Loss::group_ends()), each as its end; empty where they
  // are to be looked at all together before the first gradient.
  std::vector<std::int64_t> chunk_ends(const Pass& pass, const Loss& loss,
                                       const Activations& activations) const;
  // Gradients of logits are rounded to bf16: not those of a value head, which has a bias.
  bool has_narrow_gradients(const Activations& activations) const {
    return activations.logit_gradients && !value_head_;
  }
  Status run_chunks(const Pass& pass, std::int64_t target_count, const Loss& loss, float scale,
                    Activations& activations, LossSum& sum) const;
  // The losses of a chunk, and with `gradient` the gradients of its logits.
  Status evaluate_chunk(const Pass& pass, std::int64_t begin, std::int64_t rows, const Loss& loss,
                        float scale, bool gradient, Activations& activations, LossSum& sum) const;

  const ModelConfig& config_;
  Operators& operators_;
  int unit_ = 0;
  bool value_head_ = false;
  bool tied_ = false;                            // the output is the embedding
  int output_unit_ = 0;                          // 0 when tied
  std::int64_t classes_ = 0;                     // outputs
  bool trains_ = false, trains_output_ = false;  // whether those units have trained parameters
  Norm norm_;
  Linear output_;  // lm_head, the embedding when tied, or a value head
  GradientRest rest_;
  GradientRest without_targets_;  // of output_unit_, where no product is computed
};

}  // namespace troupe::train
