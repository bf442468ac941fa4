#include "scheduler/node/node_usage.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/base/machine.h"

namespace troupe::scheduler {
namespace {

// What Prometheus asks for at most.
constexpr Duration kMeasureInterval = std::chrono::seconds(5);
constexpr std::uint64_t kStatBytesMax = 4u << 20;  // a line for each CPU and interrupt

}  // namespace

std::optional<std::uint64_t> cpu_busy_us(FileSystem& files, long ticks_per_s) {
  const auto text = files.read("/proc/stat", kStatBytesMax);
  if (!text.ok() || ticks_per_s <= 0) return std::nullopt;
  unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0;
  unsigned long long irq = 0, softirq = 0, steal = 0;
  // Of guests: in user and nice already.
  const int count = std::sscanf(text->c_str(), "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user,
                                &nice, &system, &idle, &iowait, &irq, &softirq, &steal);
  if (count < 4) return std::nullopt;
  const unsigned long long ticks = user + nice + system + irq + softirq + steal;
  return ticks * (1'000'000 / static_cast<unsigned long long>(ticks_per_s));
}

std::optional<wire::NodeUsage> UsageMeter::measure(TimePoint now) {
  if (measured_at_ && now - *measured_at_ < kMeasureInterval) return std::nullopt;
  measured_at_ = now;
  const auto cpu = cpu_busy_us(files_, ::sysconf(_SC_CLK_TCK));
  const auto memory = detect_available_memory(files_);
  if (!cpu || !memory.ok()) return std::nullopt;
  wire::NodeUsage usage;
  usage.cpu_busy_us = *cpu;
  usage.memory_total_bytes = static_cast<std::uint64_t>(memory->total_bytes);
  usage.memory_used_bytes = static_cast<std::uint64_t>(
      std::max<std::int64_t>(memory->total_bytes - memory->available_bytes, 0));
  return usage;
}

}  // namespace troupe::scheduler
