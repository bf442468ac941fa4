#pragma once
// NumPy's default generator, as far as orders of data sets are drawn from it.

#include <cstdint>
#include <vector>

namespace troupe::train {

// numpy.random.default_rng(seed).permutation(count): what datasets' shuffle(seed) takes.
std::vector<std::uint32_t> numpy_permutation(std::uint32_t count, std::uint64_t seed);

}  // namespace troupe::train
