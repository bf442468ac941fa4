#include "train/model/loss.h"

namespace troupe::train {

Status CrossEntropyLoss::evaluate(Operators& operators, const LogitsChunk& chunk, float scale,
                                  bool gradient, std::span<float> losses) const {
  operators.cross_entropy(chunk.logits, chunk.targets.data(), losses.data(), scale, gradient,
                          chunk.rows, chunk.classes);
  return {};
}

}  // namespace troupe::train
