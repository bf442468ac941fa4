#include "train/model/loss.h"

namespace troupe::train {

Status CrossEntropyLoss::evaluate(Operators& operators, const LogitsChunk& chunk, float scale,
                                  bool gradient, std::span<float> losses) const {
  if (gradient && chunk.bf16_gradient)
    operators.cross_entropy_bf16(chunk.logits, chunk.targets.data(), losses.data(), scale,
                                 chunk.bf16_gradient, chunk.rows, chunk.classes);
  else
    operators.cross_entropy(chunk.logits, chunk.targets.data(), losses.data(), scale, gradient,
                            chunk.rows, chunk.classes);
  return {};
}

}  // namespace troupe::train
