#include "train/optimizer/random_rounding.h"

namespace troupe::train {
namespace {

// SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// Steps of one run never share a key: both mixings are bijections.
std::uint64_t rounding_key(std::uint64_t seed, std::int64_t step) {
  return mixed(mixed(seed) + static_cast<std::uint64_t>(step));
}

}  // namespace troupe::train
