#include "train/model/llama_model.h"

#include <algorithm>
#include <optional>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// A unit's parameters for as long as the object lives.
class HeldUnit {
 public:
  static Result<HeldUnit> acquire(UnitAccess& units, int unit, Phase phase) {
    const UnitParameters parameters = TROUPE_TRY(units.acquire(unit, phase));
    return HeldUnit(units, unit, phase, parameters);
  }
  HeldUnit(HeldUnit&& other) noexcept
      : units_(std::exchange(other.units_, nullptr)),
        unit_(other.unit_),
        phase_(other.phase_),
        parameters_(other.parameters_) {}
  HeldUnit& operator=(HeldUnit&&) = delete;
  ~HeldUnit() {
    if (units_) units_->release(unit_, phase_);
  }
  const UnitParameters& parameters() const { return parameters_; }

 private:
  HeldUnit(UnitAccess& units, int unit, Phase phase, const UnitParameters& parameters)
      : units_(&units), unit_(unit), phase_(phase), parameters_(parameters) {}
  UnitAccess* units_;
  int unit_;
  Phase phase_;
  UnitParameters parameters_;
};

int block_unit(std::int64_t layer) { return static_cast<int>(layer) + 1; }

}  // namespace

// stream: (N, C) output of the blocks. Gradient pointers are null in forward-only passes.
struct LlamaModel::Head {
  const float* stream = nullptr;
  UnitParameters norm_unit;
  UnitParameters output_unit;
  float* norm_gradient = nullptr;
  float* output_gradient = nullptr;
};

LlamaModel::LlamaModel(const ModelConfig& config, Operators& operators)
    : config_(config),
      layout_(config_),
      operators_(operators),
      block_(config_, layout_, operators),
      output_(layout_,
              {config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"}),
      embedding_(parameter_ref(layout_, "model.embed_tokens.weight")),
      final_norm_(parameter_ref(layout_, "model.norm.weight")) {}

std::unique_ptr<Model> make_model(const ModelConfig& config, Operators& operators) {
  return std::make_unique<LlamaModel>(config, operators);
}

Result<BatchShape> LlamaModel::prepare(const MicroBatch& batch, Activations& activations) const {
  TROUPE_RETURN_IF_ERROR(check_micro_batch(config_, batch));
  const ActivationOptions& options = activations.options();
  if (batch.length > options.length_max || batch.tokens() > options.rows_max * options.length_max)
    return error(Code::kInvalidArgument,
                 "a micro-batch of {} rows of {} tokens does not fit activations for {} rows of {}",
                 batch.rows, batch.length, options.rows_max, options.length_max);
  std::vector<std::int32_t>& host = activations.host_integers;
  const auto tokens = static_cast<std::size_t>(batch.tokens());
  const auto length = static_cast<std::size_t>(batch.length);
  const std::size_t bytes = tokens * sizeof(std::int32_t);
  operators_.upload(batch.ids.data(), activations.ids, bytes);
  for (std::size_t i = 0; i < tokens; ++i)
    host[i] =
        batch.position_ids.empty() ? static_cast<std::int32_t>(i % length) : batch.position_ids[i];
  operators_.upload(host.data(), activations.positions, bytes);
  for (std::size_t i = 0; i < tokens && !batch.segment_ids.empty(); ++i) {
    const bool continues = i % length != 0 && batch.segment_ids[i] == batch.segment_ids[i - 1];
    host[i] = continues ? host[i - 1] : static_cast<std::int32_t>(i % length);
  }
  operators_.upload(host.data(), activations.first_key, bytes);
  return BatchShape{batch.rows, batch.length, !batch.segment_ids.empty()};
}

std::int64_t LlamaModel::prepare_targets(const MicroBatch& batch, Activations& activations) const {
  std::vector<std::int32_t>& host = activations.host_integers;
  const auto collect = [&](auto&& value_of, std::int32_t* device) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i + 1 < batch.tokens(); ++i) {
      if ((i + 1) % batch.length == 0) continue;
      const std::int32_t target = batch.labels[static_cast<std::size_t>(i) + 1];
      if (target != kIgnoreLabel) host[static_cast<std::size_t>(count++)] = value_of(i, target);
    }
    operators_.upload(host.data(), device, static_cast<std::size_t>(count) * sizeof(std::int32_t));
    return count;
  };
  collect([](std::int64_t, std::int32_t target) { return target; }, activations.targets);
  return collect([](std::int64_t i, std::int32_t) { return static_cast<std::int32_t>(i); },
                 activations.target_tokens);
}

