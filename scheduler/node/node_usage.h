#pragma once
// What a node's machine spends, for the head's metrics.

#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// Time that all CPUs together have worked since the machine was booted, in microseconds: the first
// line of /proc/stat (proc(5)) without idle and iowait. Nothing where it does not say.
std::optional<std::uint64_t> cpu_busy_us(FileSystem& files, long ticks_per_s);

// Measures now and then: a heartbeat is more frequent than anybody looks. `processes` is the
// caller's.
class UsageMeter {
 public:
  explicit UsageMeter(FileSystem& files) : files_(files) {}
  // Nothing: it is not time yet, or the machine does not say.
  std::optional<wire::NodeUsage> measure(TimePoint now);

 private:
  FileSystem& files_;
  std::optional<TimePoint> measured_at_;
};

}  // namespace troupe::scheduler
