#pragma once
// Kernels' bodies on the host: grids of blocks, and tensors of either type.

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/random.h"
#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::tests {

using cuda::Bf16;
using cuda::kPack;

inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed,
                                        float scale = 1.0f) {
  SeededRandom random(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = scale * static_cast<float>(2.0 * random.unit() - 1.0);
  return out;
}

// Values as T holds them.
template <class T>
std::vector<T> stored(const std::vector<float>& values) {
  std::vector<T> out;
  out.reserve(values.size());
  for (const float x : values) out.push_back(cuda::narrow<T>(x));
  return out;
}
template <class T>
std::vector<float> widened(const std::vector<T>& values) {
  std::vector<float> out;
  out.reserve(values.size());
  for (const T x : values) out.push_back(cuda::widen(x));
  return out;
}

// body(block) for every block of a grid.
template <class Block, class F>
void run_grid(std::int64_t x, std::int64_t y, std::int64_t z, F&& body) {
  for (std::int64_t k = 0; k < z; ++k)
    for (std::int64_t j = 0; j < y; ++j)
      for (std::int64_t i = 0; i < x; ++i) body(Block{i, j, k});
}

// op(0 … count).
template <class Op>
void run_each(const Op& op, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) op(i);
}

}  // namespace troupe::train::tests
