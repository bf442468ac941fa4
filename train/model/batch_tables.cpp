#include "train/model/batch_tables.h"

#include <algorithm>

namespace troupe::train {
namespace {

Status check_fits(const ModelConfig& config, const MicroBatch& batch, std::int64_t past,
                  const ActivationOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_micro_batch(config, batch));
  // Where positions begin anew within a row, it may be longer than they reach.
  const std::int64_t reach =
      batch.position_ids.empty()
          ? batch.length
          : *std::max_element(batch.position_ids.begin(), batch.position_ids.end()) + 1;
  if (reach > options.length_max || batch.tokens() > options.rows_max * options.length_max)
    return error(Code::kInvalidArgument,
                 "a micro-batch of {} rows of {} tokens does not fit activations for {} rows of {}",
                 batch.rows, batch.length, options.rows_max, options.length_max);
  if (past + reach > config.length_limit().value_or(past + reach))
    return error(Code::kInvalidArgument,
                 "a row of {} tokens is longer than the model's position table of {}; use a "
                 "shorter cutoff_len",
                 past + reach, *config.length_limit());
  return {};
}

}  // namespace

Result<BatchShape> prepare_batch(const ModelConfig& config, const MicroBatch& batch,
                                 std::int64_t past, Operators& operators,
                                 Activations& activations) {
  TROUPE_RETURN_IF_ERROR(check_fits(config, batch, past, activations.options()));
  std::vector<std::int32_t>& host = activations.host_integers;
  const auto tokens = static_cast<std::size_t>(batch.tokens());
  const auto length = static_cast<std::size_t>(batch.length);
  const auto upload = [&](const std::int32_t* from, std::int32_t* to) {
    operators.upload(from, to, tokens * sizeof(std::int32_t));
  };
  upload(batch.ids.data(), activations.ids);
  for (std::size_t i = 0; i < tokens; ++i)
    host[i] = batch.position_ids.empty()
                  ? static_cast<std::int32_t>(past + static_cast<std::int64_t>(i % length))
                  : batch.position_ids[i];
  upload(host.data(), activations.positions);

  BatchShape shape{batch.rows, batch.length, !batch.segment_ids.empty(), false};
  for (std::size_t i = 0; i < tokens; ++i) {
    const bool begins =
        shape.segments && (i % length == 0 || batch.segment_ids[i] != batch.segment_ids[i - 1]);
    if (i % length == 0)
      host[i] = 0;
    else
      host[i] = begins ? static_cast<std::int32_t>(i % length) : host[i - 1];
  }
  if (shape.segments) upload(host.data(), activations.first_key);
  if (!activations.window_first_key) return shape;
  const std::int64_t window = *config.sliding_window;
  if (past + batch.length <= window) return shape;
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::int64_t first = past + static_cast<std::int64_t>(i % length) - window + 1;
    host[i] = std::max(host[i], static_cast<std::int32_t>(first));
  }
  upload(host.data(), activations.window_first_key);
  shape.windowed = true;
  return shape;
}

Result<BatchShape> prepare_next_tokens(const ModelConfig& config, std::span<const std::int32_t> ids,
                                       std::span<const std::int32_t> lengths, Operators& operators,
                                       Activations& activations) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t reach = *std::max_element(lengths.begin(), lengths.end()) + 1;
  if (count > activations.options().length_max || reach > activations.options().length_max)
    return error(Code::kInvalidArgument,
                 "{} sequences of up to {} tokens do not fit activations for {}", count, reach,
                 activations.options().length_max);
  const MicroBatch batch{.rows = count, .length = 1, .ids = ids};
  // Positions of a micro-batch count within its rows; these go on behind what is cached.
  BatchShape shape = TROUPE_TRY(prepare_batch(config, batch, reach - 1, operators, activations));
  operators.upload(lengths.data(), activations.positions, lengths.size_bytes());
  if (!shape.windowed) return shape;
  std::vector<std::int32_t>& host = activations.host_integers;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    host[i] = static_cast<std::int32_t>(
        std::max<std::int64_t>(0, lengths[i] - *config.sliding_window + 1));
  operators.upload(host.data(), activations.window_first_key, lengths.size_bytes());
  return shape;
}

Status prepare_dropout(const MicroBatch& batch, Operators& operators,
                       const Activations& activations, BatchShape& shape) {
  if (!activations.dropout_samples) return {};
  const DropoutTokens& tokens = batch.dropout;
  for (const auto& [name, values] :
       {std::pair("samples", tokens.samples), std::pair("places", tokens.places)})
    if (static_cast<std::int64_t>(values.size()) != batch.tokens())
      return error(Code::kInvalidArgument,
                   "the model has dropout, and the micro-batch names {} {} for the masks of {} "
                   "tokens",
                   values.size(), name, batch.tokens());
  operators.upload(tokens.samples.data(), activations.dropout_samples, tokens.samples.size_bytes());
  operators.upload(tokens.places.data(), activations.dropout_places, tokens.places.size_bytes());
  shape.drops = true;
  shape.dropout_seed = tokens.seed, shape.dropout_epoch = tokens.epoch;
  return {};
}

std::int64_t prepare_targets(const MicroBatch& batch, Operators& operators,
                             Activations& activations) {
  std::vector<std::int32_t>& host = activations.host_integers;
  const auto collect = [&](auto&& value_of, std::int32_t* device) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < batch.tokens(); ++i) {
      if (!batch.has_target(i)) continue;
      const std::int32_t target =
          batch.targets_ends ? 0 : batch.labels[static_cast<std::size_t>(i) + 1];
      host[static_cast<std::size_t>(count++)] = value_of(i, target);
    }
    operators.upload(host.data(), device, static_cast<std::size_t>(count) * sizeof(std::int32_t));
    return count;
  };
  if (activations.gradient_rows) {
    std::vector<std::int64_t>& chunks = activations.chunk_tokens;
    chunks.clear();
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < batch.tokens(); ++i) {
      const std::int64_t row = batch.has_target(i) ? count++ % activations.head_rows : -1;
      if (row == 0) chunks.push_back(i);
      host[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row + 1);
    }
    chunks.push_back(batch.tokens());
    operators.upload(host.data(), activations.gradient_rows,
                     static_cast<std::size_t>(batch.tokens()) * sizeof(std::int32_t));
  }
  collect([](std::int64_t, std::int32_t target) { return target; }, activations.targets);
  return collect([](std::int64_t i, std::int32_t) { return static_cast<std::int32_t>(i); },
                 activations.target_tokens);
}

void prepare_tokens(std::int64_t first, std::int64_t count, Operators& operators,
                    Activations& activations) {
  for (std::int64_t i = 0; i < count; ++i)
    activations.host_integers[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(first + i);
  operators.upload(activations.host_integers.data(), activations.target_tokens,
                   static_cast<std::size_t>(count) * sizeof(std::int32_t));
}

}  // namespace troupe::train
