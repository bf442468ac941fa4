#pragma once
// The daemon's own lines: passed on, and the last ones remembered for who asks the node.

#include <string>
#include <string_view>

#include "runtime/process/output.h"
#include "troupe/detail/mutex.h"
#include "troupe/log.h"

namespace troupe::scheduler {

// Thread-safe.
class DaemonLog {
 public:
  // An empty sink: standard error.
  explicit DaemonLog(LogSink sink) : sink_(std::move(sink)) {}
  void write(LogLevel level, std::string_view line);
  std::string text(std::size_t bytes_max);

 private:
  const LogSink sink_;
  Mutex mutex_;
  process::LogTail tail_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::scheduler
