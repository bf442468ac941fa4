#pragma once
// The begin of the model: what the first layer is given of the tokens.

#include <cstdint>
#include <initializer_list>

#include "train/model/activations.h"
#include "train/model/batch_shape.h"
#include "train/model/model_config.h"
#include "train/model/model_layout.h"
#include "train/model/unit_access.h"

namespace troupe::train {

// The arguments of an embedding's functions.
struct EmbeddingPass {
  Operators& operators;
  const ModelConfig& config;
  const Activations& activations;  // ids, positions; delta is free
  std::int64_t tokens;
  ParameterRef token, position;  // matrices; the latter with learned positions
};

// An embedding as calls of operators; x and dx are (tokens, hidden size).
struct EmbeddingKind {
  std::initializer_list<OperatorName> operators;  // that it calls
  void (*forward)(const EmbeddingPass& pass, const UnitParameters& unit, Elements x);
  // Adds the gradient of what is trained; may destroy dx.
  void (*backward)(const EmbeddingPass& pass, const UnitGradient& gradient, Elements dx);
};

// kTokenEmbedding and kTokenAndPositionEmbedding are declared in model_config.h.

class Embedding {
 public:
  // `config` and `operators` must outlive the object.
  Embedding(const ModelConfig& config, const ModelLayout& layout, Operators& operators);

  // Writes activations.stream(0).
  void forward(const BatchShape& shape, const UnitParameters& unit,
               const Activations& activations) const;
  // From activations.stream_gradient, which is anything afterwards. The gradient holds something.
  void backward(const BatchShape& shape, const UnitGradient& gradient,
                const Activations& activations) const;
  // What the tokens' matrix is stored in.
  DType dtype(const UnitParameters& unit) const { return unit.dtype(token_); }

 private:
  EmbeddingPass pass(const BatchShape& shape, const Activations& activations) const {
    return {operators_, config_, activations, shape.tokens(), token_, position_};
  }
  // x, the embeddings or their gradient, in place.
  void drop(const BatchShape& shape, Elements x, const Activations& activations) const;

  const ModelConfig& config_;
  Operators& operators_;
  ParameterRef token_, position_;
};

}  // namespace troupe::train
