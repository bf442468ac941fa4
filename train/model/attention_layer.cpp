#include "train/model/attention_layer.h"

#include "train/model/dropout_site.h"
#include "train/model/norm.h"

namespace troupe::train {

AttentionLayer::AttentionLayer(const ModelConfig& config, const ModelLayout& layout,
                               const LayerNames& names, Operators& operators)
    : config_(config),
      operators_(operators),
      qkv_(layout, names.qkv, config.transposed_weights, Linear::EightBits::kAllowed,
           LinearPlace::kQkv),
      output_(layout, {names.attention_output}, config.transposed_weights,
              Linear::EightBits::kAllowed, LinearPlace::kAttentionOutput) {
  if (!config.qk_norm) return;
  query_norm_ = layout.ref(names.query_norm + ".weight");
  key_norm_ = layout.ref(names.key_norm + ".weight");
}

AttentionShape AttentionLayer::attention_shape(const UnitParameters& unit,
                                               const LayerPass& pass) const {
  const BatchShape& shape = *pass.shape;
  const Activations& scratch = *pass.scratch;
  const std::int64_t layer = pass.layer;
  AttentionShape s;
  s.batch = shape.rows;
  s.query_length = s.key_length = shape.length;
  s.query_heads = config_.num_attention_heads;
  s.key_heads = config_.num_key_value_heads;
  s.head_dim = config_.head_dim;
  s.query_stride = s.key_stride = config_.qkv_width();
  s.key_batch_stride = s.key_length * s.key_stride;
  s.scale = static_cast<float>(config_.attention_scale(layer));
  if (shape.windowed && config_.window(layer)) {
    s.first_key = scratch.window_first_key;
    if (!shape.segments) s.window = *config_.window(layer);
  } else if (shape.segments) {
    s.first_key = scratch.first_key;
  }
  s.arithmetic = qkv_.arithmetic(unit);
  s.dropout =
      dropout_at(DropoutPlace::kAttention, layer, config_.attention_dropout, shape, scratch);
  return s;
}

void AttentionLayer::rotate(Elements qkv, const LayerPass& pass, RopeDirection direction) const {
  if (config_.positions != PositionKind::kRotary) return;
  const Activations& scratch = *pass.scratch;
  const auto& table = config_.window(pass.layer) ? scratch.window_rope : scratch.rope;
  // Queries and keys stand side by side: one call rotates both.
  operators_.rope(qkv, config_.qkv_width(), scratch.positions, table.cosine, table.sine,
                  pass.tokens(), config_.num_attention_heads + config_.num_key_value_heads,
                  config_.head_dim, direction);
}

AttentionLayer::HeadWeights AttentionLayer::head_weights(const UnitParameters& unit,
                                                         const LayerPass& pass) const {
  if (config_.norm->weight_offset == 0) return {unit.vector(query_norm_), unit.vector(key_norm_)};
  const float* behind_rstd = pass.kept->head_rstd + config_.head_norm_statistics(pass.tokens());
  return {behind_rstd - 2 * config_.head_dim, behind_rstd - config_.head_dim};
}

void AttentionLayer::place(const UnitParameters& unit, const LayerPass& pass) const {
  const LayerActivations& kept = *pass.kept;
  const std::int64_t tokens = pass.tokens();
  if (config_.qk_norm) {
    const std::int64_t stride = config_.qkv_width(), keys = config_.query_width();
    const std::int64_t values = keys + config_.key_width();
    const auto eps = static_cast<float>(config_.norm_eps);
    float* rstd = kept.head_rstd;
    if (const float offset = config_.norm->weight_offset; offset != 0) {
      const std::int64_t head_dim = config_.head_dim;
      float* sums = rstd + config_.head_norm_statistics(tokens) - 2 * head_dim;
      operators_.add_number(unit.vector(query_norm_), offset, sums, head_dim);
      operators_.add_number(unit.vector(key_norm_), offset, sums + head_dim, head_dim);
    }
    const HeadWeights weights = head_weights(unit, pass);
    operators_.head_norm_forward(kept.qkv, stride, weights.query, kept.attention_qkv, stride, rstd,
                                 tokens, config_.num_attention_heads, config_.head_dim, eps);
    operators_.head_norm_forward(kept.qkv + keys, stride, weights.key, kept.attention_qkv + keys,
                                 stride, rstd + tokens * config_.num_attention_heads, tokens,
                                 config_.num_key_value_heads, config_.head_dim, eps);
    operators_.copy_rows(kept.qkv + values, stride, kept.attention_qkv + values, stride, tokens,
                         config_.key_width());
  }
  rotate(kept.attention_qkv, pass, RopeDirection::kForward);
}

void AttentionLayer::attend(const UnitParameters& unit, const LayerPass& pass,
                            std::span<KvCache* const> caches) const {
  const BatchShape& shape = *pass.shape;
  const LayerActivations& kept = *pass.kept;
  qkv_.forward(operators_, unit, kept.attention_input, kept.qkv, shape.tokens(), pass);
  place(unit, pass);
  AttentionShape s = attention_shape(unit, pass);
  Elements keys = kept.attention_qkv + config_.query_width();
  Elements values = keys + config_.key_width();
  if (caches.empty()) {
    operators_.attention_forward(s, kept.attention_qkv, keys, values, kept.attention,
                                 kept.log_sum_exp);
    return;
  }
  const std::int64_t width = config_.key_width(), stride = s.key_stride;
  s.batch = 1;
  s.key_stride = width;
  for (std::size_t row = 0; row < caches.size(); ++row) {
    KvCache& cache = *caches[row];
    const std::int64_t first = static_cast<std::int64_t>(row) * shape.length;  // of its tokens
    float* cached_keys = cache.keys(pass.layer);
    float* cached_values = cache.values(pass.layer);
    const std::int64_t at = cache.length() * width;
    operators_.copy_rows(keys + first * stride, stride, cached_keys + at, width, shape.length,
                         width);
    operators_.copy_rows(values + first * stride, stride, cached_values + at, width, shape.length,
                         width);
    AttentionShape one = s;
    one.key_length = cache.length() + shape.length;
    one.key_batch_stride = one.key_length * width;
    if (s.first_key) one.first_key = s.first_key + first;
    operators_.attention_forward(
        one, kept.attention_qkv + first * config_.qkv_width(), cached_keys, cached_values,
        kept.attention + first * config_.query_width(),
        kept.log_sum_exp + static_cast<std::int64_t>(row) * s.query_heads * shape.length);
  }
}

void AttentionLayer::project(const UnitParameters& unit, const LayerPass& pass, Elements y) const {
  output_.forward(operators_, unit, pass.kept->attention, y, pass.tokens(), pass);
}

void AttentionLayer::backward_attention(const UnitParameters& unit, const UnitGradient& gradient,
                                        const LayerPass& pass, ConstElements dy) const {
  const LayerActivations& kept = *pass.kept;
  const Activations& scratch = *pass.scratch;
  const std::int64_t tokens = pass.tokens(), stride = config_.qkv_width();
  output_.begin_backward(operators_, unit, dy, tokens, pass);
  output_.backward_weight(operators_, unit, dy, kept.attention, gradient, tokens, pass);
  output_.backward_input(operators_, unit, dy, scratch.attention_gradient, tokens, pass);
  if (config_.qk_norm && scratch.recomputes_cheap_operators()) place(unit, pass);
  const std::int64_t keys = config_.query_width(), values = keys + config_.key_width();
  const ConstElements qkv = kept.attention_qkv;
  const Elements dqkv = scratch.qkv_gradient;
  operators_.attention_backward(attention_shape(unit, pass), qkv, qkv + keys, qkv + values,
                                kept.attention, kept.log_sum_exp, scratch.attention_gradient, dqkv,
                                dqkv + keys, dqkv + values);
  rotate(dqkv, pass, RopeDirection::kBackward);
  if (!config_.qk_norm) return;
  const float* rstd = kept.head_rstd;
  const HeadWeights weights = head_weights(unit, pass);
  operators_.head_norm_backward(dqkv, stride, kept.qkv, stride, weights.query, rstd,
                                gradient.at(query_norm_), tokens, config_.num_attention_heads,
                                config_.head_dim);
  operators_.head_norm_backward(dqkv + keys, stride, kept.qkv + keys, stride, weights.key,
                                rstd + tokens * config_.num_attention_heads, gradient.at(key_norm_),
                                tokens, config_.num_key_value_heads, config_.head_dim);
}

void AttentionLayer::backward_input(const UnitParameters& unit, const UnitGradient& gradient,
                                    const LayerPass& pass, Elements dx) const {
  const ConstElements dqkv = pass.scratch->qkv_gradient;
  const std::int64_t tokens = pass.tokens();
  qkv_.begin_backward(operators_, unit, dqkv, tokens, pass);
  qkv_.backward_weight(operators_, unit, dqkv, pass.kept->attention_input, gradient, tokens, pass);
  if (dx) qkv_.backward_input(operators_, unit, dqkv, dx, tokens, pass);
}

}  // namespace troupe::train
