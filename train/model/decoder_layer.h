#pragma once
// One transformer layer:
//   middle = x + attention(norm(x))
//   y      = middle + mlp(norm(middle))
// What is added to the stream has a norm of its own and is dropped out before, where the
// configuration says so.

#include <cstdint>
#include <optional>
#include <span>

#include "train/model/activations.h"
#include "train/model/attention_layer.h"
#include "train/model/gradient_rest.h"
#include "train/model/mlp.h"
#include "train/model/norm.h"

namespace troupe::train {

// Layers may differ in what is trained of them: each has an object of its own.
class DecoderLayer {
 public:
  // `config` and `operators` must outlive the object.
  DecoderLayer(const ModelConfig& config, const ModelLayout& layout, std::int64_t layer,
               Operators& operators);

  // x → y, both (N, C). Keeps what backward needs in `kept`. Without y it stops where the backward
  // pass has all it needs (recomputation). With a cache, tokens are appended to it (the caller
  // advances it) and attend to all that it holds.
  void forward(const UnitParameters& unit, const BatchShape& shape, ConstElements x, Elements y,
               const LayerActivations& kept, const Activations& scratch,
               std::span<KvCache* const> caches) const;

  // scratch.stream_gradient: gradient of y in, of x out. Without `passes_on`, what is not trained
  // here is left out at the layer's begin, and stream_gradient is anything. Destroys
  // kept.mlp_product.
  void backward(const UnitParameters& unit, const UnitGradient& gradient, const BatchShape& shape,
                ConstElements x, const LayerActivations& kept, const Activations& scratch,
                bool passes_on) const;

 private:
  DecoderLayer(const ModelConfig& config, const ModelLayout& layout, std::int64_t layer,
               const LayerNames& names, Operators& operators);

  std::int64_t layer_;
  std::int64_t width_;
  double residual_dropout_;
  Operators& operators_;
  Norm attention_norm_, mlp_norm_;
  std::optional<Norm> post_attention_norm_, post_mlp_norm_;
  AttentionLayer attention_;
  Mlp mlp_;
  GradientRest rest_;
};

}  // namespace troupe::train
