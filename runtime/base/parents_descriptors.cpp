#include "runtime/base/parents_descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace troupe {
namespace {

constexpr int kBits = 64;
constexpr int kDescriptorsMax = 1 << 16;  // larger numbers are not withheld
std::array<std::atomic<std::uint64_t>, kDescriptorsMax / kBits> withheld;

// In the child, where only what may be called in a signal handler may be called.
void drop_withheld() {
  int nothing = -1;
  for (int word = 0; word < kDescriptorsMax / kBits; ++word) {
    for (std::uint64_t bits = withheld[word].exchange(0); bits != 0; bits &= bits - 1) {
      if (nothing < 0) nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (nothing < 0) return;
      ::dup3(nothing, word * kBits + std::countr_zero(bits), O_CLOEXEC);
    }
  }
  if (nothing >= 0) ::close(nothing);
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, drop_withheld);

bool counts(int fd) { return fd > STDERR_FILENO && fd < kDescriptorsMax; }
std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (fd % kBits); }

}  // namespace

void withhold_from_children(int fd) {
  if (counts(fd)) withheld[fd / kBits].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void withhold_no_more(int fd) {
  if (counts(fd)) withheld[fd / kBits].fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

}  // namespace troupe