Status LlamaModel::forward_blocks(const BatchShape& shape, UnitAccess& units,
                                  Activations& activations, KvCache* cache) {
  {
    const HeldUnit embedding = TROUPE_TRY(HeldUnit::acquire(units, 0, Phase::kForward));
    operators_.embedding_forward(activations.ids, embedding.parameters().matrix(embedding_),
                                 embedding.parameters().dtype, activations.stream(0),
                                 shape.tokens(), config_.hidden_size);
  }
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, block_unit(layer), Phase::kForward));
    block_.forward(unit.parameters(), layer, shape, activations.stream(layer),
                   activations.stream(layer + 1), activations.block(layer), activations, cache);
  }
  return {};
}

Status LlamaModel::backward_blocks(const BatchShape& shape, UnitAccess& units,
                                   Activations& activations) {
  for (std::int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) {
    const int index = block_unit(layer);
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, index, Phase::kBackward));
    const std::span<float> gradient = TROUPE_TRY(units.gradient(index));
    if (activations.recomputes_blocks())
      block_.forward(unit.parameters(), layer, shape, activations.stream(layer), nullptr,
                     activations.block(layer), activations, nullptr);
    block_.backward(unit.parameters(), gradient.data(), shape, activations.stream(layer),
                    activations.block(layer), activations);
    TROUPE_RETURN_IF_ERROR(units.gradient_done(index));
  }
  const std::span<float> gradient = TROUPE_TRY(units.gradient(0));
  operators_.embedding_backward(activations.ids, activations.stream_gradient, gradient.data(),
                                shape.tokens(), config_.hidden_size);
  return units.gradient_done(0);
}

void LlamaModel::head_logits(const Head& head, std::int64_t begin, std::int64_t rows,
                             Activations& activations) const {
  const std::int64_t width = config_.hidden_size;
  operators_.embedding_forward(activations.target_tokens + begin, head.stream, DType::kF32,
                               activations.head_input, rows, width);
  operators_.rms_norm_forward(activations.head_input, head.norm_unit.vector(final_norm_),
                              activations.head_normed, activations.head_rstd, rows, width,
                              static_cast<float>(config_.rms_norm_eps));
  output_.forward(operators_, head.output_unit, activations.head_normed, activations.logits, rows);
}

Status LlamaModel::run_head_chunk(const Head& head, std::int64_t begin, std::int64_t rows,
                                  const Loss& loss, float scale, Activations& a, LossSum& sum) {
  const std::int64_t width = config_.hidden_size;
  const auto count = static_cast<std::size_t>(rows);
  const bool gradient = head.norm_gradient != nullptr;
  head_logits(head, begin, rows, a);
  TROUPE_RETURN_IF_ERROR(loss.evaluate(operators_,
                                       {a.logits,
                                        rows,
                                        config_.vocab_size,
                                        {a.targets + begin, count},
                                        {a.target_tokens + begin, count}},
                                       scale, gradient, {a.losses, count}));
  operators_.download(a.losses, a.host_losses.data(), count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) sum.loss_sum += a.host_losses[i];
  sum.target_count += rows;
  if (!gradient) return {};
  output_.backward_weight(operators_, head.output_unit.arithmetic(), a.logits, a.head_normed,
                          head.output_gradient, rows);
  output_.backward_input(operators_, head.output_unit, a.logits, a.head_gradient, rows);
  operators_.zero(a.head_input_gradient, rows * width);
  operators_.rms_norm_backward(a.head_gradient, a.head_input, head.norm_unit.vector(final_norm_),
                               a.head_rstd, a.head_input_gradient,
                               head.norm_gradient + final_norm_.offset, rows, width);
  operators_.embedding_backward(a.target_tokens + begin, a.head_input_gradient, a.stream_gradient,
                                rows, width);
  return {};
}

Result<LossSum> LlamaModel::run_head(std::int64_t target_count, UnitAccess& units, const Loss& loss,
                                     float scale, bool gradient, Activations& activations) {
  const Phase phase = gradient ? Phase::kBackward : Phase::kForward;
  const HeldUnit norm = TROUPE_TRY(HeldUnit::acquire(units, head_unit(), phase));
  std::optional<HeldUnit> tied;
  if (config_.tie_word_embeddings) tied.emplace(TROUPE_TRY(HeldUnit::acquire(units, 0, phase)));
  Head head;
  head.stream = activations.stream(config_.num_hidden_layers);
  head.norm_unit = norm.parameters();
  head.output_unit = tied ? tied->parameters() : norm.parameters();
  if (gradient) {
    head.norm_gradient = TROUPE_TRY(units.gradient(head_unit())).data();
    head.output_gradient = tied ? TROUPE_TRY(units.gradient(0)).data() : head.norm_gradient;
  }
  LossSum sum;
  for (std::int64_t begin = 0; begin < target_count; begin += activations.head_rows)
    TROUPE_RETURN_IF_ERROR(run_head_chunk(head, begin,
                                          std::min(activations.head_rows, target_count - begin),
                                          loss, scale, activations, sum));
  if (gradient) TROUPE_RETURN_IF_ERROR(units.gradient_done(head_unit()));
  return sum;
}

