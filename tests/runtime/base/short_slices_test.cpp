#include "runtime/base/short_slices.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

namespace troupe {
namespace {

struct Seen {
  std::uint32_t words[12] = {};  // sched_attr: size, policy, flags (2), nice, priority, runtime (2)
  std::uint64_t slice_ns() const { return words[6] | std::uint64_t{words[7]} << 32; }
};

Seen seen_of_this_thread() {
  Seen seen;
  REQUIRE(::syscall(SYS_sched_getattr, 0, &seen, sizeof seen, 0) == 0);
  return seen;
}

TEST_CASE("a thread gets shorter slices, where the system has them, and stays what it was") {
  std::thread([] {
    REQUIRE(::setpriority(PRIO_PROCESS, 0, 5) == 0);
    const Seen before = seen_of_this_thread();
    take_short_slices();
    take_short_slices();
    const Seen after = seen_of_this_thread();
    CHECK((::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) == SCHED_OTHER);
    CHECK(after.words[4] == before.words[4]);  // nice
    // A system that has no slices of their own for threads tells of none.
    if (before.slice_ns() == 0) return;
    CHECK(after.slice_ns() < before.slice_ns());
    // Threads that compute, and are started by it, have the usual ones.
    std::thread([&] { CHECK(seen_of_this_thread().slice_ns() == before.slice_ns()); }).join();
  }).join();
}

}  // namespace
}  // namespace troupe
