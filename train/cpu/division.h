#pragma once
// Whole numbers cut into units: private to train/cpu.

#include <cstdint>

namespace troupe::train {

// Units that hold `value`, the last of them perhaps not full. value ≥ 0, unit > 0.
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}
// The least multiple of `unit` that is no less.
constexpr std::int64_t ceil_to(std::int64_t value, std::int64_t unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace troupe::train
