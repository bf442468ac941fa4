#include "train/model/decoder_model.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/model/batch_tables.h"
#include "train/model/held_unit.h"

namespace troupe::train {
namespace {

int block_unit(std::int64_t layer) { return static_cast<int>(layer) + 1; }

// A layer's passes as blocks of the operators' table.
int forward_pass(std::int64_t layer) { return static_cast<int>(2 * layer); }
int backward_pass(std::int64_t layer) { return static_cast<int>(2 * layer + 1); }

Status no_labels() { return error(Code::kInvalidArgument, "the micro-batch has no labels"); }

}  // namespace

DecoderModel::DecoderModel(const ModelConfig& config, ModelLayout layout, Operators& operators)
    : config_(config),
      layout_(std::move(layout)),
      operators_(operators),
      embedding_(config_, layout_, operators),
      head_(config_, layout_, operators) {
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
    layers_.emplace_back(config_, layout_, layer, operators);
  std::vector<GradientRange> written;
  head_.append_written(0, written);
  embedding_rest_ = GradientRest(layout_.trained(), 0, written);
}

Status check_operators(const ModelConfig& config, const Operators& operators) {
  for (const auto names :
       {config.embedding->operators, config.norm->operators, config.activation->operators})
    TROUPE_RETURN_IF_ERROR(
        needs_operators(operators, names, fmt::format("model_type={}", config.model_type)));
  return {};
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Operators& operators,
                                  const Trainables& trainables) {
  return std::make_unique<DecoderModel>(config, ModelLayout(config, trainables), operators);
}

std::unique_ptr<Model> make_reference(const ModelConfig& config, Operators& operators,
                                      const Trainables& trainables) {
  return std::make_unique<DecoderModel>(config, ModelLayout(config, trainables).of_reference(),
                                        operators);
}

Status DecoderModel::forward_blocks(const BatchShape& shape, UnitAccess& units,
                                    Activations& activations, std::span<KvCache* const> caches) {
  {
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, 0, Phase::kForward));
    TROUPE_CHECK(activations.options().type == DType::kF32 ||
                     embedding_.dtype(unit.parameters()) == DType::kBF16,
                 "activations in bf16 with parameters in fp32");
    embedding_.forward(shape, unit.parameters(), activations);
  }
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, block_unit(layer), Phase::kForward));
    const auto pass = [&] {
      layer_at(layer).forward(unit.parameters(), shape, activations.stream(layer),
                              activations.stream(layer + 1), activations.of_layer(layer),
                              activations, caches);
    };
    // With a cache no two calls are the same.
    if (!caches.empty()) {
      pass();
      continue;
    }
    const OperatorBlock recorded(operators_, forward_pass(layer));
    pass();
  }
  return {};
}

Status DecoderModel::backward_blocks(const BatchShape& shape, UnitAccess& units,
                                     Activations& activations) {
  const bool trains_embedding = layout_.trains(0);
  const std::int64_t first = trains_embedding ? 0 : layout_.first_trained_layer();
  for (std::int64_t layer = config_.num_hidden_layers - 1; layer >= first; --layer) {
    const int index = block_unit(layer);
    const bool trains = layout_.trains(index);
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, index, Phase::kBackward));
    const UnitGradient gradient = trains ? TROUPE_TRY(units.gradient(index)) : UnitGradient{};
    {
      const OperatorBlock recorded(operators_, backward_pass(layer));
      if (activations.recomputes_layers())
        layer_at(layer).forward(unit.parameters(), shape, activations.stream(layer), nullptr,
                                activations.of_layer(layer), activations, {});
      layer_at(layer).backward(unit.parameters(), gradient, shape, activations.stream(layer),
                               activations.of_layer(layer), activations,
                               layer > first || trains_embedding);
    }
    if (trains) TROUPE_RETURN_IF_ERROR(units.gradient_done(index));
  }
  if (!trains_embedding) return {};
  // Rows are added to. With tied embeddings the head, which came first, has written the matrix.
  const UnitGradient gradient = TROUPE_TRY(units.gradient(0));
  embedding_rest_.zero(operators_, gradient);
  embedding_.backward(shape, gradient, activations);
  return units.gradient_done(0);
}

