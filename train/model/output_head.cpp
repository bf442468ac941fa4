#include "train/model/output_head.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/model/model_family.h"

namespace troupe::train {
namespace {

// Rows times what each is to be multiplied with: neighbours with the same weight at once, as those
// of a sequence mostly are.
void scale_rows(Operators& operators, Elements rows, std::span<const float> weights,
                std::int64_t width) {
  for (std::size_t begin = 0; begin < weights.size();) {
    std::size_t end = begin + 1;
    while (end < weights.size() && weights[end] == weights[begin]) ++end;
    operators.scale(rows + static_cast<std::int64_t>(begin) * width, width, weights[begin],
                    static_cast<std::int64_t>(end - begin), width);
    begin = end;
  }
}

}  // namespace

OutputHead::OutputHead(const ModelConfig& config, const ModelLayout& layout, Operators& operators)
    : config_(config),
      operators_(operators),
      unit_(layout.units() - 1),
      value_head_(layout.trainables().value_head),
      tied_(config.tie_word_embeddings && !value_head_),
      norm_(config, layout, end_names(config).final_norm),
      output_(layout, {value_head_ ? kValueHeadModule : end_names(config).output}, false) {
  std::vector<GradientRange> written;
  output_unit_ = tied_ ? 0 : unit_;
  classes_ = value_head_ ? 1 : config.vocab_size;
  append_written(unit_, written);
  rest_ = GradientRest(layout.trained(), unit_, written);
  trains_ = layout.trains(unit_), trains_output_ = layout.trains(output_unit_);
  without_targets_ = GradientRest(layout.trained(), output_unit_, {});
}

void OutputHead::append_written(int unit, std::vector<GradientRange>& ranges) const {
  if (unit == output_unit_) output_.append_written(ranges);
}

Result<OutputHead::Pass> OutputHead::begin(UnitAccess& units, bool gradient) const {
  const Phase phase = gradient ? Phase::kBackward : Phase::kForward;
  HeldUnit own = TROUPE_TRY(HeldUnit::acquire(units, unit_, phase));
  std::optional<HeldUnit> embedding;
  if (tied_) embedding.emplace(TROUPE_TRY(HeldUnit::acquire(units, 0, phase)));
  Pass pass(std::move(own), std::move(embedding));
  pass.gradient = gradient;
  if (gradient && trains_) {
    pass.norm_gradient = TROUPE_TRY(units.gradient(unit_));
    rest_.zero(operators_, pass.norm_gradient);
  }
  if (gradient && trains_output_) pass.output_gradient = TROUPE_TRY(units.gradient(output_unit_));
  return pass;
}

void OutputHead::chunk_inputs(const Pass& pass, std::int64_t begin, std::int64_t rows,
                              Activations& a) const {
  const Elements stream = a.stream(config_.num_hidden_layers);
  operators_.embedding_forward(a.target_tokens + begin, stream.data, stream.type, a.head_input,
                               rows, config_.hidden_size);
  norm_.forward(operators_, pass.norm(), a.head_input, a.head_normed, a.head_statistics, rows);
}

void OutputHead::some_logits(const Pass& pass, std::int64_t first, std::int64_t rows,
                             Activations& a) const {
  output_.forward(operators_, pass.output(), a.head_normed + first * config_.hidden_size, a.logits,
                  rows);
}

void OutputHead::chunk_backward(const Pass& pass, std::int64_t begin, std::int64_t rows,
                                std::span<const float> weights, Activations& a) const {
  const std::int64_t width = config_.hidden_size;
  const ConstElements dlogits =
      has_narrow_gradients(a) ? ConstElements(a.logit_gradients) : ConstElements(a.logits);
  UnitGradient output_gradient = pass.output_gradient;
  // The first chunk writes, the others add.
  if (begin > 0) output_gradient.fresh = false;
  // A row's weight is as well in what its gradients are multiplied with, which is narrow.
  scale_rows(operators_, a.head_normed, weights, width);
  output_.backward_weight(operators_, pass.output(), dlogits, a.head_normed, output_gradient, rows);
  output_.backward_input(operators_, pass.output(), dlogits, a.head_gradient, rows);
  scale_rows(operators_, a.head_gradient, weights, width);
  // The row of zeros that comes first in bf16.
  const std::int64_t before = a.gradient_rows ? 1 : 0;
  operators_.zero(a.head_input_gradient, (before + rows) * width);
  norm_.backward(operators_, pass.norm(), a.head_gradient, a.head_input, a.head_statistics,
                 a.head_input_gradient + before * width, pass.norm_gradient, rows);
  if (!a.gradient_rows) {
    operators_.embedding_backward(a.target_tokens + begin, a.head_input_gradient,
                                  a.stream_gradient.fp32(), rows, width);
    return;
  }
  // Rows are scattered into sums in fp32 alone. No token has two: each fetches its own, or zeros.
  const auto chunk = static_cast<std::size_t>(begin / a.head_rows);
  const std::int64_t first = a.chunk_tokens[chunk], end = a.chunk_tokens[chunk + 1];
  operators_.embedding_forward(a.gradient_rows + first, a.head_input_gradient.data,
                               a.head_input_gradient.type, a.stream_gradient + first * width,
                               end - first, width);
}

Status OutputHead::evaluate_chunk(const Pass& pass, std::int64_t begin, std::int64_t rows,
                                  const Loss& loss, float scale, bool gradient, Activations& a,
                                  LossSum& sum) const {
  const auto count = static_cast<std::size_t>(rows);
  const bool narrow = has_narrow_gradients(a);
  TROUPE_CHECK(!narrow || output_.arithmetic(pass.output()) == Arithmetic::kBf16,
               "activations of bf16 products with parameters in fp32");
  chunk_inputs(pass, begin, rows, a);
  for (std::int64_t at = 0; at < rows; at += a.logit_rows) {
    const std::int64_t some = std::min(a.logit_rows, rows - at);
    const auto some_count = static_cast<std::size_t>(some);
    some_logits(pass, at, some, a);
    TROUPE_RETURN_IF_ERROR(loss.evaluate(operators_,
                                         {a.logits,
                                          some,
                                          classes_,
                                          begin + at,
                                          {a.targets + begin + at, some_count},
                                          {a.target_tokens + begin + at, some_count},
                                          narrow ? a.logit_gradients + at * classes_ : nullptr},
                                         scale, gradient, {a.losses + at, some_count}));
  }
  operators_.download(a.losses, a.host_losses.data(), count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) sum.loss_sum += a.host_losses[i];
  sum.target_count += rows;
  loss.on_host(std::span(a.host_losses).first(count));
  return {};
}

std::vector<std::int64_t> OutputHead::chunk_ends(const Pass& pass, const Loss& loss,
                                                 const Activations& a) const {
  // In fp16 what is not scaled is lost; a device that stores bf16 knows fixed chunks alone.
  if (a.gradient_rows || output_.arithmetic(pass.output()) == Arithmetic::kFp16 ||
      !operators_.supports(OperatorName::scale))
    return {};
  std::vector<std::int64_t> ends;
  std::int64_t begin = 0, last = 0;  // of the chunk that is put together
  for (const std::int64_t end : loss.group_ends()) {
    if (end - begin > a.head_rows && last > begin) ends.push_back(begin = last);
    if (end - begin > a.head_rows) return {};
    last = end;
  }
  if (last > begin) ends.push_back(last);
  return ends;
}

Status OutputHead::run_chunks(const Pass& pass, std::int64_t target_count, const Loss& loss,
                              float scale, Activations& activations, LossSum& sum) const {
  // Values that are not rounded into a place of their own stay where they were computed.
  const std::int64_t rows =
      value_head_ ? std::min(activations.head_rows, activations.logit_rows) : activations.head_rows;
  for (std::int64_t at = 0; at < target_count; at += rows) {
    const std::int64_t count = std::min(rows, target_count - at);
    TROUPE_RETURN_IF_ERROR(
        evaluate_chunk(pass, at, count, loss, scale, pass.gradient, activations, sum));
    if (pass.gradient) chunk_backward(pass, at, count, {}, activations);
  }
  return {};
}

Result<LossSum> OutputHead::run(std::int64_t target_count, UnitAccess& units, const Loss& loss,
                                float scale, bool gradient, Activations& activations) const {
  Pass pass = TROUPE_TRY(begin(units, gradient));
  if (gradient && trains_output_ && target_count == 0)
    without_targets_.zero(operators_, pass.output_gradient);
  LossSum sum;
  const Loss* const first = loss.look();
  const auto chunks =
      first && gradient ? chunk_ends(pass, loss, activations) : std::vector<std::int64_t>();
  if (first && chunks.empty()) {
    LossSum seen;
    pass.gradient = false;
    TROUPE_RETURN_IF_ERROR(run_chunks(pass, target_count, *first, 1.0f, activations, seen));
    TROUPE_RETURN_IF_ERROR(loss.looked(0, target_count));
    pass.gradient = gradient;
    // What was shown first is all that is asked.
    if (!gradient) return seen;
  }
  if (chunks.empty())
    TROUPE_RETURN_IF_ERROR(run_chunks(pass, target_count, loss, scale, activations, sum));
  std::vector<float> weights;
  std::int64_t begin = 0;
  for (const std::int64_t end : chunks) {
    TROUPE_RETURN_IF_ERROR(
        evaluate_chunk(pass, begin, end - begin, *first, 1.0f, true, activations, sum));
    TROUPE_RETURN_IF_ERROR(loss.looked(begin, end));
    const auto found = loss.weights().subspan(static_cast<std::size_t>(begin),
                                              static_cast<std::size_t>(end - begin));
    weights.assign(found.begin(), found.end());
    for (float& weight : weights) weight *= scale;
    chunk_backward(pass, begin, end - begin, weights, activations);
    begin = end;
  }
  if (gradient && trains_) TROUPE_RETURN_IF_ERROR(units.gradient_done(unit_));
  return sum;
}

Status OutputHead::logits(std::int64_t count, UnitAccess& units, Activations& activations,
                          std::span<float> out) const {
  const std::int64_t classes = classes_;
  const Pass pass = TROUPE_TRY(begin(units, false));
  for (std::int64_t at = 0; at < count; at += activations.logit_rows) {
    const std::int64_t rows = std::min(activations.logit_rows, count - at);
    chunk_inputs(pass, at, rows, activations);
    some_logits(pass, 0, rows, activations);
    operators_.download(activations.logits, out.data() + at * classes,
                        static_cast<std::size_t>(rows * classes) * sizeof(float));
  }
  return {};
}

}  // namespace troupe::train
