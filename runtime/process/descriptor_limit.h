#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace troupe::process {

// Lets this process open as many files as the system allows it, up to so many: a connection is
// three descriptors, a segment of shared memory one, and most shells allow 1,024.
inline void allow_descriptors(rlim_t most = 1'048'576) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= most) return;
  limit.rlim_cur = std::min(limit.rlim_max, most);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace troupe::process
