#pragma once
// How many seeds a test runs: TROUPE_TEST_SEEDS, or as many as it usually does.

#include <cstdint>
#include <cstdlib>

namespace troupe::simulation {

inline std::uint64_t seeds_wanted(std::uint64_t usual) {
  const char* wanted = std::getenv("TROUPE_TEST_SEEDS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : usual;
}

}  // namespace troupe::simulation
