#pragma once
// Reads the GPUs and listens to their errors, on a thread of its own: a driver may take its time,
// or hang, and the node's loop must not.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/event_loop.h"
#include "scheduler/node/nvml.h"

namespace troupe::scheduler {

class GpuMonitor {
 public:
  // On the loop's thread; none after the destructor.
  struct Handlers {
    // With the number of read(), or 0: now and then, unasked.
    std::function<void(std::uint64_t number, std::vector<GpuReading>)> on_readings;
    std::function<void(GpuFault)> on_fault;
    // Once: errors cannot be listened to.
    std::function<void(const Status&)> on_trouble;
  };
  // Loop thread, as everything. The loop outlives it.
  GpuMonitor(net::EventLoop& loop, std::shared_ptr<Nvml> nvml, std::vector<std::string> uuids,
             Handlers handlers);
  // Waits a moment for the thread; one that hangs in the driver is left behind.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // Reads all of them soon; on_readings follows with `number`, or with a later one.
  void read(std::uint64_t number);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler
