#pragma once
// Causal attention whose products are bf16 with fp32 sums (AVX512-BF16): private to train/cpu.
//
// Queries, keys, values, probabilities and their gradients are rounded to bf16 where they enter a
// product; the softmax and everything that is summed are fp32. As in PyTorch's autocast, but for
// results, which stay fp32.

#include "train/cpu/arena.h"
#include "train/cpu/workspace.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Whether the shape asks for it and has rows enough to be worth packing (a decoded token has not).
bool attends_in_bf16(const AttentionShape& shape);

// See Operators::attention_forward. Tiles are (batch row, query head).
void bf16_attention_forward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& shape,
                            const float* q, const float* k, const float* v, float* out,
                            float* log_sum_exp);
// See Operators::attention_backward. Tiles are (batch row, key head).
void bf16_attention_backward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& shape,
                             const float* q, const float* k, const float* v, const float* out,
                             const float* log_sum_exp, const float* dout, float* dq, float* dk,
                             float* dv);

}  // namespace troupe::train
