#pragma once
// A new adapter's values. B is zero; DoRA's magnitudes follow from the base.

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::train {

// Elements [begin, begin + out.size()) of lora_A (rank, in): uniform in [−1/√in, 1/√in), PEFT's
// kaiming_uniform with a = √5. An element's value depends on (seed, name, its index) alone; the
// bits are not torch's.
void initialize_lora_a(std::string_view name, std::int64_t in, std::uint64_t seed,
                       std::int64_t begin, std::span<float> out);

}  // namespace troupe::train
