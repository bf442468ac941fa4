#pragma once
// What one input may cost: beyond it the run ends, and the input is kept as a finding.

#include <chrono>
#include <cstddef>

namespace troupe::tests {

inline constexpr std::chrono::milliseconds kInputTimeMax{100};
inline constexpr std::size_t kInputMemoryMax = 256u << 20;

}  // namespace troupe::tests
