#include "train/optimizer/torch_random.h"

#include <cmath>
#include <numbers>

namespace troupe::train {

TorchGenerator::TorchGenerator(std::uint64_t seed) {
  words_[0] = static_cast<std::uint32_t>(seed);
  for (std::size_t i = 1; i < kWords; ++i)
    words_[i] =
        1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
}

std::uint32_t TorchGenerator::next() {
  if (at_ == kWords) {
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint32_t y = (words_[i] & 0x80000000u) | (words_[(i + 1) % kWords] & 0x7fffffffu);
      words_[i] = words_[(i + 397) % kWords] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }
  std::uint32_t y = words_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

std::uint64_t TorchGenerator::below_int64_max() {
  const std::uint64_t high = next();
  const std::uint64_t low = next();
  return (high << 32 | low) % 0x7fffffffffffffffu;
}

void TorchGenerator::normal(std::span<float> values) {
  constexpr std::size_t kBlock = 16, kHalf = kBlock / 2;
  const auto draw = [&](std::span<float> block) {
    for (float& value : block) value = static_cast<float>(next() & 0xffffffu) * 0x1p-24f;
  };
  const auto make = [&](float* block) {
    for (std::size_t i = 0; i < kHalf; ++i) {
      const float radius = std::sqrt(-2.0f * std::log(1.0f - block[i]));
      const float angle = 2.0f * std::numbers::pi_v<float> * block[i + kHalf];
      block[i] = radius * std::cos(angle);
      block[i + kHalf] = radius * std::sin(angle);
    }
  };
  draw(values);
  for (std::size_t at = 0; at + kBlock <= values.size(); at += kBlock) make(values.data() + at);
  if (values.size() < kBlock || values.size() % kBlock == 0) return;
  // The last 16 are drawn anew.
  const std::span<float> last = values.last(kBlock);
  draw(last);
  make(last.data());
}

}  // namespace troupe::train
