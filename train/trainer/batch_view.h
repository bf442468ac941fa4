#pragma once
// A batch of samples as a model's passes take it.

#include "train/data/token_dataset.h"
#include "train/model/micro_batch.h"

namespace troupe::train {

// A view of `tokens`, which outlive it; without dropout.
inline MicroBatch view_of(const TokenBatch& tokens) {
  return {.rows = tokens.rows,
          .length = tokens.length,
          .ids = tokens.ids,
          .labels = tokens.labels,
          .position_ids = tokens.position_ids,
          .segment_ids = tokens.segment_ids,
          .desirable = tokens.desirable,
          .reference = tokens.reference};
}

}  // namespace troupe::train
