#pragma once
// Element counts are signed, containers' sizes are not. Internal to this folder.

#include <cstddef>
#include <cstdint>

namespace troupe::train {

inline std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace troupe::train
