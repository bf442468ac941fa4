#pragma once
// NumPy's generators, as far as orders of data sets are drawn from them.

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace troupe::train {

// numpy.random.default_rng(seed): PCG XSL RR 128/64.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(std::uint64_t seed);

  // In [0, most]: the low bits of halves of the generator's words, until one is not above.
  std::uint32_t bounded(std::uint32_t most);
  // .random(): in [0, 1).
  double uniform();
  // .integers(0, most + 1): the high bits of products, by Lemire's method.
  std::uint32_t integer(std::uint32_t most);
  // .integers(0, 1 << 63).
  std::uint64_t integer63() { return next64() >> 1; }

 private:
  __extension__ using Uint128 = unsigned __int128;
  std::uint64_t next64();
  std::uint32_t next32();

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  std::optional<std::uint32_t> half_;
};

// numpy.random.default_rng(seed).permutation(order.size()).
void numpy_permute(std::span<std::uint32_t> order, std::uint64_t seed);
std::vector<std::uint32_t> numpy_permutation(std::uint32_t count, std::uint64_t seed);

// numpy.random.default_rng(seed).choice(n, size=…, p=shares), one draw after another. Shares need
// not sum to 1; one of them at least is above 0.
class NumpyChoice {
 public:
  NumpyChoice(std::uint64_t seed, std::span<const double> shares);
  std::size_t next();

 private:
  NumpyGenerator generator_;
  std::vector<double> sums_;
};

// numpy.random as a whole after numpy.random.seed(seed): what is drawn depends on what was before.
class NumpyGlobal {
 public:
  explicit NumpyGlobal(std::uint32_t seed) : generator_(seed) {}
  // permutation(order.size()).
  void permute(std::span<std::uint32_t> order);
  // The next of choice(count, size=…); count is above 0.
  std::uint32_t choice(std::uint32_t count) { return bounded(count - 1); }

 private:
  std::uint32_t bounded(std::uint32_t most);
  std::mt19937 generator_;
};

}  // namespace troupe::train
