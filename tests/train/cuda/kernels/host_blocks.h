#pragma once
// Kernels' bodies on the host: grids of blocks, and tensors of either type.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/base/random.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::tests {

using cuda::Bf16;
using cuda::kPack;

struct CpuReference {
  Arena arena{1};
  std::unique_ptr<Operators> operators = make_cpu_operators(arena);
  Operators* operator->() const { return operators.get(); }
};

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
// Random values that T holds.
template <class T>
std::vector<float> random_held(std::int64_t count, std::uint64_t seed, float scale = 1.0f) {
  return widened(stored<T>(random_values(count, seed, scale)));
}

// A rounding of T, of values of about 1.
template <class T>
constexpr double rounding() {
  return sizeof(T) == 4 ? 2e-6 : 8e-3;
}

inline void check_close(const std::vector<float>& found, const std::vector<float>& expected,
                        double tolerance) {
  REQUIRE(found.size() == expected.size());
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    double off = std::abs(static_cast<double>(found[i]) - expected[i]) /
                 (1.0 + std::abs(static_cast<double>(expected[i])));
    if (!(off >= 0)) off = std::isnan(found[i]) && std::isnan(expected[i]) ? 0 : 1e9;
    if (off > worst) worst = off, at = i;
  }
  CAPTURE(at);
  CAPTURE(found[at]);
  CAPTURE(expected[at]);
  CHECK(worst <= tolerance);
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

// part(T{}, a pack's size as a constant) for float and Bf16, packs and single elements.
template <class F>
void for_types_and_packs(F&& part) {
  part(float{}, std::integral_constant<int, kPack>{});
  part(float{}, std::integral_constant<int, 1>{});
  part(Bf16{}, std::integral_constant<int, kPack>{});
  part(Bf16{}, std::integral_constant<int, 1>{});
}

}  // namespace troupe::train::tests
