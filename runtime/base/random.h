#pragma once
// Random numbers as an interface: secrets and ids come from the system, tests from a seed.

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

class Random {
 public:
  virtual ~Random() = default;
  virtual void fill(std::span<std::byte> out) = 0;
  std::uint64_t next_u64();
  // Uniform in [0, bound), bound > 0, without modulo bias.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [0, 1).
  double unit();
};

// getrandom(2): fit for tokens and nonces. Thread-safe.
class SystemRandom final : public Random {
 public:
  void fill(std::span<std::byte> out) override;
};

// SplitMix64 (Steele, Lea, Flood 2014): the same sequence for a seed everywhere. Not for secrets.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  void fill(std::span<std::byte> out) override;

 private:
  std::uint64_t state_;
};

}  // namespace troupe
