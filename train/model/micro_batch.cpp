#include "train/model/micro_batch.h"

#include <string_view>

namespace troupe::train {
namespace {

Status check_size(std::string_view what, std::span<const std::int32_t> values,
                  std::int64_t expected) {
  if (static_cast<std::int64_t>(values.size()) == expected) return {};
  return error(Code::kInvalidArgument, "the micro-batch has {} {} for {} tokens", values.size(),
               what, expected);
}

Status check_range(std::string_view what, std::span<const std::int32_t> values, std::int64_t length,
                   std::int64_t end, std::int32_t also) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((values[i] >= 0 && values[i] < end) || values[i] == also) continue;
    return error(Code::kInvalidArgument, "{} {} at row {}, token {} is not in 0 … {}", what,
                 values[i], static_cast<std::int64_t>(i) / length,
                 static_cast<std::int64_t>(i) % length, end - 1);
  }
  return {};
}

}  // namespace

Status check_micro_batch(const ModelConfig& config, const MicroBatch& batch) {
  if (batch.rows < 1 || batch.length < 1)
    return error(Code::kInvalidArgument, "a micro-batch of {} rows of {} tokens is empty",
                 batch.rows, batch.length);
  TROUPE_RETURN_IF_ERROR(check_size("ids", batch.ids, batch.tokens()));
  TROUPE_RETURN_IF_ERROR(check_range("token id", batch.ids, batch.length, config.vocab_size, 0));
  if (!batch.labels.empty()) {
    TROUPE_RETURN_IF_ERROR(check_size("labels", batch.labels, batch.tokens()));
    TROUPE_RETURN_IF_ERROR(
        check_range("label", batch.labels, batch.length, config.vocab_size, kIgnoreLabel));
  }
  if (!batch.position_ids.empty()) {
    TROUPE_RETURN_IF_ERROR(check_size("position_ids", batch.position_ids, batch.tokens()));
    TROUPE_RETURN_IF_ERROR(
        check_range("position", batch.position_ids, batch.length, batch.length, 0));
  }
  if (!batch.segment_ids.empty())
    TROUPE_RETURN_IF_ERROR(check_size("segment_ids", batch.segment_ids, batch.tokens()));
  return {};
}

std::int64_t count_targets(const MicroBatch& batch) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < batch.labels.size(); ++i)
    count += batch.labels[i] != kIgnoreLabel && static_cast<std::int64_t>(i) % batch.length != 0;
  return count;
}

}  // namespace troupe::train
