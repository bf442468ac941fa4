#pragma once
// What optimizers of whole tensors have in common. Private to this folder.

#include <span>
#include <vector>

#include "train/optimizer/element_blocks.h"

namespace troupe::train {

// p·keep − direction: the chunks' part, where direction() has said all.
inline void subtract_direction(const UpdateChunk& chunk, std::optional<std::uint64_t> key,
                               float keep) {
  ElementBlocks(chunk, 1.0f, key, 0).for_each([&](const ElementBlock& block) {
    const float* const direction = chunk.directions.data() + block.at;
    for (std::int64_t i = 0; i < block.count; ++i)
      block.parameters[i] = block.parameters[i] * keep - direction[i];
  });
}

// Rows and columns of a matrix; a vector is one row.
struct MatrixShape {
  explicit MatrixShape(std::span<const std::int64_t> shape)
      : rows(shape.size() < 2 ? 1 : shape[0]), columns(shape.empty() ? 1 : shape.back()) {}
  std::int64_t rows, columns;
};

}  // namespace troupe::train
