#include "runtime/base/random.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe {

std::uint64_t Random::next_u64() {
  std::uint64_t value = 0;
  fill(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::uint64_t Random::below(std::uint64_t bound) {
  TROUPE_CHECK(bound > 0);
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t value = next_u64();
    if (value >= threshold) return value % bound;
  }
}

double Random::unit() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

void SystemRandom::fill(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::getrandom(out.data() + done, out.size() - done, 0);
    if (n > 0) done += static_cast<std::size_t>(n);
    TROUPE_CHECK(n > 0 || errno == EINTR, "getrandom failed: errno {}", errno);
  }
}

void SeededRandom::fill(std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size(); i += 8) {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    std::memcpy(out.data() + i, &z, std::min<std::size_t>(8, out.size() - i));
  }
}

}  // namespace troupe