Result<LossSum> LlamaModel::forward_backward(const MicroBatch& batch, UnitAccess& units,
                                             const Loss& loss, float scale,
                                             Activations& activations) {
  TROUPE_CHECK(activations.options().training, "activations for forward passes only");
  if (batch.labels.empty()) return error(Code::kInvalidArgument, "the micro-batch has no labels");
  const BatchShape shape = TROUPE_TRY(prepare(batch, activations));
  const std::int64_t targets = prepare_targets(batch, activations);
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, nullptr));
  operators_.zero(activations.stream_gradient, shape.tokens() * config_.hidden_size);
  const LossSum sum = TROUPE_TRY(run_head(targets, units, loss, scale, true, activations));
  TROUPE_RETURN_IF_ERROR(backward_blocks(shape, units, activations));
  return sum;
}

Result<LossSum> LlamaModel::forward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                                    Activations& activations) {
  if (batch.labels.empty()) return error(Code::kInvalidArgument, "the micro-batch has no labels");
  const BatchShape shape = TROUPE_TRY(prepare(batch, activations));
  const std::int64_t targets = prepare_targets(batch, activations);
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, nullptr));
  return run_head(targets, units, loss, 1.0f, false, activations);
}

Status LlamaModel::logits(const MicroBatch& batch, UnitAccess& units, Activations& activations,
                          std::span<float> out) {
  const BatchShape shape = TROUPE_TRY(prepare(batch, activations));
  const std::int64_t tokens = shape.tokens(), classes = config_.vocab_size;
  if (static_cast<std::int64_t>(out.size()) != tokens * classes)
    return error(Code::kInvalidArgument, "{} elements for the logits of {} tokens", out.size(),
                 tokens);
  for (std::int64_t i = 0; i < tokens; ++i)
    activations.host_integers[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  operators_.upload(activations.host_integers.data(), activations.target_tokens,
                    static_cast<std::size_t>(tokens) * sizeof(std::int32_t));
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, nullptr));
  const HeldUnit norm = TROUPE_TRY(HeldUnit::acquire(units, head_unit(), Phase::kForward));
  std::optional<HeldUnit> tied;
  if (config_.tie_word_embeddings)
    tied.emplace(TROUPE_TRY(HeldUnit::acquire(units, 0, Phase::kForward)));
  const Head head{activations.stream(config_.num_hidden_layers), norm.parameters(),
                  tied ? tied->parameters() : norm.parameters(), nullptr, nullptr};
  for (std::int64_t begin = 0; begin < tokens; begin += activations.head_rows) {
    const std::int64_t rows = std::min(activations.head_rows, tokens - begin);
    head_logits(head, begin, rows, activations);
    operators_.download(activations.logits, out.data() + begin * classes,
                        static_cast<std::size_t>(rows * classes) * sizeof(float));
  }
  return {};
}

Status LlamaModel::decode(std::span<const std::int32_t> ids, KvCache& cache, UnitAccess& units,
                          Activations& activations, std::span<float> logits) {
  const auto count = static_cast<std::int64_t>(ids.size());
  TROUPE_CHECK(cache.capacity() <= activations.options().length_max, "{} of {}", cache.capacity(),
               activations.options().length_max);
  if (cache.length() + count > cache.capacity())
    return error(Code::kInvalidArgument, "{} tokens do not fit a context of {} that holds {}",
                 count, cache.capacity(), cache.length());
  if (static_cast<std::int64_t>(logits.size()) != config_.vocab_size)
    return error(Code::kInvalidArgument, "{} elements for {} logits", logits.size(),
                 config_.vocab_size);
  const BatchShape shape = TROUPE_TRY(prepare(
      {.rows = 1, .length = count, .ids = ids, .labels = {}, .position_ids = {}, .segment_ids = {}},
      activations));
  for (std::int64_t i = 0; i < count; ++i)
    activations.host_integers[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(cache.length() + i);
  operators_.upload(activations.host_integers.data(), activations.positions,
                    ids.size() * sizeof(std::int32_t));
  TROUPE_RETURN_IF_ERROR(forward_blocks(shape, units, activations, &cache));
  cache.advance(count);

  const HeldUnit norm = TROUPE_TRY(HeldUnit::acquire(units, head_unit(), Phase::kForward));
  std::optional<HeldUnit> tied;
  if (config_.tie_word_embeddings)
    tied.emplace(TROUPE_TRY(HeldUnit::acquire(units, 0, Phase::kForward)));
  const Head head{activations.stream(config_.num_hidden_layers), norm.parameters(),
                  tied ? tied->parameters() : norm.parameters(), nullptr, nullptr};
  const auto last = static_cast<std::int32_t>(count - 1);
  operators_.upload(&last, activations.target_tokens, sizeof last);
  head_logits(head, 0, 1, activations);
  operators_.download(activations.logits, logits.data(), logits.size_bytes());
  return {};
}

}  // namespace troupe::train
