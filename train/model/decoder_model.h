#pragma once
// A decoder-only model of any family over the operator table.

#include "train/model/decoder_layer.h"
#include "train/model/embedding.h"
#include "train/model/model.h"
#include "train/model/output_head.h"

namespace troupe::train {

class DecoderModel final : public Model {
 public:
  DecoderModel(const ModelConfig& config, ModelLayout layout, Operators& operators);

  const ModelConfig& config() const override { return config_; }
  const ModelLayout& model_layout() const override { return layout_; }
  Result<LossSum> forward_backward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                                   float scale, Activations& activations) override;
  Result<LossSum> forward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                          Activations& activations) override;
  Status logits(const MicroBatch& batch, UnitAccess& units, Activations& activations,
                std::span<float> out) override;
  Status decode(std::span<const std::int32_t> ids, KvCache& cache, UnitAccess& units,
                Activations& activations, std::span<float> logits) override;
  Status decode_each(std::span<const std::int32_t> ids, std::span<KvCache* const> caches,
                     UnitAccess& units, Activations& activations, std::span<float> logits) override;

 private:
  // Embedding and layers: the result is activations.stream(num_hidden_layers).
  Status forward_blocks(const BatchShape& shape, UnitAccess& units, Activations& activations,
                        std::span<KvCache* const> caches);
  Status check_decoding(std::int64_t tokens, std::span<KvCache* const> caches,
                        const Activations& activations, std::span<const float> logits) const;
  Status backward_blocks(const BatchShape& shape, UnitAccess& units, Activations& activations);
  const DecoderLayer& layer_at(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }

  ModelConfig config_;
  ModelLayout layout_;
  Operators& operators_;
  std::vector<DecoderLayer> layers_;
  Embedding embedding_;
  OutputHead head_;
  GradientRest embedding_rest_;
};

}  // namespace troupe::train
