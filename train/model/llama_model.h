#pragma once
// The Llama family over the operator table.

#include "train/model/linear.h"
#include "train/model/llama_block.h"
#include "train/model/model.h"

namespace troupe::train {

class LlamaModel final : public Model {
 public:
  LlamaModel(const ModelConfig& config, Operators& operators);

  const ModelConfig& config() const override { return config_; }
  const ParameterLayout& layout() const override { return layout_; }
  Result<LossSum> forward_backward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                                   float scale, Activations& activations) override;
  Result<LossSum> forward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                          Activations& activations) override;
  Status logits(const MicroBatch& batch, UnitAccess& units, Activations& activations,
                std::span<float> out) override;
  Status decode(std::span<const std::int32_t> ids, KvCache& cache, UnitAccess& units,
                Activations& activations, std::span<float> logits) override;

 private:
  // Checks the batch and puts its integers into the activations.
  Result<BatchShape> prepare(const MicroBatch& batch, Activations& activations) const;
  // Compacts the tokens that have a target; returns how many.
  std::int64_t prepare_targets(const MicroBatch& batch, Activations& activations) const;
  // Embedding and blocks: the result is activations.stream(num_hidden_layers).
  Status forward_blocks(const BatchShape& shape, UnitAccess& units, Activations& activations,
                        KvCache* cache);
  Status backward_blocks(const BatchShape& shape, UnitAccess& units, Activations& activations);

  struct Head;  // the head's buffers during a pass
  Result<LossSum> run_head(std::int64_t target_count, UnitAccess& units, const Loss& loss,
                           float scale, bool gradient, Activations& activations);
  Status run_head_chunk(const Head& head, std::int64_t begin, std::int64_t rows, const Loss& loss,
                        float scale, Activations& activations, LossSum& sum);
  // Logits of rows of `stream` named by target_tokens, to activations.logits.
  void head_logits(const Head& head, std::int64_t begin, std::int64_t rows,
                   Activations& activations) const;
  int head_unit() const { return static_cast<int>(layout_.units().size()) - 1; }

  ModelConfig config_;
  ParameterLayout layout_;
  Operators& operators_;
  LlamaBlock block_;
  Linear output_;  // lm_head, or the embedding when tied
  ParameterRef embedding_;
  ParameterRef final_norm_;
};

}  // namespace troupe::train
