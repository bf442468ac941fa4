#pragma once
// bitsandbytes' dynamic code books: 256 numbers of a byte each, dense near zero, for moments of
// optimizers divided by the largest magnitude of their block. Private to this folder.

#include <array>
#include <cstdint>
#include <span>

namespace troupe::train {

class DynamicCodes {
 public:
  // Signed: magnitudes 10^-7 to 1 of both signs, for first moments. Unsigned: twice as many steps,
  // for second moments.
  static const DynamicCodes& with_sign();
  static const DynamicCodes& without_sign();

  // At most a block of values: codes and the largest magnitude; the nearest code, of two equally
  // near ones the lower. A block of zeros gets code 0 throughout, as bitsandbytes has it.
  float encode(std::span<const float> values, std::span<std::uint8_t> codes) const;
  void decode(std::span<const std::uint8_t> codes, float scale, std::span<float> values) const;
  const std::array<float, 256>& values() const { return values_; }

 private:
  explicit DynamicCodes(bool has_sign);

  std::array<float, 256> values_;     // ascending
  std::array<float, 255> midpoints_;  // of neighbours
};

}  // namespace troupe::train
