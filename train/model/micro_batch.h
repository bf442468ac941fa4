#pragma once
// What a model is fed.

#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "train/model/model_config.h"

namespace troupe::train {

// A label that counts for nothing.
inline constexpr std::int32_t kIgnoreLabel = -100;

// Which masks the tokens of a micro-batch have in a model with dropout: those of their samples,
// wherever they are computed. Tokens of a sample stand side by side and in order, and see no
// others.
struct DropoutTokens {
  std::uint32_t seed = 0;   // of the run
  std::uint32_t epoch = 0;  // in which the samples are drawn
  // (rows·length): each token's sample, an index of the data set, and place there.
  std::span<const std::int32_t> samples;
  std::span<const std::int32_t> places;
};

// (rows, length) tokens; all spans have rows·length elements or, where optional, none. Labels are
// in HF's form: not shifted, labels[t] is what the logits at t−1 should say (so labels[0] of a row
// never counts).
struct MicroBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> labels;
  // Optional: positions for rotary embedding, in [0, length); without them 0, 1, 2 … in each row.
  std::span<const std::int32_t> position_ids;
  // Optional: tokens attend only to their own segment, a run of equal numbers in a row.
  std::span<const std::int32_t> segment_ids;
  // Where the model has dropout, wanted by passes that train; others read it not.
  DropoutTokens dropout = {};
  // Of sequences that are judged: whether each is a good answer, in order. Else none.
  std::span<const std::uint8_t> desirable = {};
  // Optional: of each label its log-probability by a reference model, worked out before.
  std::span<const float> reference = {};
  // The last token of each sequence has a target, whatever labels say, and no other: value heads.
  bool targets_ends = false;

  std::int64_t tokens() const { return rows * length; }
  // Whether token i is the last one of a row, or of its segment.
  bool ends_sequence(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return (i + 1) % length == 0 ||
           (!segment_ids.empty() && segment_ids[at + 1] != segment_ids[at]);
  }
  // Whether a target follows token i.
  bool has_target(std::int64_t i) const {
    if (targets_ends) return ends_sequence(i);
    return (i + 1) % length != 0 && labels[static_cast<std::size_t>(i) + 1] != kIgnoreLabel;
  }
};

// Sizes, ids and labels within the vocabulary, positions within the row.
Status check_micro_batch(const ModelConfig& config, const MicroBatch& batch);

// Labels that count after the shift: what the loss is divided by, once summed over all ranks.
std::int64_t count_targets(const MicroBatch& batch);

}  // namespace troupe::train
