#include "runtime/base/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace troupe {
namespace {

// The usual slice is 3 ms. Much shorter ones would cost who computes in such a thread.
constexpr std::uint64_t kSliceNs = 500'000;
// SCHED_FLAG_RESET_ON_FORK: what the thread starts begins with what is usual.
constexpr std::uint64_t kResetOnFork = 1;

// Of sched_setattr(2), which the C library does not declare: its first version.
struct SchedAttributes {
  std::uint32_t size = sizeof(SchedAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of an ordinary thread: its slice
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

}  // namespace

void take_short_slices() {
  thread_local bool asked = false;
  if (std::exchange(asked, true)) return;
  SchedAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kSliceNs;
  attributes.flags |= kResetOnFork;
  attributes.size = sizeof attributes;
  // A refusal only costs time.
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace troupe
