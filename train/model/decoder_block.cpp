#include "train/model/decoder_block.h"

namespace troupe::train {

DecoderBlock::DecoderBlock(const ModelConfig& config, const ParameterLayout& layout,
                           Operators& operators)
    : DecoderBlock(config, layout, block_names(config, 0), operators) {}

DecoderBlock::DecoderBlock(const ModelConfig& config, const ParameterLayout& layout,
                           const BlockNames& names, Operators& operators)
    : width_(config.hidden_size),
      operators_(operators),
      attention_norm_(config, layout, names.attention_norm),
      mlp_norm_(config, layout, names.mlp_norm),
      attention_(config, layout, names, operators),
      mlp_(config, layout, names, operators) {
  std::vector<GradientRange> written;
  attention_.append_written(written);
  mlp_.append_written(written);
  rest_ = GradientRest(layout, layout.find(names.attention_norm + ".weight")->unit, written);
}

void DecoderBlock::forward(const UnitParameters& unit, std::int64_t layer, const BatchShape& shape,
                           ConstElements x, Elements y, const BlockActivations& kept,
                           const Activations& scratch, KvCache* cache) const {
  const std::int64_t tokens = shape.tokens();
  attention_norm_.forward(operators_, unit, x, kept.attention_input, kept.attention_statistics,
                          tokens);
  attention_.attend(unit, layer, shape, kept, scratch, cache);
  attention_.project(unit, kept, scratch.delta, tokens);
  mlp_norm_.residual_forward(operators_, unit, x, scratch.delta, kept.middle, kept.mlp_input,
                             kept.mlp_statistics, tokens);
  mlp_.expand(unit, kept, tokens);
  if (!y) return;
  mlp_.contract(unit, kept, scratch.delta, tokens);
  operators_.add(kept.middle, scratch.delta, y, tokens * width_);
}

void DecoderBlock::backward(const UnitParameters& unit, const UnitGradient& gradient,
                            std::int64_t layer, const BatchShape& shape, ConstElements x,
                            const BlockActivations& kept, const Activations& scratch) const {
  const std::int64_t tokens = shape.tokens();
  const Elements dy = scratch.stream_gradient;
  rest_.zero(operators_, gradient);
  mlp_.backward_contract(unit, gradient, kept, scratch, dy, tokens);
  if (!scratch.keeps_everything())
    mlp_norm_.apply(operators_, unit, kept.middle, kept.mlp_statistics, kept.mlp_input, tokens);
  mlp_.backward_expand(unit, gradient, kept, scratch.delta, tokens);
  mlp_norm_.backward(operators_, unit, scratch.delta, kept.middle, kept.mlp_statistics, dy,
                     gradient, tokens);

  attention_.backward_attention(unit, gradient, layer, shape, kept, scratch, dy);
  if (!scratch.keeps_everything())
    attention_norm_.apply(operators_, unit, x, kept.attention_statistics, kept.attention_input,
                          tokens);
  attention_.backward_input(unit, gradient, kept, scratch, scratch.delta, tokens);
  attention_norm_.backward(operators_, unit, scratch.delta, x, kept.attention_statistics, dy,
                           gradient, tokens);
}

}  // namespace troupe::train