Result<LossSum> DecoderModel::forward_backward(const MicroBatch& batch, UnitAccess& units,
                                               const Loss& loss, float scale,
                                               Activations& activations) {
  TROUPE_CHECK(activations.options().training, "activations for forward passes only");
  if (batch.labels.empty()) return no_labels();
  BatchShape shape = TROUPE_TRY(prepare_batch(config_, batch, 0, operators_, activations));
  TROUPE_RETURN_IF_ERROR(prepare_dropout(batch, operators_, activations, shape));
  const std::int64_t targets = prepare_targets(batch, operators_, activations);
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, {}));
  operators_.zero(activations.stream_gradient, shape.tokens() * config_.hidden_size);
  const LossSum sum = TROUPE_TRY(head_.run(targets, units, loss, scale, true, activations));
  TROUPE_RETURN_IF_ERROR(backward_blocks(shape, units, activations));
  TROUPE_RETURN_IF_ERROR(operators_.failure());
  return sum;
}

Result<LossSum> DecoderModel::forward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                                      Activations& activations) {
  if (batch.labels.empty()) return no_labels();
  const BatchShape shape = TROUPE_TRY(prepare_batch(config_, batch, 0, operators_, activations));
  const std::int64_t targets = prepare_targets(batch, operators_, activations);
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, {}));
  const LossSum sum = TROUPE_TRY(head_.run(targets, units, loss, 1.0f, false, activations));
  TROUPE_RETURN_IF_ERROR(operators_.failure());
  return sum;
}

Status DecoderModel::logits(const MicroBatch& batch, UnitAccess& units, Activations& activations,
                            std::span<float> out) {
  const BatchShape shape = TROUPE_TRY(prepare_batch(config_, batch, 0, operators_, activations));
  if (static_cast<std::int64_t>(out.size()) != shape.tokens() * config_.vocab_size)
    return error(Code::kInvalidArgument, "{} elements for the logits of {} tokens", out.size(),
                 shape.tokens());
  prepare_tokens(0, shape.tokens(), operators_, activations);
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, {}));
  TROUPE_RETURN_IF_ERROR(head_.logits(shape.tokens(), units, activations, out));
  return operators_.failure();
}

Status DecoderModel::check_decoding(std::int64_t tokens, std::span<KvCache* const> caches,
                                    const Activations& activations,
                                    std::span<const float> logits) const {
  for (const KvCache* cache : caches) {
    TROUPE_CHECK(cache->capacity() <= activations.options().length_max, "{} of {}",
                 cache->capacity(), activations.options().length_max);
    if (cache->length() + tokens > cache->capacity())
      return error(Code::kInvalidArgument, "{} tokens do not fit a context of {} that holds {}",
                   tokens, cache->capacity(), cache->length());
  }
  if (activations.options().type != DType::kF32)
    return error(Code::kInvalidArgument,
                 "keys and values are cached in fp32: text wants activations of type F32, not {}",
                 dtype_name(activations.options().type));
  if (std::ssize(logits) != std::ssize(caches) * config_.vocab_size)
    return error(Code::kInvalidArgument, "{} elements for {} logits of {} sequences", logits.size(),
                 config_.vocab_size, caches.size());
  return {};
}

Status DecoderModel::decode(std::span<const std::int32_t> ids, KvCache& cache, UnitAccess& units,
                            Activations& activations, std::span<float> logits) {
  const auto count = static_cast<std::int64_t>(ids.size());
  KvCache* const caches[] = {&cache};
  TROUPE_RETURN_IF_ERROR(check_decoding(count, caches, activations, logits));
  const MicroBatch batch{1, count, ids, {}, {}, {}};
  const BatchShape shape =
      TROUPE_TRY(prepare_batch(config_, batch, cache.length(), operators_, activations));
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, caches));
  cache.advance(count);
  prepare_tokens(count - 1, 1, operators_, activations);
  TROUPE_RETURN_IF_ERROR(head_.logits(1, units, activations, logits));
  return operators_.failure();
}

Status DecoderModel::decode_each(std::span<const std::int32_t> ids,
                                 std::span<KvCache* const> caches, UnitAccess& units,
                                 Activations& activations, std::span<float> logits) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (ids.size() != caches.size())
    return error(Code::kInvalidArgument, "{} ids for {} sequences", ids.size(), caches.size());
  TROUPE_RETURN_IF_ERROR(check_decoding(1, caches, activations, logits));
  std::vector<std::int32_t> positions;
  for (const KvCache* cache : caches)
    positions.push_back(static_cast<std::int32_t>(cache->length()));
  const BatchShape shape =
      TROUPE_TRY(prepare_next_tokens(config_, ids, positions, operators_, activations));
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, caches));
  for (KvCache* cache : caches) cache->advance(1);
  prepare_tokens(0, count, operators_, activations);
  TROUPE_RETURN_IF_ERROR(head_.logits(count, units, activations, logits));
  return operators_.failure();
}

}  // namespace troupe::train
