#include "train/adapters/adapter_initialize.h"

#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kWeyl = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64: a bijection that spreads every bit.
std::uint64_t spread(std::uint64_t x) {
  x += kWeyl;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void initialize_lora_a(std::string_view name, std::int64_t in, std::uint64_t seed,
                       std::int64_t begin, std::span<float> out) {
  TROUPE_CHECK(in > 0 && begin >= 0, "{} {}", in, begin);
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const std::uint64_t stream = spread(seed ^ xxh3_64(bytes_of(name)));
  auto index = static_cast<std::uint64_t>(begin);
  for (float& value : out) {
    // 24 bits: exact in a float, so that the largest value stays below the bound.
    const auto bits = static_cast<double>(spread(stream + index++ * kWeyl) >> 40);
    value = static_cast<float>(bound * (bits * 0x1p-23 - 1.0));
  }
}

}  // namespace troupe::train
