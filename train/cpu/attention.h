#pragma once
// Causal attention in blocks of queries, without a T × T matrix: private to train/cpu.
//
// A block's scores lie with a row for each key and a column for each query: a vector is a key and
// 16 queries, so that maxima and sums over keys need no sums across a vector, and keys, values and
// their gradients are used where they lie. Where no query of 16 sees a key of 16, nothing is
// computed.

#include <cstdint>

#include "train/cpu/arena.h"
#include "train/cpu/workspace.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// See Operators::attention_forward. Tiles are (batch row, query head, block of queries).
void attention_forward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& shape,
                       const float* q, const float* k, const float* v, float* out,
                       float* log_sum_exp);
// See Operators::attention_backward. Tiles are (batch row, key head): one thread adds up what all
// queries say about a key, in their order.
void attention_backward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& shape,
                        const float* q, const float* k, const float* v, const float* out,
                        const float* log_sum_exp, const float* dout, float* dq, float* dk,
                        float* dv);

}  // namespace troupe::train
