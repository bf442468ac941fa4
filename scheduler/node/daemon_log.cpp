#include "scheduler/node/daemon_log.h"

#include <cstdio>

namespace troupe::scheduler {

void DaemonLog::write(LogLevel level, std::string_view line) {
  {
    MutexLock lock(mutex_);
    tail_.append(line);
  }
  if (sink_) return sink_(level, line);
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

std::string DaemonLog::text(std::size_t bytes_max) {
  MutexLock lock(mutex_);
  return tail_.text(bytes_max);
}

}  // namespace troupe::scheduler
