#pragma once
// Random tensors, and derivatives by finite differences.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/random.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"

namespace troupe::train::tests {

using Vector = std::vector<float>;

inline Vector random_vector(std::int64_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  Vector out(static_cast<std::size_t>(count));
  for (float& x : out) x = static_cast<float>(2.0 * random.unit() - 1.0);
  return out;
}

inline double inner_product(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Compares `gradient` with central differences of `value` in some elements of `x`.
inline void check_gradient(Vector& x, const Vector& gradient, const std::function<double()>& value,
                           double tolerance = 2e-3) {
  REQUIRE(x.size() == gradient.size());
  const std::size_t stride = x.size() / 23 + 1;
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const float old = x[i], h = 1e-2f;
    x[i] = old + h;
    const double above = value();
    x[i] = old - h;
    const double below = value();
    x[i] = old;
    CAPTURE(i);
    CHECK(std::abs((above - below) / (2 * h) - gradient[i]) <
          tolerance * (1.0 + std::abs(gradient[i])));
  }
}

struct OperatorFixture {
  explicit OperatorFixture(int threads = 1)
      : arena(threads), operators(make_cpu_operators(arena)) {}
  Arena arena;
  std::unique_ptr<Operators> operators;
};

}  // namespace troupe::train::tests
