#pragma once
// Random numbers as torch's generator on CPUs gives them: for what packages draw by seeds of their
// own. Private to this folder.

#include <array>
#include <cstdint>
#include <span>

namespace troupe::train {

class TorchGenerator {
 public:
  // torch.Generator().manual_seed(seed).
  explicit TorchGenerator(std::uint64_t seed);

  std::uint32_t next();
  // torch.randint(0, 2⁶³ − 1, …), one number.
  std::uint64_t below_int64_max();
  // torch.randn of at least 16 numbers: in PyTorch's order; its vector code takes other logarithms
  // and cosines, which are a few units in the last place off.
  void normal(std::span<float> values);

 private:
  static constexpr std::size_t kWords = 624;  // of MT19937
  std::array<std::uint32_t, kWords> words_;
  std::size_t at_ = kWords;
};

}  // namespace troupe::train
