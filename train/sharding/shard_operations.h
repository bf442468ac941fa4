#pragma once
// What pieces of the communication queue do to buffers beside collectives.

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {

// Buffers lie in the memory of the engine's device. Called inside pieces of one queue only, each
// call over a whole buffer: it is done, or follows the piece's collectives so far in their order
// and is followed by the rest. Bits are the same on every device. Sizes that do not fit one another
// are a bug. Errors: the device's.
class ShardOperations {
 public:
  virtual ~ShardOperations() = default;

  // The two are disjoint, and of one size.
  virtual Status copy(std::span<const std::byte> from, std::span<std::byte> to) = 0;
  // fp32 → bf16, to nearest, ties to even.
  virtual Status narrow(std::span<const float> from, std::span<std::uint16_t> to) = 0;
  virtual Status widen(std::span<const std::uint16_t> from, std::span<float> to) = 0;
  // Each value to one that bf16 holds, left in fp32.
  virtual Status round(std::span<float> values) = 0;
  // sum += x
  virtual Status add(std::span<float> sum, std::span<const float> x) = 0;
  // The sum of bf16 `parts` (members, sum.size()) by the communicators' fixed tree, in fp32 and
  // left so. members: at most summed_parts_max().
  virtual Status sum_parts(std::span<const std::uint16_t> parts, int members,
                           std::span<float> sum) = 0;
  virtual int summed_parts_max() const = 0;
  // train/model's expand_vectors(): a unit's 1-D parameters from its bf16 buffer to fp32.
  virtual Status expand(const ParameterLayout& layout, int unit,
                        std::span<const std::uint16_t> unit_bf16, std::span<float> vectors) = 0;
};

}  // namespace troupe::train
