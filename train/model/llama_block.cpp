#include "train/model/llama_block.h"

#include <cmath>

namespace troupe::train {

LlamaBlock::LlamaBlock(const ModelConfig& config, const ParameterLayout& layout,
                       Operators& operators)
    : config_(config), operators_(operators) {
  const std::string prefix = "model.layers.0.";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  qkv_ = Linear(layout, {attention + "q_proj.weight", attention + "k_proj.weight",
                         attention + "v_proj.weight"});
  output_ = Linear(layout, {attention + "o_proj.weight"});
  gate_up_ = Linear(layout, {mlp + "gate_proj.weight", mlp + "up_proj.weight"});
  down_ = Linear(layout, {mlp + "down_proj.weight"});
  attention_norm_ = parameter_ref(layout, prefix + "input_layernorm.weight");
  mlp_norm_ = parameter_ref(layout, prefix + "post_attention_layernorm.weight");
}

AttentionShape LlamaBlock::attention_shape(const BatchShape& shape,
                                           const Activations& scratch) const {
  AttentionShape s;
  s.batch = shape.rows;
  s.query_length = s.key_length = shape.length;
  s.query_heads = config_.num_attention_heads;
  s.key_heads = config_.num_key_value_heads;
  s.head_dim = config_.head_dim;
  s.query_stride = s.key_stride = config_.qkv_width();
  s.key_batch_stride = s.key_length * s.key_stride;
  s.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  s.first_key = shape.segments ? scratch.first_key : nullptr;
  return s;
}

void LlamaBlock::attend(const BatchShape& shape, std::int64_t layer, const BlockActivations& kept,
                        const Activations& scratch, KvCache* cache) const {
  AttentionShape s = attention_shape(shape, scratch);
  float* keys = kept.qkv + config_.query_width();
  float* values = keys + config_.key_width();
  // Queries and keys stand side by side: one call rotates both.
  operators_.rope(kept.qkv, config_.qkv_width(), scratch.positions, scratch.cosine, scratch.sine,
                  shape.tokens(), config_.num_attention_heads + config_.num_key_value_heads,
                  config_.head_dim, RopeDirection::kForward);
  if (cache) {
    const std::int64_t width = config_.key_width(), at = cache->length() * width;
    operators_.copy_rows(keys, s.key_stride, cache->keys(layer) + at, width, shape.tokens(), width);
    operators_.copy_rows(values, s.key_stride, cache->values(layer) + at, width, shape.tokens(),
                         width);
    s.key_length = cache->length() + shape.length;
    s.key_stride = width;
    s.key_batch_stride = s.key_length * width;
    keys = cache->keys(layer), values = cache->values(layer);
  }
  operators_.attention_forward(s, kept.qkv, keys, values, kept.attention, kept.log_sum_exp);
}

void LlamaBlock::forward(const UnitParameters& unit, std::int64_t layer, const BatchShape& shape,
                         const float* x, float* y, const BlockActivations& kept,
                         const Activations& scratch, KvCache* cache) const {
  const std::int64_t tokens = shape.tokens(), width = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  operators_.rms_norm_forward(x, unit.vector(attention_norm_), kept.attention_input,
                              kept.rstd_attention, tokens, width, eps);
  qkv_.forward(operators_, unit, kept.attention_input, kept.qkv, tokens);
  attend(shape, layer, kept, scratch, cache);
  output_.forward(operators_, unit, kept.attention, scratch.delta, tokens);
  operators_.residual_rms_norm_forward(x, scratch.delta, unit.vector(mlp_norm_), kept.middle,
                                       kept.mlp_input, kept.rstd_mlp, tokens, width, eps);
  gate_up_.forward(operators_, unit, kept.mlp_input, kept.gate_up, tokens);
  if (!y) return;
  operators_.swiglu_forward(kept.gate_up, kept.mlp_hidden, tokens, config_.intermediate_size);
  down_.forward(operators_, unit, kept.mlp_hidden, scratch.delta, tokens);
  operators_.add(kept.middle, scratch.delta, y, tokens * width);
}

void LlamaBlock::backward_mlp(const UnitParameters& unit, float* unit_gradient, std::int64_t tokens,
                              const BlockActivations& kept, const Activations& scratch) const {
  float* dy = scratch.stream_gradient;
  down_.backward_input(operators_, unit, dy, scratch.hidden, tokens);
  operators_.swiglu_backward(kept.gate_up, scratch.hidden,
                             scratch.keeps_everything() ? nullptr : kept.mlp_hidden, tokens,
                             config_.intermediate_size);
  down_.backward_weight(operators_, unit.arithmetic(), dy, kept.mlp_hidden, unit_gradient, tokens);
  if (!scratch.keeps_everything())
    operators_.rms_norm_apply(kept.middle, unit.vector(mlp_norm_), kept.rstd_mlp, kept.mlp_input,
                              tokens, config_.hidden_size);
  gate_up_.backward_weight(operators_, unit.arithmetic(), kept.gate_up, kept.mlp_input,
                           unit_gradient, tokens);
  gate_up_.backward_input(operators_, unit, kept.gate_up, scratch.delta, tokens);
  operators_.rms_norm_backward(scratch.delta, kept.middle, unit.vector(mlp_norm_), kept.rstd_mlp,
                               dy, unit_gradient + mlp_norm_.offset, tokens, config_.hidden_size);
}

void LlamaBlock::backward(const UnitParameters& unit, float* unit_gradient, const BatchShape& shape,
                          const float* x, const BlockActivations& kept,
                          const Activations& scratch) const {
  const std::int64_t tokens = shape.tokens(), width = config_.hidden_size;
  backward_mlp(unit, unit_gradient, tokens, kept, scratch);

  float* dy = scratch.stream_gradient;
  output_.backward_weight(operators_, unit.arithmetic(), dy, kept.attention, unit_gradient, tokens);
  output_.backward_input(operators_, unit, dy, scratch.attention_gradient, tokens);
  const std::int64_t keys = config_.query_width(), values = keys + config_.key_width();
  float* dqkv = scratch.qkv_gradient;
  operators_.attention_backward(attention_shape(shape, scratch), kept.qkv, kept.qkv + keys,
                                kept.qkv + values, kept.attention, kept.log_sum_exp,
                                scratch.attention_gradient, dqkv, dqkv + keys, dqkv + values);
  operators_.rope(dqkv, config_.qkv_width(), scratch.positions, scratch.cosine, scratch.sine,
                  tokens, config_.num_attention_heads + config_.num_key_value_heads,
                  config_.head_dim, RopeDirection::kBackward);
  if (!scratch.keeps_everything())
    operators_.rms_norm_apply(x, unit.vector(attention_norm_), kept.rstd_attention,
                              kept.attention_input, tokens, width);
  qkv_.backward_weight(operators_, unit.arithmetic(), dqkv, kept.attention_input, unit_gradient,
                       tokens);
  qkv_.backward_input(operators_, unit, dqkv, scratch.delta, tokens);
  operators_.rms_norm_backward(scratch.delta, x, unit.vector(attention_norm_), kept.rstd_attention,
                               dy, unit_gradient + attention_norm_.offset, tokens, width);
}

}  // namespace troupe::train
