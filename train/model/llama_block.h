#pragma once
// One transformer block of the Llama family.
//
//   middle = x + Wo·attention(rope(Wqkv·norm(x)))
//   y      = middle + Wdown·swiglu(Wgate_up·norm(middle))

#include <cstdint>

#include "train/model/activations.h"
#include "train/model/kv_cache.h"
#include "train/model/linear.h"
#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// What a pass works on: (rows, length) tokens whose integer tables lie in the activations.
struct BatchShape {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  bool segments = false;  // the activations' first_key is in force
  std::int64_t tokens() const { return rows * length; }
};

// All blocks have one layout, so that one object serves them all.
class LlamaBlock {
 public:
  LlamaBlock(const ModelConfig& config, const ParameterLayout& layout, Operators& operators);

  // x → y, both (N, C). `unit` holds the block's parameters. Keeps what backward needs in
  // `kept`. Without y it stops where the backward pass has all it needs (recomputation). With a
  // cache, tokens are appended to it (the caller advances it) and attend to all that it holds.
  void forward(const UnitParameters& unit, std::int64_t layer, const BatchShape& shape,
               const float* x, float* y, const BlockActivations& kept, const Activations& scratch,
               KvCache* cache) const;

  // scratch.stream_gradient: gradient of y in, of x out. Adds to the unit's gradient buffer.
  // Destroys kept.gate_up.
  void backward(const UnitParameters& unit, float* unit_gradient, const BatchShape& shape,
                const float* x, const BlockActivations& kept, const Activations& scratch) const;

 private:
  AttentionShape attention_shape(const BatchShape& shape, const Activations& scratch) const;
  void attend(const BatchShape& shape, std::int64_t layer, const BlockActivations& kept,
              const Activations& scratch, KvCache* cache) const;
  void backward_mlp(const UnitParameters& unit, float* unit_gradient, std::int64_t tokens,
                    const BlockActivations& kept, const Activations& scratch) const;

  const ModelConfig& config_;
  Operators& operators_;
  Linear qkv_, output_, gate_up_, down_;
  ParameterRef attention_norm_, mlp_norm_;
};

}  // namespace troupe::train
