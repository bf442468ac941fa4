#include "train/model/embedding.h"

#include "train/model/dropout_site.h"
#include "train/model/model_family.h"

namespace troupe::train {
namespace {

void look_up(const EmbeddingPass& pass, const std::int32_t* ids, const ParameterRef& table,
             const UnitParameters& unit, Elements x) {
  pass.operators.embedding_forward(ids, unit.matrix(table), unit.dtype(table), x, pass.tokens,
                                   pass.config.hidden_size);
}

void add_gradient(const EmbeddingPass& pass, const std::int32_t* ids, const ParameterRef& table,
                  const UnitGradient& gradient, Elements dx) {
  if (!table.frozen)
    pass.operators.embedding_backward(ids, dx, gradient.at(table), pass.tokens,
                                      pass.config.hidden_size);
}

}  // namespace

const EmbeddingKind kTokenEmbedding{
    .operators = {OperatorName::embedding_forward, OperatorName::embedding_backward},
    .forward = [](const EmbeddingPass& pass, const UnitParameters& unit,
                  Elements x) { look_up(pass, pass.activations.ids, pass.token, unit, x); },
    .backward =
        [](const EmbeddingPass& pass, const UnitGradient& gradient, Elements dx) {
          add_gradient(pass, pass.activations.ids, pass.token, gradient, dx);
        }};

const EmbeddingKind kTokenAndPositionEmbedding{
    .operators = {OperatorName::embedding_forward, OperatorName::embedding_backward},
    .forward =
        [](const EmbeddingPass& pass, const UnitParameters& unit, Elements x) {
          kTokenEmbedding.forward(pass, unit, x);
          const Elements position = pass.activations.delta;
          look_up(pass, pass.activations.positions, pass.position, unit, position);
          pass.operators.add(x, position, x, pass.tokens * pass.config.hidden_size);
        },
    .backward =
        [](const EmbeddingPass& pass, const UnitGradient& gradient, Elements dx) {
          kTokenEmbedding.backward(pass, gradient, dx);
          add_gradient(pass, pass.activations.positions, pass.position, gradient, dx);
        }};

Embedding::Embedding(const ModelConfig& config, const ModelLayout& layout, Operators& operators)
    : config_(config), operators_(operators) {
  const EndNames names = end_names(config);
  token_ = layout.ref(names.token_embedding + ".weight");
  if (!names.position_embedding.empty())
    position_ = layout.ref(names.position_embedding + ".weight");
}

void Embedding::forward(const BatchShape& shape, const UnitParameters& unit,
                        const Activations& activations) const {
  config_.embedding->forward(pass(shape, activations), unit, activations.stream(0));
  drop(shape, activations.stream(0), activations);
}

void Embedding::backward(const BatchShape& shape, const UnitGradient& gradient,
                         const Activations& activations) const {
  drop(shape, activations.stream_gradient, activations);
  config_.embedding->backward(pass(shape, activations), gradient, activations.stream_gradient);
}

void Embedding::drop(const BatchShape& shape, Elements x, const Activations& activations) const {
  if (const Dropout drop =
          dropout_at(DropoutPlace::kEmbedding, 0, config_.embedding_dropout, shape, activations))
    operators_.dropout(drop, x, nullptr, x, shape.tokens(), config_.hidden_size);
}

}  // namespace troupe::train
