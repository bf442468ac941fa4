#pragma once
// The attention half of a layer, without its norm:
//   Wo·attention(positions(head norms(Wqkv·x)))
// with biases, norms over heads, rotation and windows where the configuration has them.

#include <cstdint>
#include <span>

#include "train/model/activations.h"
#include "train/model/batch_shape.h"
#include "train/model/kv_cache.h"
#include "train/model/linear.h"
#include "train/model/model_config.h"
#include "train/model/model_family.h"

namespace troupe::train {

class AttentionLayer {
 public:
  // `names` are those of the layer.
  AttentionLayer(const ModelConfig& config, const ModelLayout& layout, const LayerNames& names,
                 Operators& operators);

  // Below, kept and scratch are the pass's.
  // kept.attention_input → kept.attention and what backward needs. With caches, one for
  // each row, tokens are appended to them (the caller advances them) and attend to all that they
  // hold.
  void attend(const UnitParameters& unit, const LayerPass& pass,
              std::span<KvCache* const> caches) const;
  // kept.attention → y (N, C).
  void project(const UnitParameters& unit, const LayerPass& pass, Elements y) const;

  // From dy, the gradient of project's result, to scratch.qkv_gradient; adds what dy says of the
  // output's weights.
  void backward_attention(const UnitParameters& unit, const UnitGradient& gradient,
                          const LayerPass& pass, ConstElements dy) const;
  // From scratch.qkv_gradient to dx, the gradient of kept.attention_input, which must be there. A
  // null dx is not wanted.
  void backward_input(const UnitParameters& unit, const UnitGradient& gradient,
                      const LayerPass& pass, Elements dx) const;
  // What the two write in a fresh gradient.
  void append_written(std::vector<GradientRange>& ranges) const {
    qkv_.append_written(ranges);
    output_.append_written(ranges);
  }

 private:
  AttentionShape attention_shape(const UnitParameters& unit, const LayerPass& pass) const;
  // kept.qkv → kept.attention_qkv: norms and rotation.
  void place(const UnitParameters& unit, const LayerPass& pass) const;
  void rotate(Elements qkv, const LayerPass& pass, RopeDirection direction) const;
  // What normed query and key heads are multiplied by, after `place`: (head_dim) each.
  struct HeadWeights {
    const float *query, *key;
  };
  HeadWeights head_weights(const UnitParameters& unit, const LayerPass& pass) const;

  const ModelConfig& config_;
  Operators& operators_;
  Linear qkv_, output_;
  ParameterRef query_norm_, key_norm_;
};

}  // namespace troupe::train
