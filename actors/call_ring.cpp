#include "actors/call_ring.h"

#include <sched.h>

namespace troupe::detail {

CpuSet cpus_of_thread() {
  CpuSet cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  static_assert(CPU_SETSIZE <= 1024);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // of more CPUs: says nothing
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.set(cpu);
  }
  return cpus;
}

}  // namespace troupe::detail
