#pragma once
// Puts a micro-batch's integers into the activations. Private to this folder.

#include <cstdint>
#include <span>

#include "train/model/activations.h"
#include "train/model/batch_shape.h"
#include "train/model/micro_batch.h"

namespace troupe::train {

// Checks the batch and fills ids, positions and first keys. The rows follow on `past` tokens that
// are in a cache (then there is one row, without positions and segments of its own).
// kInvalidArgument for what does not fit the model or the activations.
Result<BatchShape> prepare_batch(const ModelConfig& config, const MicroBatch& batch,
                                 std::int64_t past, Operators& operators, Activations& activations);

// The same for the next token of each of several sequences, which have so many already: a row of
// one token each.
Result<BatchShape> prepare_next_tokens(const ModelConfig& config, std::span<const std::int32_t> ids,
                                       std::span<const std::int32_t> lengths, Operators& operators,
                                       Activations& activations);

// What masks need, for a pass that trains: says so in `shape`. Nothing where the model has no
// dropout. kInvalidArgument where the batch does not say whose tokens it holds.
Status prepare_dropout(const MicroBatch& batch, Operators& operators,
                       const Activations& activations, BatchShape& shape);

// Compacts the tokens that have a target into target_tokens and targets; returns how many. For
// activations in bf16, gradient_rows and chunk_tokens, too.
std::int64_t prepare_targets(const MicroBatch& batch, Operators& operators,
                             Activations& activations);

// target_tokens = first, first + 1, … (count).
void prepare_tokens(std::int64_t first, std::int64_t count, Operators& operators,
                    Activations& activations);

}  // namespace troupe::train
