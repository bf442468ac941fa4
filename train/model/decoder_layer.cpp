#include "train/model/decoder_layer.h"

#include "runtime/base/check.h"
#include "train/model/dropout_site.h"

namespace troupe::train {

DecoderLayer::DecoderLayer(const ModelConfig& config, const ModelLayout& layout, std::int64_t layer,
                           Operators& operators)
    : DecoderLayer(config, layout, layer, layer_names(config, layer), operators) {}

DecoderLayer::DecoderLayer(const ModelConfig& config, const ModelLayout& layout, std::int64_t layer,
                           const LayerNames& names, Operators& operators)
    : layer_(layer),
      width_(config.hidden_size),
      residual_dropout_(config.residual_dropout),
      operators_(operators),
      attention_norm_(config, layout, names.attention_norm),
      mlp_norm_(config, layout, names.mlp_norm),
      attention_(config, layout, names, operators),
      mlp_(config, layout, names, operators) {
  if (config.post_norms) {
    // One buffer holds the gradient of what a sub-layer gives.
    TROUPE_CHECK(residual_dropout_ == 0, "dropout behind norms");
    post_attention_norm_.emplace(config, layout, names.post_attention_norm);
    post_mlp_norm_.emplace(config, layout, names.post_mlp_norm);
  }
  std::vector<GradientRange> written;
  attention_.append_written(written);
  mlp_.append_written(written);
  rest_ = GradientRest(layout.trained(), static_cast<int>(layer) + 1, written);
}

void DecoderLayer::forward(const UnitParameters& unit, const BatchShape& shape, ConstElements x,
                           Elements y, const LayerActivations& kept, const Activations& scratch,
                           std::span<KvCache* const> caches) const {
  const std::int64_t tokens = shape.tokens();
  const LayerPass pass{layer_, &shape, &kept, &scratch};
  attention_norm_.forward(operators_, unit, x, kept.attention_input, kept.attention_statistics,
                          tokens);
  attention_.attend(unit, pass, caches);
  if (post_attention_norm_) {
    attention_.project(unit, pass, kept.attention_output);
    post_attention_norm_->forward(operators_, unit, kept.attention_output, scratch.delta,
                                  kept.attention_output_statistics, tokens);
  } else {
    attention_.project(unit, pass, scratch.delta);
  }
  const auto dropout = [&](DropoutPlace place) {
    return dropout_at(place, layer_, residual_dropout_, shape, scratch);
  };
  if (const Dropout drop = dropout(DropoutPlace::kAttentionOutput)) {
    operators_.dropout(drop, scratch.delta, x, kept.middle, tokens, width_);
    mlp_norm_.forward(operators_, unit, kept.middle, kept.mlp_input, kept.mlp_statistics, tokens);
  } else {
    mlp_norm_.residual_forward(operators_, unit, x, scratch.delta, kept.middle, kept.mlp_input,
                               kept.mlp_statistics, tokens);
  }
  mlp_.expand(unit, pass);
  if (post_mlp_norm_) {
    mlp_.contract(unit, pass, kept.mlp_output);
    post_mlp_norm_->forward(operators_, unit, kept.mlp_output, scratch.delta,
                            kept.mlp_output_statistics, tokens);
  }
  if (!y) return;
  if (!post_mlp_norm_) mlp_.contract(unit, pass, scratch.delta);
  if (const Dropout drop = dropout(DropoutPlace::kMlpOutput))
    operators_.dropout(drop, scratch.delta, kept.middle, y, tokens, width_);
  else
    operators_.add(kept.middle, scratch.delta, y, tokens * width_);
}

void DecoderLayer::backward(const UnitParameters& unit, const UnitGradient& gradient,
                            const BatchShape& shape, ConstElements x, const LayerActivations& kept,
                            const Activations& scratch, bool passes_on) const {
  const std::int64_t tokens = shape.tokens();
  const LayerPass pass{layer_, &shape, &kept, &scratch};
  const Elements dy = scratch.stream_gradient;
  rest_.zero(operators_, gradient);
  // The gradient of what a sub-layer gave, before it was added to the stream: dy, or what a norm or
  // a dropout makes of it, in a buffer that is written next by who has read it.
  const auto given = [&](DropoutPlace place, const std::optional<Norm>& norm, ConstElements output,
                         float* statistics) {
    if (norm) {
      operators_.zero(scratch.delta, tokens * width_);
      norm->backward(operators_, unit, dy, output, statistics, scratch.delta, gradient, tokens);
      return scratch.delta;
    }
    const Dropout drop = dropout_at(place, layer_, residual_dropout_, shape, scratch);
    if (!drop) return dy;
    operators_.dropout(drop, dy, nullptr, scratch.delta, tokens, width_);
    return scratch.delta;
  };
  const Elements dproduct = mlp_.backward_contract(
      unit, gradient, pass,
      given(DropoutPlace::kMlpOutput, post_mlp_norm_, kept.mlp_output, kept.mlp_output_statistics));
  if (!scratch.keeps_everything())
    mlp_norm_.apply(operators_, unit, kept.middle, kept.mlp_statistics, kept.mlp_input, tokens);
  mlp_.backward_expand(unit, gradient, pass, dproduct, scratch.delta);
  mlp_norm_.backward(operators_, unit, scratch.delta, kept.middle, kept.mlp_statistics, dy,
                     gradient, tokens);

  attention_.backward_attention(unit, gradient, pass,
                                given(DropoutPlace::kAttentionOutput, post_attention_norm_,
                                      kept.attention_output, kept.attention_output_statistics));
  if (!scratch.keeps_everything())
    attention_norm_.apply(operators_, unit, x, kept.attention_statistics, kept.attention_input,
                          tokens);
  const bool wanted = passes_on || attention_norm_.trained();
  attention_.backward_input(unit, gradient, pass, wanted ? scratch.delta : nullptr);
  if (!wanted) return;
  attention_norm_.backward(operators_, unit, scratch.delta, x, kept.attention_statistics, dy,
                           gradient, tokens);
}

}  // namespace troupe::train
